#include "gpu/cuda/cuda_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "gpu/cuda/sampling.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kRowsMaxLimit = 1u << 14;
constexpr uint64_t kScoresMax = 1u << 26;  // Floats: rows are scored in pieces of so many.

// What the kernels take for granted.
absl::Status CheckSupported(const ModelGeometry& geometry) {
  const ModelConfig& c = geometry.config;
  const auto refuse = [](const std::string& key, const std::string& what) {
    return InvalidArgument("the CUDA engine needs " + key + " " + what);
  };
  if (c.hc_mult != 4) return refuse("hc_mult", "4");
  if (c.window % 64 != 0) return refuse("sliding_window", "a multiple of 64");
  if (c.heads % 8 != 0) return refuse("num_attention_heads", "a multiple of 8");
  if (c.head_dim > 512) return refuse("head_dim", "512 at most");
  if (c.routed_experts > 1024) return refuse("n_routed_experts", "1024 at most");
  if (c.experts_per_token > 16) return refuse("num_experts_per_tok", "16 at most");
  if (c.rope_dim % 2 != 0) return refuse("qk_rope_head_dim", "even");
  for (const uint32_t size : {c.hidden_size, c.head_dim, c.q_lora_rank, c.o_lora_rank, c.expert_dim,
                              c.heads / c.o_groups * c.head_dim}) {
    if (size % 64 != 0) return refuse("its dimensions", "multiples of 64");
  }
  if (c.draft_markov_rank % 8 != 0) return refuse("dspark_markov_rank", "a multiple of 8");
  if (c.vocab_size > kChooseVocabMax) return refuse("vocab_size", "262144 at most");
  if (c.index_head_dim % 32 != 0) return refuse("index_head_dim", "a multiple of 32");
  for (const uint32_t source : c.kv_source_layers) {
    if (source > geometry.encoder_layers) {
      return refuse("kv_source_layer_ids", "up to the first decoder layer");
    }
  }
  return absl::OkStatus();
}

constexpr uint32_t kGraphRowsMax = 256;  // Of a step that is queued as a graph.

bool Chooses(std::span<const LogitRow> rows) {
  return std::any_of(rows.begin(), rows.end(), [](const LogitRow& row) { return row.choose; });
}

// Also makes the device current.
absl::Status Check(const ModelGeometry& geometry, const CudaEngineOptions& options) {
  RP_TRY(CheckSupported(geometry));
  RP_TRY(CheckShards(geometry.config, options.place.shard.ranks));
  if (options.rows_max == 0 || options.rows_max > kRowsMaxLimit) {
    return InvalidArgument("rows_max " + std::to_string(options.rows_max) + " is not from 1 to " +
                           std::to_string(kRowsMaxLimit));
  }
  return UseDevice(options.device).status();
}

}  // namespace

CudaEngine::CudaEngine(const ModelGeometry& geometry, const CudaEngineOptions& options)
    : geometry_(geometry),
      config_(geometry_.config),
      place_(options.place),
      heads_(config_.heads / place_.shard.ranks),
      groups_(config_.o_groups / place_.shard.ranks),
      graphs_wanted_(options.graphs),
      windows_(LiveWindowLayout::For(geometry_)),
      rope_(config_),
      rows_max_(options.rows_max),
      shape_{.hidden = config_.hidden_size, .eps = static_cast<float>(config_.rms_norm_eps)} {}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::Make(
    const ModelGeometry& geometry, const Checkpoint& checkpoint,
    const std::vector<uint32_t>& engram_map, const CudaEngineOptions& options) {
  RP_TRY(Check(geometry, options));
  RP_ASSIGN(DeviceWeights weights,
            DeviceWeights::Load(geometry, checkpoint, engram_map, options.place.shard));
  return MakeWith(geometry, std::move(weights), options);
}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::MakeRandom(
    const ModelGeometry& geometry, const std::vector<uint32_t>& engram_map,
    const CudaEngineOptions& options) {
  RP_TRY(Check(geometry, options));
  RP_ASSIGN(DeviceWeights weights,
            DeviceWeights::Random(geometry, engram_map, options.place.shard));
  return MakeWith(geometry, std::move(weights), options);
}

absl::StatusOr<std::unique_ptr<CudaEngine>> CudaEngine::MakeWith(const ModelGeometry& geometry,
                                                                 DeviceWeights weights,
                                                                 const CudaEngineOptions& options) {
  std::unique_ptr<CudaEngine> engine(new CudaEngine(geometry, options));
  engine->weights_ = std::move(weights);
  RP_ASSIGN(engine->stream_, Stream::Create());
  engine->memory_ = std::make_unique<CudaMemory>(options.device, engine->stream_.get());
  RP_TRY(engine->Allocate());
  return engine;
}

