// The steps of a layer, as gpu/cpu has them.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "gpu/cuda/cuda_engine.h"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {

WindowView CudaEngine::WindowsOf(uint32_t layer) const {
  WindowView view{.window = windows_.window,
                  .ring_rows = windows_.ring_rows,
                  .code_bytes = windows_.code_bytes,
                  .scale_bytes = windows_.scale_bytes,
                  .layer_offset = layer * windows_.layer_stride,
                  .tail_rows = LiveWindowLayout::kTailRows};
  if (windows_.tail_of_layer[layer] != kNoLayer) {
    view.tail_offset = windows_.tails_offset + windows_.tail_of_layer[layer] * windows_.tail_stride;
  }
  return view;
}

EntryView CudaEngine::EntriesOf(uint32_t layer) const {
  for (const SourcePlanes& planes : geometry_.record.sources) {
    if (planes.layer != geometry_.layers[layer].kv_source) continue;
    return {.block_shift = static_cast<uint32_t>(std::countr_zero(planes.rows)),
            .main_codes = planes.main_codes,
            .main_scales = planes.main_scales,
            .index_codes = planes.indexer_codes,
            .index_scales = planes.indexer_scales,
            .main_code_bytes = geometry_.kv.main.code_bytes(),
            .main_scale_bytes = geometry_.kv.main.scale_bytes(),
            .index_code_bytes = geometry_.kv.indexer.code_bytes(),
            .index_scale_bytes = geometry_.kv.indexer.scale_bytes()};
  }
  return {};
}

absl::Status CudaEngine::Layer(uint32_t layer, const HalfStep& half, bool write_global) {
  const LayerDevice& weights = weights_.layers[layer];
  const LayerPlan& plan = geometry_.layers[layer];
  const uint32_t rows = half.view.rows;
  const bool tap = plan.draft_tap && weights_.draft.has_value();
  if (weights.engram.has_value() || tap) RP_TRY(Update(rows));
  if (weights.engram.has_value()) RP_TRY(AddEngram(layer, half));
  if (tap) {
    RP_CUDA_TRY(LaunchTap(shape_, rows, Bits(work_.stream[now_]), taps_taken_++,
                          static_cast<uint32_t>(config_.draft_target_layers.size()),
                          Bits(work_.taps), stream_.get()));
  }
  RP_TRY(Mix(weights.hc_attn, weights.attn_norm, rows));
  RP_TRY(Project(layer, half, false));
  if (plan.mode == LayerMode::kFull && write_global) RP_TRY(WriteGlobal(layer, half));
  if (weights.indexer.has_value()) RP_TRY(Select(layer, half));
  RP_TRY(Attend(layer, half, false));
  if (half.part_rows_max > LiveWindowLayout::kDraftRowsMax) {
    RP_CUDA_TRY(LaunchWriteWindows(half.view, WindowsOf(layer), work_.kv_codes.as<uint8_t>(),
                                   work_.kv_scales.as<uint8_t>(), stream_.get()));
  }
  RP_TRY(ProjectOut(layer, rows));
  return FeedForward(layer, half);
}

absl::Status CudaEngine::Mix(const MhcDevice& mhc, const DeviceMemory& norm, uint32_t rows) {
  const bool adds = pending_.post != nullptr;
  const MixCall call{.mixes = {.shape = shape_,
                               .rows = rows,
                               .weights = {.base = Floats(mhc.base),
                                           .scale = Floats(mhc.scale),
                                           .iterations = config_.hc_sinkhorn_iters,
                                           .eps = static_cast<float>(config_.hc_eps)},
                               .partials = Floats(work_.partials),
                               .pre = Floats(work_.pre[1 - pre_]),
                               .post = Floats(work_.post),
                               .comb = Floats(work_.comb)},
                     .add = std::exchange(pending_, {}),
                     .stream = Bits(work_.stream[now_]),
                     .updated = Bits(work_.stream[1 - now_]),
                     .pre = Floats(work_.pre[pre_]),
                     .fn = Bits(mhc.fn),
                     .norm = Floats(norm),
                     .y = Bits(work_.y),
                     .x = Bits(work_.x),
                     .x_round = Bits(work_.x_round)};
  if (adds) now_ = 1 - now_;
  pre_ = 1 - pre_;
  mixes_left_ = call.mixes;
  return CudaStatus(LaunchMix(call, stream_.get()), "mix");
}

