// DSpark: the draft stages' windows, and drafts from them (model-facts section 10).
#include <cmath>

#include "gpu/cuda/cuda_engine.h"
#include "gpu/cuda/sampling.h"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {

absl::Status CudaEngine::WriteDraftContext(const HalfStep& half) {
  const DraftDevice& weights = *weights_.draft;
  const uint32_t rows = half.view.rows;
  const uint64_t inputs = config_.draft_target_layers.size() * config_.hidden_size;
  RP_CUDA_TRY(LaunchRoundA(Bits(work_.taps), rows * inputs, Bits(work_.taps), stream_.get()));
  RP_TRY(Linear(weights.main_proj, work_.taps, work_.h, rows));
  RP_CUDA_TRY(LaunchNorm(Bits(work_.h), config_.hidden_size, Floats(weights.main_norm),
                         config_.hidden_size, rows, shape_.eps, true, Bits(work_.x_round),
                         config_.hidden_size, stream_.get()));
  for (uint32_t stage = 0; stage < config_.draft_stages; ++stage) {
    const uint32_t layer = config_.layer_count + stage;
    const WindowView windows = WindowsOf(layer);
    RP_TRY(Linear(weights_.layers[layer].wq_kv, work_.x_round, work_.projected, rows));
    RP_CUDA_TRY(LaunchProjected({.step = half.view,
                                 .rotation = RotationOf(layer),
                                 .projected = Bits(work_.projected),
                                 .low = config_.q_lora_rank,
                                 .dim = config_.head_dim,
                                 .kv_norm = Floats(weights_.layers[layer].kv_norm),
                                 .eps = shape_.eps,
                                 .codes = work_.kv_codes.as<uint8_t>(),
                                 .scales = work_.kv_scales.as<uint8_t>(),
                                 .ring = &windows},
                                stream_.get()));
  }
  return absl::OkStatus();
}

// ---- Drafting ----------------------------------------------------------------------------------

absl::Status CudaEngine::Draft(std::span<const DraftRequest> requests,
                               std::span<DraftResult> results) {
  RP_TRY(CheckDraftRequests(*this, requests, results));
  if (requests.empty()) return absl::OkStatus();
  cudaGraphExec_t graph = nullptr;
  RP_TRY(Meet(PrepareDrafts(requests, &graph)));
  ++counters_.draft_steps;
  RP_TRY(graph == nullptr ? RunDrafts() : graphs_.Launch(graph, stream_.get()));
  return TakeDrafts(results);
}

absl::Status CudaEngine::PrepareDrafts(std::span<const DraftRequest> requests,
                                       cudaGraphExec_t* graph) {
  if (requests.size() * config_.draft_block > rows_max_) {
    return InvalidArgument("so many drafts need " +
                           std::to_string(requests.size() * config_.draft_block) +
                           " rows; at most " + std::to_string(rows_max_) + " fit");
  }
  const ModelConfig& c = config_;
  // The sampled token of each, then noise.
  std::vector<TokenId> ids(requests.size() * c.draft_block, c.draft_noise_token);
  std::vector<Segment> segments(requests.size());
  std::vector<StepUpload::Rows> rows;
  for (size_t r = 0; r < requests.size(); ++r) {
    const uint32_t first = requests[r].length, end = first + c.draft_block;
    ids[r * c.draft_block] = requests[r].token;
    segments[r].memory = requests[r].memory;
    rows.push_back({.segment = &segments[r],
                    .first = first,
                    .end = end,
                    .windows_from = requests[r].decoder_from,
                    .write_from = end,
                    .ids = std::span(ids).subspan(r * c.draft_block, c.draft_block)});
  }
  const float* frequencies[2] = {Floats(work_.frequencies[0]), Floats(work_.frequencies[1])};
  const auto count = static_cast<uint32_t>(requests.size());
  RP_TRY(step_.Begin(rows, {}, {.draws = count * c.draft_block, .first_tokens = count},
                     c.rope_dim / 2, frequencies, stream_.get()));
  for (uint32_t r = 0; r < count; ++r) {
    step_.first_tokens_host[r] = static_cast<uint32_t>(requests[r].token);
    for (uint32_t k = 0; k < c.draft_block; ++k) {
      step_.draws_host[k * count + r] =
          requests[r].draws.empty() ? TokenDraw() : requests[r].draws[k];
    }
  }
  RP_TRY(step_.Copy(stream_.get()));
  return FindGraph(
      StepKind::kDrafts, [this] { return RunDrafts(); }, graph);
}