absl::Status CudaEngine::Allocate() {
  const ModelConfig& c = config_;
  const uint64_t rows = rows_max_;
  const uint64_t chosen = std::max(c.experts_per_token, c.draft_experts_per_token);
  const uint64_t experts = std::max(c.routed_experts, c.draft_routed_experts);
  const uint64_t pool = uint64_t{c.candidate_topk_blocks} * c.candidate_block_size;
  scores_max_ = std::max<uint64_t>(kScoresMax, c.max_positions);
  uint64_t engram_inputs = 0;
  for (const LayerDevice& layer : weights_.layers) {
    if (layer.engram.has_value()) engram_inputs = layer.engram->wkv.view.inputs;
  }
  const uint64_t taps = c.draft_target_layers.size();
  const uint64_t parts = place_.shard.alone() ? 0 : place_.shard.ranks;
  const uint64_t drafted = c.draft_stages == 0 ? 0 : rows / c.draft_block;  // Sequences.
  const uint64_t chosen_bytes = 2 * AlignUp(rows, 64) * 4;
  const struct {
    DeviceMemory* memory;
    uint64_t bytes;
  } wanted[] = {
      {&work_.stream[0], rows * 4 * c.hidden_size * 2},
      {&work_.stream[1], rows * 4 * c.hidden_size * 2},
      {&work_.pre[0], rows * 16},
      {&work_.pre[1], rows * 16},
      {&work_.partials, rows * (c.hidden_size / 64) * kMixPartials * 4},
      {&work_.post, rows * 16},
      {&work_.comb, rows * 64},
      {&work_.y, rows * c.hidden_size * 2},
      {&work_.x, rows * c.hidden_size * 2},
      {&work_.x_round, rows * c.hidden_size * 2},
      {&work_.h, (rows + parts) * c.hidden_size * 2},
      {&work_.projected, rows * (c.q_lora_rank + c.head_dim) * 2},
      {&work_.kv_codes, rows * c.head_dim},
      {&work_.kv_scales, rows * c.head_dim / 32},
      {&work_.query, rows * heads_ * c.head_dim * 2},
      {&work_.attended, rows * heads_ * c.head_dim * 2},
      {&work_.low, rows * groups_ * c.o_lora_rank * 2},
      {&work_.a, rows * c.head_dim * 4},
      {&work_.g, rows * c.head_dim * 4},
      {&work_.latents, rows * c.head_dim * 2},
      {&work_.keys, rows * c.index_head_dim * 2},
      {&work_.index_query, rows * c.index_heads * c.index_head_dim * 2},
      {&work_.index_weights, rows * c.index_heads * 2},
      {&work_.selected, rows * c.index_topk * 4},
      {&work_.scores, scores_max_ * 4},
      {&work_.candidates, rows * pool * 4},
      {&work_.candidate_counts, rows * 4},
      {&work_.select_room, SelectRoomBytes()},
      {&work_.attention_room, kAttentionRoomBytes},
      {&work_.gate, rows * experts * 4},
      {&work_.expert_of, rows * chosen * 4},
      {&work_.weight_of, rows * chosen * 4},
      {&work_.slot_of, rows * chosen * 4},
      {&work_.row_of, rows * chosen * 4},
      {&work_.slot_weights, rows * chosen * 4},
      {&work_.tiles, (rows * chosen + experts) * sizeof(ExpertTile)},
      {&work_.tile_count, 4},
      {&work_.tickets, 4},
      {&work_.inner, rows * chosen * c.expert_dim * 2},
      {&work_.expert_out, rows * chosen * c.hidden_size * 2},
      {&work_.shared_inner, rows * c.expert_dim * 2},
      {&work_.shared_out, rows * c.hidden_size * 2},
      {&work_.engram, rows * engram_inputs * 2},
      {&work_.engram_kv, engram_inputs == 0 ? 0 : rows * 5 * c.hidden_size * 2},
      {&work_.taps, rows * taps * c.hidden_size * 2},
      {&work_.logits, rows * WidestLogits() * 4},
      {&work_.corrections, drafted * c.vocab_size * 4},
      {&work_.draft_inputs,
       drafted * c.draft_block * AlignUp(c.hidden_size + c.draft_markov_rank, 64) * 2},
      {&work_.chosen, chosen_bytes},
      {&work_.part, parts == 0 ? 0 : (rows + parts) * c.hidden_size * 4},
      {&work_.gathered, parts * std::max({(rows + parts) * c.hidden_size * 4,
                                          rows * engram_inputs * 2, WidestLogits() * 4})},
      {&work_.joined_logits, parts == 0 ? 0 : rows * c.vocab_size * 4},
  };
  for (const auto& one : wanted) {
    RP_ASSIGN(*one.memory, DeviceMemory::Allocate(one.bytes));
    workspace_bytes_ += one.bytes;
    // Rows beyond a matrix's inputs meet weights of 0, and must not be NaN.
    RP_CUDA_TRY(cudaMemset(one.memory->data(), 0, one.bytes));
  }
  RP_ASSIGN(chosen_, PinnedMemory::Allocate(chosen_bytes));
  for (int kind = 0; kind < 2; ++kind) {
    const std::vector<float>& values = rope_.frequencies(kind == 1);
    RP_ASSIGN(work_.frequencies[kind], DeviceMemory::Allocate(values.size() * 4));
    RP_CUDA_TRY(cudaMemcpy(work_.frequencies[kind].data(), values.data(), values.size() * 4,
                           cudaMemcpyHostToDevice));
  }
  return absl::OkStatus();
}