absl::Status CudaEngine::Update(uint32_t rows) {
  if (pending_.post == nullptr) return absl::OkStatus();
  return CudaStatus(LaunchUpdate(shape_, rows, std::exchange(pending_, {}),
                                 Bits(work_.stream[now_]), stream_.get()),
                    "stream update");
}

absl::Status CudaEngine::Linear(const OwnedLinear& matrix, const DeviceMemory& x,
                                const DeviceMemory& y, uint32_t rows, LinearOutput output) {
  return CudaStatus(LaunchLinear({.matrix = matrix.view,
                                  .output = output,
                                  .x = x.data(),
                                  .x_stride = matrix.view.inputs,
                                  .y = y.data(),
                                  .y_stride = matrix.view.outputs,
                                  .rows = rows},
                                 stream_.get()),
                    "a product");
}

absl::Status CudaEngine::Project(uint32_t layer, const HalfStep& half, bool drafts) {
  const LayerDevice& weights = weights_.layers[layer];
  const uint32_t rows = half.view.rows, low = config_.q_lora_rank;
  const WindowView windows = WindowsOf(layer);
  const bool spare = half.part_rows_max <= LiveWindowLayout::kDraftRowsMax;
  RP_TRY(Linear(weights.wq_kv, work_.x_round, work_.projected, rows));
  RP_CUDA_TRY(LaunchProjected({.step = half.view,
                               .rotation = RotationOf(layer),
                               .projected = Bits(work_.projected),
                               .low = low,
                               .dim = config_.head_dim,
                               .q_norm = Floats(weights.q_norm),
                               .kv_norm = Floats(weights.kv_norm),
                               .eps = shape_.eps,
                               .codes = work_.kv_codes.as<uint8_t>(),
                               .scales = work_.kv_scales.as<uint8_t>(),
                               .ring = spare && !drafts ? &windows : nullptr,
                               .mixes = std::exchange(mixes_left_, {})},
                              stream_.get()));
  return FromLow(weights.wq_b, work_.query, rows);
}

absl::Status CudaEngine::FromLow(const OwnedLinear& matrix, const DeviceMemory& y, uint32_t rows) {
  return CudaStatus(LaunchLinear({.matrix = matrix.view,
                                  .x = work_.projected.data(),
                                  .x_stride = config_.q_lora_rank + config_.head_dim,
                                  .y = y.data(),
                                  .y_stride = matrix.view.outputs,
                                  .rows = rows},
                                 stream_.get()),
                    "queries");
}

absl::Status CudaEngine::WriteGlobal(uint32_t layer, const HalfStep& half) {
  const CompressorDevice& weights = *weights_.layers[layer].compressor;
  const uint32_t ratio = geometry_.layers[layer].ratio, rows = half.view.rows;
  const uint32_t dim = config_.head_dim, index_dim = config_.index_head_dim;
  const uint32_t count = half.group_count[ratio];
  const DeviceGroup* groups = half.groups[ratio];
  RP_TRY(Linear(weights.wkv, work_.x, work_.a, rows,
                ratio == 2 ? LinearOutput::kFloat : LinearOutput::kBf16));
  if (ratio == 2) RP_TRY(Linear(weights.wgate, work_.x, work_.g, rows, LinearOutput::kFloat));
  RP_CUDA_TRY(LaunchLatents(half.view, WindowsOf(layer), groups, count, ratio, work_.a.data(),
                            Floats(work_.g), Floats(weights.norm), dim, shape_.eps,
                            Bits(work_.latents), stream_.get()));
  RP_TRY(Linear(weights.wk, work_.latents, work_.keys, count));
  RP_CUDA_TRY(LaunchWriteEntries(half.view, EntriesOf(layer), groups, count, ratio,
                                 Floats(work_.frequencies[1]), Bits(work_.latents), dim,
                                 Bits(work_.keys), Floats(weights.k_norm), index_dim, shape_.eps,
                                 stream_.get()));
  if (ratio != 2) return absl::OkStatus();
  return CudaStatus(LaunchStoreTails(half.view, WindowsOf(layer), Floats(work_.a), Floats(work_.g),
                                     dim, stream_.get()),
                    "tails");
}