absl::Status CudaEngine::RunDrafts() {
  RP_TRY(RunDraftStages());
  RP_TRY(JoinLogits(step_.encoder.view.rows));
  return QueueDraftChoices();
}

absl::Status CudaEngine::RunDraftStages() {
  const ModelConfig& c = config_;
  RP_TRY(Embed());
  const HalfStep& half = step_.encoder;
  for (uint32_t stage = 0; stage < c.draft_stages; ++stage) {
    const uint32_t layer = c.layer_count + stage;
    const LayerDevice& weights = weights_.layers[layer];
    RP_TRY(Mix(weights.hc_attn, weights.attn_norm, half.view.rows));
    RP_TRY(Project(layer, half, true));
    RP_TRY(Attend(layer, half, true));
    RP_TRY(ProjectOut(layer, half.view.rows));
    RP_TRY(FeedForward(layer, half));
  }
  RP_TRY(Update(half.view.rows));
  RP_CUDA_TRY(LaunchCollapse(shape_, half.view.rows, Bits(work_.stream[now_]),
                             Floats(work_.pre[pre_]), Floats(weights_.draft->norm), Bits(work_.y),
                             Bits(work_.x), stream_.get()));
  return Linear(weights_.head, work_.x, work_.logits, half.view.rows, LinearOutput::kFloat);
}

// The sequential part: each draft corrects the logits of the next by a low-rank bigram. Tokens lie
// [drafts][requests], and those of a draft say which embeddings the next one's product reads.
absl::Status CudaEngine::QueueDraftChoices() {
  const ModelConfig& c = config_;
  const DraftDevice& weights = *weights_.draft;
  const uint32_t count = step_.encoder.view.parts;
  const uint32_t* previous = step_.first_tokens;
  for (uint32_t k = 0; k < c.draft_block; ++k) {
    uint32_t* const tokens = work_.chosen.as<uint32_t>() + k * count;
    RP_CUDA_TRY(LaunchLinear({.matrix = weights.markov_head.view,
                              .output = LinearOutput::kFloat,
                              .x = weights.markov_embed.data(),
                              .x_stride = c.draft_markov_rank,
                              .y = work_.corrections.data(),
                              .y_stride = c.vocab_size,
                              .rows = count,
                              .gather = previous},
                             stream_.get()));
    RP_CUDA_TRY(LaunchChoose({.logits = Floats(WholeLogits()) + uint64_t{k} * c.vocab_size,
                              .stride = uint64_t{c.draft_block} * c.vocab_size,
                              .corrections = Floats(work_.corrections),
                              .rows = count,
                              .vocab = c.vocab_size,
                              .draws = step_.draws + k * count,
                              .tokens = tokens},
                             stream_.get()));
    previous = tokens;
  }
  const auto width = static_cast<uint32_t>(AlignUp(c.hidden_size + c.draft_markov_rank, 64));
  RP_CUDA_TRY(LaunchDraftInputs({.y = Bits(work_.y),
                                 .requests = count,
                                 .drafts = c.draft_block,
                                 .hidden = c.hidden_size,
                                 .embed = Bits(weights.markov_embed),
                                 .first = step_.first_tokens,
                                 .tokens = work_.chosen.as<uint32_t>(),
                                 .rank = c.draft_markov_rank,
                                 .inputs = Bits(work_.draft_inputs),
                                 .width = width},
                                stream_.get()));
  return CudaStatus(LaunchLinear({.matrix = weights.confidence.view,
                                  .output = LinearOutput::kFloat,
                                  .x = work_.draft_inputs.data(),
                                  .x_stride = width,
                                  .y = Confidences(),
                                  .y_stride = 1,
                                  .rows = count * c.draft_block},
                                 stream_.get()),
                    "confidences");
}

absl::Status CudaEngine::TakeDrafts(std::span<DraftResult> results) {
  RP_CUDA_TRY(cudaMemcpyAsync(chosen_.data(), work_.chosen.data(), chosen_.bytes(),
                              cudaMemcpyDeviceToHost, stream_.get()));
  RP_TRY(stream_.Wait());
  const auto* tokens = chosen_.as<TokenId>();
  const float* confidences = chosen_.as<float>() + (Confidences() - Floats(work_.chosen));
  for (size_t r = 0; r < results.size(); ++r) {
    results[r] = {};
    for (uint32_t k = 0; k < config_.draft_block; ++k) {
      const size_t at = k * results.size() + r;
      results[r].tokens.push_back(tokens[at]);
      results[r].confidences.push_back(
          static_cast<float>(1.0 / (1.0 + std::exp(-double{confidences[at]}))));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::engine::cuda