// ---- A call ------------------------------------------------------------------------------------

absl::Status CudaEngine::Begin(std::span<const Segment> batch, uint32_t draws) {
  std::vector<StepUpload::Rows> encoder, decoder;
  uint32_t rows = 0;
  for (const Segment& segment : batch) {
    const auto end = static_cast<uint32_t>(segment.tokens.size());
    encoder.push_back({.segment = &segment,
                       .first = segment.first,
                       .end = end,
                       .windows_from = segment.encoder_from,
                       .write_from = segment.write_from});
    rows += end - segment.first;
    if (segment.decoder_first == end) continue;
    decoder.push_back({.segment = &segment,
                       .first = segment.decoder_first,
                       .end = end,
                       .windows_from = segment.decoder_from,
                       .write_from = segment.write_from,
                       .logits_from = segment.logits_from});
  }
  uint32_t engram_words = 0;
  engram_first_.clear();
  for (const LayerDevice& layer : weights_.layers) {
    if (!layer.engram.has_value()) continue;
    engram_first_.push_back(engram_words);
    engram_words += rows * layer.engram->hash.rows_per_token();
  }
  const float* frequencies[2] = {Floats(work_.frequencies[0]), Floats(work_.frequencies[1])};
  RP_TRY(step_.Begin(encoder, decoder, {.engram_words = engram_words, .draws = draws},
                     config_.rope_dim / 2, frequencies, stream_.get()));
  FillEngram(batch);
  return absl::OkStatus();
}

absl::Status CudaEngine::Embed() {
  RP_TRY(step_.Rotate(stream_.get()));
  now_ = 0;
  pre_ = 0;
  pending_ = {};
  taps_taken_ = 0;
  return CudaStatus(LaunchEmbed(step_.encoder.view, Bits(weights_.embed), step_.image_rows,
                                step_.image_index, config_.hidden_size, Bits(work_.stream[now_]),
                                Floats(work_.pre[pre_]), stream_.get()),
                    "embedding");
}

// Table rows follow from ids alone: they are known before the first layer runs.
void CudaEngine::FillEngram(std::span<const Segment> batch) {
  uint32_t engram = 0;
  for (const LayerDevice& layer : weights_.layers) {
    if (!layer.engram.has_value()) continue;
    const EngramHash& hash = layer.engram->hash;
    uint64_t* out = step_.engram_host + engram_first_[engram++];
    for (const Segment& segment : batch) {
      for (uint32_t position = segment.first; position < segment.tokens.size(); ++position) {
        const uint32_t from = position + 1 - std::min(position + 1, config_.engram_max_ngram);
        const auto recent = segment.tokens.subspan(from, position + 1 - from);
        bool blocked[8] = {};
        const size_t marks = segment.image_marks.empty() ? 0 : recent.size();
        for (size_t i = 0; i < marks; ++i) blocked[i] = segment.image_marks[from + i] != 0;
        hash.Rows(recent, std::span<const bool>(blocked, marks),
                  std::span(out, hash.rows_per_token()));
        out += hash.rows_per_token();
      }
    }
  }
}