absl::Status CudaEngine::Select(uint32_t layer, const HalfStep& half) {
  const ModelConfig& c = config_;
  const LayerPlan& plan = geometry_.layers[layer];
  const IndexerDevice& weights = *weights_.layers[layer].indexer;
  const uint32_t rows = half.view.rows, visible = half.entries_max[plan.ratio];
  const uint32_t pool = c.candidate_topk_blocks * c.candidate_block_size;
  if (plan.writes_pool) pooled_ = visible > pool;
  SelectCall select{.step = half.view,
                    .ratio = plan.ratio,
                    .rows = rows,
                    .topk = c.index_topk,
                    .selected = work_.selected.as<int32_t>()};
  if (visible <= c.index_topk) return CudaStatus(LaunchSelect(select, stream_.get()), "selection");

  RP_TRY(FromLow(weights.wq_b, work_.index_query, rows));
  RP_TRY(Linear(weights.head_weights, work_.x, work_.index_weights, rows));
  RP_CUDA_TRY(LaunchIndexQueries(half.view, Bits(work_.index_query), c.index_heads,
                                 c.index_head_dim, stream_.get()));
  const bool inside = plan.reads_pool && pooled_;
  const uint32_t entries = inside ? pool : visible;
  const uint64_t stride = AlignUp(entries, 64);
  const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.index_head_dim)) /
                                         std::sqrt(static_cast<double>(c.index_heads)));
  const auto piece = static_cast<uint32_t>(std::max<uint64_t>(1, scores_max_ / stride));
  for (uint32_t row = 0; row < rows; row += piece) {
    const uint32_t count = std::min(piece, rows - row);
    ScoreCall score{.step = half.view,
                    .entries = EntriesOf(layer),
                    .ratio = plan.ratio,
                    .queries = Bits(work_.index_query),
                    .weights = Bits(work_.index_weights),
                    .factor = factor,
                    .heads = c.index_heads,
                    .dim = c.index_head_dim,
                    .stride = inside ? pool : stride};
    const auto score_rows = [&](uint32_t begin, uint32_t end, bool one_part) {
      score.row = begin;
      score.rows = end - begin;
      score.one_part = one_part;
      score.scores = Floats(work_.scores) + (begin - row) * score.stride;
      return CudaStatus(LaunchScores(score, entries, stream_.get()), "index scores");
    };
    if (inside) {
      score.candidates = work_.candidates.as<uint32_t>() + uint64_t{row} * pool;
      score.candidate_counts = work_.candidate_counts.as<uint32_t>() + row;
    }
    // Rows of one sequence share its keys, which pays when it has several.
    if (inside || half.part_rows_max < kRowsThatShareKeys) {
      RP_TRY(score_rows(row, row + count, false));
    } else {
      for (const DevicePart& part : half.parts) {
        const uint32_t begin = std::max(part.row, row);
        const uint32_t end = std::min(part.row + part.rows, row + count);
        if (begin < end) RP_TRY(score_rows(begin, end, true));
      }
    }
    if (plan.writes_pool && pooled_) {
      RP_CUDA_TRY(LaunchPool({.step = half.view,
                              .row = row,
                              .rows = count,
                              .scores = Floats(work_.scores),
                              .stride = score.stride,
                              .room = work_.select_room.data(),
                              .entries_max = entries,
                              .block = c.candidate_block_size,
                              .blocks_max = c.candidate_topk_blocks,
                              .candidates = work_.candidates.as<uint32_t>(),
                              .candidate_counts = work_.candidate_counts.as<uint32_t>()},
                             stream_.get()));
    }
    select.row = row;
    select.rows = count;
    select.scores = Floats(work_.scores);
    select.stride = score.stride;
    select.candidates = score.candidates;
    select.candidate_counts = score.candidate_counts;
    select.room = work_.select_room.data();
    select.entries_max = entries;
    RP_CUDA_TRY(LaunchSelect(select, stream_.get()));
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::Attend(uint32_t layer, const HalfStep& half, bool drafts) {
  const bool global = geometry_.layers[layer].ratio != 0;
  const AttentionCall call{
      .step = half.view,
      .rotation = RotationOf(layer),
      .windows = WindowsOf(layer),
      .entries = global ? EntriesOf(layer) : EntryView{},
      .query = Bits(work_.query),
      .kv_codes = work_.kv_codes.as<uint8_t>(),
      .kv_scales = work_.kv_scales.as<uint8_t>(),
      .selected = global ? work_.selected.as<int32_t>() : nullptr,
      .topk = config_.index_topk,
      .sinks = Floats(weights_.layers[layer].sinks),
      .heads = heads_,
      .dim = config_.head_dim,
      .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim))),
      .out = Bits(work_.attended),
      .drafts = drafts,
      .rotate_query = true,
      .room = work_.attention_room.data()};
  return CudaStatus(LaunchAttention(call, stream_.get()), "attention");
}

