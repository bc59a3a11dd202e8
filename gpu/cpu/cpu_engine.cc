#include "gpu/cpu/cpu_engine.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "gpu/cpu/draft.h"
#include "gpu/engine/sampler.h"

namespace reprise::engine {
namespace cpu {
namespace {

constexpr uint32_t kRowsMaxLimit = 1u << 16;

// What the kernels and the flow of a step take for granted.
absl::Status CheckSupported(const ModelGeometry& geometry) {
  const ModelConfig& c = geometry.config;
  const auto refuse = [](const std::string& key, const std::string& what) {
    return InvalidArgument("the CPU engine needs " + key + " " + what);
  };
  if (c.hc_mult != 4) return refuse("hc_mult", "4");
  if (c.window % kAttentionBlock != 0) return refuse("sliding_window", "a multiple of 64");
  if (c.heads % 4 != 0) return refuse("num_attention_heads", "a multiple of 4");
  if (c.index_heads % 4 != 0) return refuse("index_n_heads", "a multiple of 4");
  if (16 % c.candidate_block_size != 0) return refuse("candidate_block_size", "1, 2, 4, 8 or 16");
  if (c.rope_dim % 16 != 0) return refuse("qk_rope_head_dim", "a multiple of 16");
  if (c.engram_max_ngram > 8) return refuse("engram_max_ngram_size", "8 at most");
  for (const uint32_t size :
       {c.hidden_size, c.head_dim, c.q_lora_rank, c.o_lora_rank, c.expert_dim, c.index_head_dim}) {
    if (size % 32 != 0) return refuse("its dimensions", "multiples of 32");
  }
  for (const uint32_t source : c.kv_source_layers) {
    if (source > geometry.encoder_layers) {
      return refuse("kv_source_layer_ids", "up to the first decoder layer");
    }
  }
  return absl::OkStatus();
}

const Kernels* FindKernels(std::string_view name) {
  if (name.empty()) return &BestKernels();
  for (const Kernels* kernels : RunnableKernels()) {
    if (name == kernels->name) return kernels;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuEngine>> CpuEngine::Make(const ModelGeometry& geometry,
                                                           const Checkpoint& checkpoint,
                                                           std::vector<uint32_t> engram_map,
                                                           const CpuEngineOptions& options) {
  RP_TRY(CheckSupported(geometry));
  const Kernels* kernels = FindKernels(options.kernels);
  if (kernels == nullptr) {
    return InvalidArgument("kernels \"" + std::string(options.kernels) +
                           "\" are not avx512, avx2 or portable, or this machine cannot run them");
  }
  if (options.rows_max == 0 || options.rows_max > kRowsMaxLimit) {
    return InvalidArgument("rows_max " + std::to_string(options.rows_max) + " is not from 1 to " +
                           std::to_string(kRowsMaxLimit));
  }
  RP_ASSIGN(ModelWeights weights, ModelWeights::Load(geometry, checkpoint, engram_map));
  const uint32_t threads =
      options.threads != 0 ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  return std::unique_ptr<CpuEngine>(
      new CpuEngine(geometry, std::move(weights), *kernels, threads, options.rows_max));
}

CpuEngine::CpuEngine(const ModelGeometry& geometry, ModelWeights weights, const Kernels& kernels,
                     uint32_t threads, uint32_t rows_max)
    : geometry_(geometry),
      weights_(std::move(weights)),
      windows_(LiveWindowLayout::For(geometry_)),
      machine_(geometry_, weights_, windows_, kernels, threads),
      rope_(geometry_.config),
      backend_(std::string("cpu/") + kernels.name),
      rows_max_(rows_max) {}

// ---- A call ------------------------------------------------------------------------------------

void CpuEngine::Begin(std::span<const Segment> batch) {
  uint32_t rows = 0;
  step_.parts.clear();
  for (const Segment& segment : batch) {
    const auto count = static_cast<uint32_t>(segment.tokens.size()) - segment.first;
    step_.parts.push_back({.segment = &segment,
                           .row = rows,
                           .rows = count,
                           .first = segment.first,
                           .windows_from = segment.encoder_from});
    rows += count;
  }
  step_.Resize(geometry_, rows);
  for (const Step::Part& part : step_.parts) {
    for (uint32_t row = 0; row < part.rows; ++row) {
      const uint32_t position = part.first + row;
      const Segment& segment = *part.segment;
      step_.positions[part.row + row] = position;
      step_.tokens[part.row + row] = segment.tokens[position];
      step_.image[part.row + row] =
          segment.image_marks.empty() ? uint8_t{0} : segment.image_marks[position];
    }
  }
  step_.taps_taken = 0;
}

void CpuEngine::TakeTap() {
  const ModelConfig& c = geometry_.config;
  const size_t hidden = c.hidden_size, targets = c.draft_target_layers.size();
  const size_t tap = step_.taps_taken++;
  machine_.ForRows(step_.rows, 32, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      const float* x = &step_.stream[row * c.hc_mult * hidden];
      float* out = &step_.taps[(row * targets + tap) * hidden];
      for (size_t i = 0; i < hidden; ++i) {
        out[i] = ((x[i] + x[hidden + i]) + x[2 * hidden + i] + x[3 * hidden + i]) * 0.25f;
      }
      machine_.kernels.round_bf16(out, hidden, out);
    }
  });
}

void CpuEngine::Layer(uint32_t layer, bool write_global) {
  const LayerWeights& weights = weights_.layers[layer];
  const LayerPlan& plan = geometry_.layers[layer];
  if (weights.engram.has_value()) AddEngram(machine_, *weights.engram, step_);
  if (plan.draft_tap && weights_.draft.has_value()) TakeTap();

  Floats pre_next;
  Mix(machine_, weights.hc_attn, step_, &pre_next);
  CollapseAndNorm(machine_, weights.attn_norm, step_);
  Project(machine_, layer, step_);
  if (plan.mode == LayerMode::kFull && write_global) {
    counters_.global_entries += WriteGlobal(machine_, rope_, layer, step_);
  }
  if (weights.attn.indexer.has_value()) Select(machine_, layer, step_);
  Attend(machine_, layer, step_);
  WriteWindows(machine_, layer, step_);
  ProjectOut(machine_, layer, step_);
  UpdateStream(machine_, step_);
  std::swap(step_.pre, pre_next);

  RunFeedForward(machine_, layer, step_);
}

// The decoder's global KV is a function of the encoder's output alone, and is written for every
// row: also for those that never enter the decoder.
void CpuEngine::WriteDecoderSource() {
  const uint32_t layer = geometry_.encoder_layers;
  CollapseAndNorm(machine_, weights_.layers[layer].attn_norm, step_);
  counters_.global_entries += WriteGlobal(machine_, rope_, layer, step_);
}

void CpuEngine::EnterDecoder() {
  std::vector<uint32_t> drops;
  for (Step::Part& part : step_.parts) {
    drops.push_back(part.segment->decoder_first - part.first);
    part.windows_from = part.segment->decoder_from;
  }
  step_.DropRows(geometry_, drops);
}

void CpuEngine::Logits(std::span<LogitRow> wanted) {
  const ModelConfig& c = geometry_.config;
  const size_t hidden = c.hidden_size;
  std::vector<size_t> rows;
  for (const Step::Part& part : step_.parts) {
    const uint32_t skip = part.segment->logits_from - part.first;
    for (uint32_t row = skip; row < part.rows; ++row) rows.push_back(part.row + row);
  }
  Floats final_rows(rows.size() * hidden), logits(rows.size() * c.vocab_size);
  const auto count = static_cast<uint32_t>(rows.size());
  machine_.ForRows(count, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t i = first; i < end; ++i) {
      float* y = &final_rows[i * hidden];
      machine_.kernels.mhc_collapse(&step_.stream[rows[i] * c.hc_mult * hidden],
                                    &step_.pre[rows[i] * c.hc_mult], hidden, y);
      machine_.kernels.rms_norm(y, weights_.norm.data(), hidden, static_cast<float>(c.rms_norm_eps),
                                y);
    }
  });
  machine_.Multiply({.matrix = &weights_.head,
                     .x = final_rows.data(),
                     .x_stride = hidden,
                     .y = logits.data(),
                     .y_stride = c.vocab_size,
                     .rows = count,
                     .round_bf16 = false});
  machine_.pool.Run(count, [&](uint32_t i, uint32_t) {
    LogitRow& row = wanted[i];
    const std::span<const float> own(&logits[size_t{i} * c.vocab_size], c.vocab_size);
    if (row.logits != nullptr) std::copy(own.begin(), own.end(), row.logits);
    if (row.choose) row.token = ChooseToken(row.draw, own);
  });
}

absl::Status CpuEngine::ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) {
  RP_TRY(CheckForward(*this, batch, rows));
  Begin(batch);
  if (step_.rows == 0) return absl::OkStatus();
  for (const Step::Part& part : step_.parts) {
    counters_.encoder_rows += part.rows;
    const uint32_t from = std::max(part.segment->write_from, part.first);
    counters_.replayed_rows += std::min(from - part.first, part.rows);
  }
  EmbedRows(machine_, rope_, step_);
  for (uint32_t layer = 0; layer < geometry_.encoder_layers; ++layer) Layer(layer, true);
  WriteDecoderSource();
  EnterDecoder();
  counters_.decoder_rows += step_.rows;
  if (step_.rows == 0) return absl::OkStatus();
  for (uint32_t layer = geometry_.encoder_layers; layer < geometry_.config.layer_count; ++layer) {
    Layer(layer, false);
  }
  if (weights_.draft.has_value()) WriteDraftContext(machine_, step_);
  if (!rows.empty()) Logits(rows);
  return absl::OkStatus();
}