void CudaEngine::Count() {
  for (const DevicePart& part : step_.encoder.parts) {
    counters_.encoder_rows += part.rows;
    const uint32_t from = std::max(part.write_from, part.first), end = part.first + part.rows;
    counters_.replayed_rows += std::min(from - part.first, part.rows);
    if (from >= end) continue;
    for (const LayerPlan& plan : geometry_.layers) {
      if (plan.mode != LayerMode::kFull) continue;
      counters_.global_entries += end / plan.ratio - from / plan.ratio;
    }
  }
  counters_.decoder_rows += step_.decoder.view.rows;
}

absl::Status CudaEngine::ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) {
  RP_TRY(CheckForward(*this, batch, rows));
  if (batch.empty()) return absl::OkStatus();
  cudaGraphExec_t graph = nullptr;
  RP_TRY(Meet(Prepare(batch, rows, &graph)));
  Count();
  RP_TRY(graph == nullptr ? Run(Chooses(rows)) : graphs_.Launch(graph, stream_.get()));
  return TakeRows(rows);
}

absl::Status CudaEngine::Prepare(std::span<const Segment> batch, std::span<const LogitRow> rows,
                                 cudaGraphExec_t* graph) {
  const bool choose = Chooses(rows);
  RP_TRY(Begin(batch, choose ? static_cast<uint32_t>(rows.size()) : 0));
  for (size_t i = 0; choose && i < rows.size(); ++i) step_.draws_host[i] = rows[i].draw;
  RP_TRY(step_.Copy(stream_.get()));
  return FindGraph(
      choose ? StepKind::kForwardAndChoose : StepKind::kForward,
      [this, choose] { return Run(choose); }, graph);
}

absl::Status CudaEngine::FindGraph(StepKind kind, const std::function<absl::Status()>& run,
                                   cudaGraphExec_t* graph) {
  if (std::exchange(graphs_of_, step_.moved()) != step_.moved()) graphs_.Clear();
  // A step of many rows keeps the device busy for longer than its launches take.
  if (!graphs_wanted_ || step_.encoder.view.rows > kGraphRowsMax) return absl::OkStatus();
  StepKey key = {static_cast<uint64_t>(kind)};
  step_.AddTo(&key);
  if (step_.encoder.part_rows_max >= kRowsThatShareKeys) {
    for (const HalfStep* half : {&step_.encoder, &step_.decoder}) {
      for (const DevicePart& part : half->parts) key.push_back(part.rows);
    }
  }
  RP_ASSIGN(*graph, graphs_.Find(key, stream_.get(), run));
  return absl::OkStatus();
}

absl::Status CudaEngine::TakeRows(std::span<LogitRow> rows) {
  // Rows whose places follow one another are copied together.
  for (size_t first = 0, end = 0; first < rows.size(); first = end) {
    float* const to = rows[first].logits;
    const size_t vocab = config_.vocab_size;
    for (end = first + 1; end < rows.size() && to != nullptr; ++end) {
      if (rows[end].logits != to + (end - first) * vocab) break;
    }
    if (to == nullptr) continue;
    RP_TRY(CopyLogits(static_cast<uint32_t>(first), static_cast<uint32_t>(end - first), to));
  }
  if (!Chooses(rows)) return stream_.Wait();
  RP_CUDA_TRY(cudaMemcpyAsync(chosen_.data(), work_.chosen.data(), rows.size() * sizeof(uint32_t),
                              cudaMemcpyDeviceToHost, stream_.get()));
  RP_TRY(stream_.Wait());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].choose) rows[i].token = chosen_.as<TokenId>()[i];
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::Run(bool choose) {
  RP_TRY(Embed());
  for (uint32_t layer = 0; layer < geometry_.encoder_layers; ++layer) {
    RP_TRY(Layer(layer, step_.encoder, true));
  }
  RP_TRY(Update(step_.encoder.view.rows));
  RP_TRY(WriteDecoderSource());
  const HalfStep& half = step_.decoder;
  if (half.view.rows == 0) return absl::OkStatus();
  const auto gather = [&](DeviceMemory* pair, int* now, uint32_t bytes) {
    const cudaError_t error =
        LaunchGatherRows(pair[*now].data(), step_.decoder_rows, half.view.rows, bytes,
                         pair[1 - *now].data(), stream_.get());
    *now = 1 - *now;
    return CudaStatus(error, "decoder rows");
  };
  RP_TRY(gather(work_.stream, &now_, 4 * config_.hidden_size * 2));
  RP_TRY(gather(work_.pre, &pre_, 16));
  for (uint32_t layer = geometry_.encoder_layers; layer < config_.layer_count; ++layer) {
    RP_TRY(Layer(layer, half, false));
  }
  RP_TRY(Update(half.view.rows));
  if (weights_.draft.has_value()) RP_TRY(WriteDraftContext(half));
  if (step_.logit_row_count > 0) RP_TRY(Logits(half));
  if (!choose) return absl::OkStatus();
  RP_TRY(JoinLogits(step_.logit_row_count));
  return CudaStatus(LaunchChoose({.logits = Floats(WholeLogits()),
                                  .stride = config_.vocab_size,
                                  .rows = step_.logit_row_count,
                                  .vocab = config_.vocab_size,
                                  .draws = step_.draws,
                                  .tokens = work_.chosen.as<uint32_t>()},
                                 stream_.get()),
                    "tokens");
}