absl::Status CudaEngine::ProjectOut(uint32_t layer, uint32_t rows) {
  const ModelConfig& c = config_;
  const LayerDevice& weights = weights_.layers[layer];
  const uint32_t low = groups_ * c.o_lora_rank;
  RP_CUDA_TRY(LaunchLinear({.matrix = weights.wo_a.view,
                            .output = LinearOutput::kRounded,
                            .x = work_.attended.data(),
                            .x_stride = uint64_t{heads_} * c.head_dim,
                            .y = work_.low.data(),
                            .y_stride = low,
                            .rows = rows,
                            .block_outputs = c.o_lora_rank,
                            .block_inputs = c.heads / c.o_groups * c.head_dim},
                           stream_.get()));
  const bool alone = place_.shard.alone();
  RP_CUDA_TRY(LaunchLinear({.matrix = weights.wo_b.view,
                            .output = alone ? LinearOutput::kBf16 : LinearOutput::kFloat,
                            .x = work_.low.data(),
                            .x_stride = low,
                            .y = alone ? work_.h.data() : static_cast<void*>(OwnPart(rows)),
                            .y_stride = c.hidden_size,
                            .rows = rows},
                           stream_.get()));
  if (!alone) return SumOverRanks(rows);
  pending_ = {.post = Floats(work_.post), .comb = Floats(work_.comb), .h = Bits(work_.h)};
  return absl::OkStatus();
}