absl::Status CpuEngine::RunLayer(uint32_t layer, const Segment& segment, Floats* stream,
                                 Floats* pre) {
  RP_TRY(CheckSegments(*this, {&segment, 1}).status());
  const std::vector<int32_t> selected = step_.selected;
  const bool same_rows = step_.rows == segment.tokens.size() - segment.first;
  Begin({&segment, 1});
  if (same_rows) step_.selected = selected;
  if (stream->size() != step_.stream.size() || pre->size() != step_.pre.size()) {
    return InvalidArgument("stream or pre do not have the segment's rows");
  }
  if (layer >= geometry_.encoder_layers) step_.parts[0].windows_from = segment.decoder_from;
  EmbedRows(machine_, rope_, step_);
  step_.stream = *stream;
  step_.pre = *pre;
  Layer(layer, true);
  *stream = step_.stream;
  *pre = step_.pre;
  return absl::OkStatus();
}

absl::Status CpuEngine::Draft(std::span<const DraftRequest> requests,
                              std::span<DraftResult> results) {
  RP_TRY(CheckDraftRequests(*this, requests, results));
  if (requests.empty()) return absl::OkStatus();
  ++counters_.draft_steps;
  RunDraft(machine_, rope_, requests, results);
  return absl::OkStatus();
}

}  // namespace cpu

absl::StatusOr<std::unique_ptr<Engine>> MakeCpuEngine(const ModelGeometry& geometry,
                                                      const Checkpoint& checkpoint,
                                                      std::vector<uint32_t> engram_map,
                                                      const CpuEngineOptions& options) {
  RP_ASSIGN(std::unique_ptr<cpu::CpuEngine> engine,
            cpu::CpuEngine::Make(geometry, checkpoint, std::move(engram_map), options));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace reprise::engine