// All rows of the decoder are normed; the head takes those that are asked for.
absl::Status CudaEngine::Logits(const HalfStep& half) {
  RP_CUDA_TRY(LaunchCollapse(shape_, half.view.rows, Bits(work_.stream[now_]),
                             Floats(work_.pre[pre_]), Floats(weights_.norm), nullptr, Bits(work_.x),
                             stream_.get()));
  return CudaStatus(LaunchLinear({.matrix = weights_.head.view,
                                  .output = LinearOutput::kFloat,
                                  .x = work_.x.data(),
                                  .x_stride = config_.hidden_size,
                                  .y = work_.logits.data(),
                                  .y_stride = weights_.head_tokens.count,
                                  .rows = step_.logit_row_count,
                                  .gather = step_.logit_rows},
                                 stream_.get()),
                    "logits");
}

// ---- To compare --------------------------------------------------------------------------------

// The layer finds its rows where those of the encoder are.
absl::Status CudaEngine::BeginLayer(uint32_t layer, const Segment& segment) {
  RP_TRY(CheckSegments(*this, {&segment, 1}).status());
  Segment whole = segment;
  if (layer >= geometry_.encoder_layers) {
    whole.encoder_from = segment.decoder_from;
    whole.decoder_first = segment.first;
  }
  RP_TRY(Begin({&whole, 1}));
  RP_TRY(step_.Copy(stream_.get()));
  return Embed();
}

absl::StatusOr<uint32_t> CudaEngine::LaunchesOfLayer(uint32_t layer, const Segment& segment) {
  RP_TRY(BeginLayer(layer, segment));
  RP_TRY(Layer(layer, step_.encoder, true));  // From here on, an update is pending.
  const absl::StatusOr<uint32_t> count =
      StepGraphs::Count(stream_.get(), [&] { return Layer(layer, step_.encoder, true); });
  RP_TRY(stream_.Wait());
  return count;
}

absl::Status CudaEngine::RunLayer(uint32_t layer, const Segment& segment,
                                  std::vector<float>* stream, std::vector<float>* pre) {
  RP_TRY(Meet(BeginLayer(layer, segment)));
  std::vector<Bf16Bits> bits(stream->size());
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = ToBf16((*stream)[i]);
  RP_CUDA_TRY(cudaMemcpyAsync(work_.stream[now_].data(), bits.data(), bits.size() * 2,
                              cudaMemcpyHostToDevice, stream_.get()));
  RP_CUDA_TRY(cudaMemcpyAsync(work_.pre[pre_].data(), pre->data(), pre->size() * 4,
                              cudaMemcpyHostToDevice, stream_.get()));
  RP_TRY(Layer(layer, step_.encoder, true));
  RP_TRY(Update(step_.encoder.view.rows));
  RP_CUDA_TRY(cudaMemcpyAsync(bits.data(), work_.stream[now_].data(), bits.size() * 2,
                              cudaMemcpyDeviceToHost, stream_.get()));
  RP_CUDA_TRY(cudaMemcpyAsync(pre->data(), work_.pre[pre_].data(), pre->size() * 4,
                              cudaMemcpyDeviceToHost, stream_.get()));
  RP_TRY(stream_.Wait());
  for (size_t i = 0; i < bits.size(); ++i) (*stream)[i] = FromBf16(bits[i]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> CudaEngine::Selections(uint32_t rows) {
  std::vector<int32_t> selected(size_t{rows} * config_.index_topk);
  RP_CUDA_TRY(cudaMemcpy(selected.data(), work_.selected.data(), selected.size() * 4,
                         cudaMemcpyDeviceToHost));
  return selected;
}

}  // namespace reprise::engine::cuda
