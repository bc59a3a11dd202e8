// DSpark: the draft stages' windows, and drafts from them (model-facts section 10).
#include <cmath>
#include <utility>

#include "gpu/cuda/cuda_engine.h"
#include "gpu/engine/sampler.h"
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

absl::Status CudaEngine::Draft(std::span<const DraftRequest> requests,
                               std::span<DraftResult> results) {
  RP_TRY(CheckDraftRequests(*this, requests, results));
  if (requests.empty()) return absl::OkStatus();
  std::vector<float> base(requests.size() * config_.draft_block * config_.vocab_size);
  RP_TRY(DraftLogits(requests, base));
  return ChooseDrafts(requests, base, results);
}

absl::Status CudaEngine::PrepareDrafts(std::span<const DraftRequest> requests) {
  if (requests.size() * config_.draft_block > rows_max_) {
    return InvalidArgument("so many drafts need " +
                           std::to_string(requests.size() * config_.draft_block) +
                           " rows; at most " + std::to_string(rows_max_) + " fit");
  }
  const ModelConfig& c = config_;
  // Rows of ids of their own: the sampled token, then noise.
  std::vector<std::vector<TokenId>> tokens;
  std::vector<Segment> segments(requests.size());
  std::vector<StepUpload::Rows> rows;
  for (size_t r = 0; r < requests.size(); ++r) {
    const uint32_t first = requests[r].length, end = first + c.draft_block;
    tokens.emplace_back(end, c.draft_noise_token);
    tokens.back()[first] = requests[r].token;
    segments[r].memory = requests[r].memory;
    segments[r].tokens = tokens.back();
    rows.push_back({.segment = &segments[r],
                    .first = first,
                    .end = end,
                    .windows_from = requests[r].decoder_from,
                    .write_from = end});
  }
  const float* frequencies[2] = {Floats(work_.frequencies[0]), Floats(work_.frequencies[1])};
  RP_TRY(step_.Begin(rows, {}, 0, c.rope_dim / 2, frequencies, stream_.get()));
  return step_.Copy(stream_.get());
}

absl::Status CudaEngine::DraftLogits(std::span<const DraftRequest> requests,
                                     std::span<float> base) {
  RP_TRY(Meet(PrepareDrafts(requests)));
  ++counters_.draft_steps;
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
  RP_TRY(Linear(weights_.head, work_.x, work_.logits, half.view.rows, LinearOutput::kFloat));
  RP_TRY(CopyLogits(half.view.rows, base.data()));
  return stream_.Wait();
}

// The sequential part: each draft corrects the logits of the next by a low-rank bigram.
absl::Status CudaEngine::ChooseDrafts(std::span<const DraftRequest> requests,
                                      std::span<const float> base, std::span<DraftResult> results) {
  for (DraftResult& result : results) result = {};
  const ModelConfig& c = config_;
  const DraftDevice& weights = *weights_.draft;
  const auto count = static_cast<uint32_t>(requests.size());
  const size_t vocab = c.vocab_size, hidden = c.hidden_size, rank = c.draft_markov_rank;
  const size_t width = AlignUp(hidden + rank, 64), embed_width = AlignUp(rank, 64);
  std::vector<float> corrections(count * vocab), confidence(count);
  std::vector<TokenId> previous;
  for (const DraftRequest& request : requests) previous.push_back(request.token);
  Bf16Bits* inputs = Bits(work_.markov);
  Bf16Bits* embeds = inputs + count * width;
  for (uint32_t k = 0; k < c.draft_block; ++k) {
    for (size_t r = 0; r < count; ++r) {
      const Bf16Bits* y = Bits(work_.y) + (r * c.draft_block + k) * hidden;
      const Bf16Bits* embed = Bits(weights.markov_embed) + static_cast<size_t>(previous[r]) * rank;
      const std::pair<Bf16Bits*, std::pair<const Bf16Bits*, size_t>> copies[] = {
          {inputs + r * width, {y, hidden}},
          {inputs + r * width + hidden, {embed, rank}},
          {embeds + r * embed_width, {embed, rank}}};
      for (const auto& [to, from] : copies) {
        RP_CUDA_TRY(cudaMemcpyAsync(to, from.first, from.second * 2, cudaMemcpyDeviceToDevice,
                                    stream_.get()));
      }
    }
    RP_CUDA_TRY(LaunchLinear({.matrix = weights.markov_head.view,
                              .output = LinearOutput::kFloat,
                              .x = embeds,
                              .x_stride = embed_width,
                              .y = work_.logits.data(),
                              .y_stride = vocab,
                              .rows = count},
                             stream_.get()));
    RP_CUDA_TRY(LaunchLinear({.matrix = weights.confidence.view,
                              .output = LinearOutput::kFloat,
                              .x = inputs,
                              .x_stride = width,
                              .y = work_.partials.data(),
                              .y_stride = 1,
                              .rows = count},
                             stream_.get()));
    RP_CUDA_TRY(cudaMemcpyAsync(corrections.data(), work_.logits.data(), corrections.size() * 4,
                                cudaMemcpyDeviceToHost, stream_.get()));
    RP_CUDA_TRY(cudaMemcpyAsync(confidence.data(), work_.partials.data(), count * 4,
                                cudaMemcpyDeviceToHost, stream_.get()));
    RP_TRY(stream_.Wait());
    for (size_t r = 0; r < count; ++r) {
      const std::span<float> row(&corrections[r * vocab], vocab);
      const float* logits = &base[(r * c.draft_block + k) * vocab];
      for (size_t i = 0; i < vocab; ++i) row[i] += logits[i];
      previous[r] = requests[r].choose ? requests[r].choose(k, row) : LikeliestToken(row);
      results[r].tokens.push_back(previous[r]);
      results[r].confidences.push_back(
          static_cast<float>(1.0 / (1.0 + std::exp(-double{confidence[r]}))));
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::engine::cuda