absl::Status CudaEngine::FeedForward(uint32_t layer, const HalfStep& half) {
  const ModelConfig& c = config_;
  const LayerDevice& layer_weights = weights_.layers[layer];
  const MoeDevice& moe = layer_weights.moe;
  const uint32_t rows = half.view.rows;
  const uint32_t chosen =
      geometry_.is_draft(layer) ? c.draft_experts_per_token : c.experts_per_token;
  const auto limit = static_cast<float>(c.swiglu_limit);
  RP_TRY(Mix(layer_weights.hc_ffn, layer_weights.ffn_norm, rows));
  // Tiles as large as an expert's share of the rows, twice over.
  const uint32_t tile_rows =
      LinearTileRows(std::min(rows, 2 * ((rows * chosen + moe.routed - 1) / moe.routed)));
  const LinearCall gate{.matrix = moe.gate.view,
                        .output = LinearOutput::kFloat,
                        .x = work_.x.data(),
                        .x_stride = c.hidden_size,
                        .y = work_.gate.data(),
                        .y_stride = moe.routed,
                        .rows = rows};
  RP_CUDA_TRY(LaunchRoute(gate,
                          {.rows = rows,
                           .experts = moe.routed,
                           .chosen = chosen,
                           .logits = Floats(work_.gate),
                           .bias = Floats(moe.bias),
                           .image_bias = Floats(moe.image_bias),
                           .image = half.view.image,
                           .scaling = static_cast<float>(c.routed_scaling),
                           .own_first = moe.own_first,
                           .own = moe.own,
                           .tile_rows = tile_rows,
                           .ticket = work_.tickets.as<uint32_t>(),
                           .expert_of = work_.expert_of.as<uint32_t>(),
                           .weight_of = Floats(work_.weight_of),
                           .slot_of = work_.slot_of.as<uint32_t>(),
                           .row_of = work_.row_of.as<uint32_t>(),
                           .slot_weights = Floats(work_.slot_weights),
                           .tiles = work_.tiles.as<ExpertTile>(),
                           .tile_count = work_.tile_count.as<uint32_t>(),
                           .mixes = std::exchange(mixes_left_, {})},
                          stream_.get()));
  const uint32_t slots = rows * chosen, shared_rows = moe.shared_here ? rows : 0;
  const LinearCall up{.matrix = moe.up.view,
                      .output = LinearOutput::kSwiglu,
                      .x = work_.x_round.data(),
                      .x_stride = c.hidden_size,
                      .y = work_.inner.data(),
                      .y_stride = c.expert_dim,
                      .rows = slots,
                      .gather = work_.row_of.as<uint32_t>(),
                      .limit = limit,
                      .row_weights = Floats(work_.slot_weights),
                      .tiles = work_.tiles.as<ExpertTile>(),
                      .tile_count = work_.tile_count.as<uint32_t>(),
                      .tiles_max = std::min(slots, slots / tile_rows + std::min(moe.own, slots)),
                      .beside = {.matrix = moe.shared_up.view,
                                 .x = work_.x_round.data(),
                                 .y = work_.shared_inner.data(),
                                 .rows = shared_rows}};
  RP_CUDA_TRY(LaunchLinear(up, tile_rows, stream_.get()));
  const LinearCall down{.matrix = moe.down.view,
                        .x = work_.inner.data(),
                        .x_stride = c.expert_dim,
                        .y = work_.expert_out.data(),
                        .y_stride = c.hidden_size,
                        .rows = slots,
                        .tiles = up.tiles,
                        .tile_count = up.tile_count,
                        .tiles_max = up.tiles_max,
                        .planned_before = true,
                        .beside = {.matrix = moe.shared_down.view,
                                   .x = work_.shared_inner.data(),
                                   .y = work_.shared_out.data(),
                                   .rows = shared_rows}};
  RP_CUDA_TRY(LaunchLinear(down, tile_rows, stream_.get()));
  pending_ = {.post = Floats(work_.post),
              .comb = Floats(work_.comb),
              .chosen = chosen,
              .slot_of = work_.slot_of.as<uint32_t>(),
              .outputs = Bits(work_.expert_out),
              .shared = moe.shared_here ? Bits(work_.shared_out) : nullptr};
  if (place_.shard.alone()) return absl::OkStatus();
  RP_CUDA_TRY(LaunchSumExperts(c.hidden_size, rows, pending_, OwnPart(rows), stream_.get()));
  return SumOverRanks(rows);
}

absl::Status CudaEngine::AddEngram(uint32_t layer, const HalfStep& half) {
  const EngramDevice& engram = *weights_.layers[layer].engram;
  const uint32_t rows = half.view.rows;
  const uint64_t* table_rows = step_.engram_device + engram_first_[geometry_.layers[layer].engram];
  RP_TRY(LookUpEngram(engram, table_rows, rows));
  RP_TRY(Linear(engram.wkv, work_.engram, work_.engram_kv, rows));
  return CudaStatus(LaunchEngramGate(shape_, rows, half.view.image, Bits(work_.engram_kv),
                                     Floats(engram.qk), Bits(work_.stream[now_]), stream_.get()),
                    "Engram");
}

// The decoder's global KV is a function of the encoder's output alone, and is written for every
// row: also for those that never enter the decoder.
absl::Status CudaEngine::WriteDecoderSource() {
  const uint32_t layer = geometry_.encoder_layers;
  RP_CUDA_TRY(LaunchCollapse(shape_, step_.encoder.view.rows, Bits(work_.stream[now_]),
                             Floats(work_.pre[pre_]), Floats(weights_.layers[layer].attn_norm),
                             nullptr, Bits(work_.x), stream_.get()));
  return WriteGlobal(layer, step_.encoder);
}

}  // namespace reprise::engine::cuda
