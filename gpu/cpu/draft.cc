// DSpark: the draft stages' windows, and drafts from them (model-facts section 10).
#include "gpu/cpu/draft.h"

#include <cmath>

#include "gpu/engine/sampler.h"

namespace reprise::engine::cpu {

void WriteDraftContext(Machine& machine, Step& step) {
  const ModelConfig& c = machine.config;
  const DraftWeights& weights = *machine.weights.draft;
  const size_t hidden = c.hidden_size, inputs = c.draft_target_layers.size() * hidden;
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      machine.kernels.round_a(&step.taps[row * inputs], inputs, &step.taps[row * inputs]);
    }
  });
  machine.Multiply({.matrix = &weights.main_proj,
                    .x = step.taps.data(),
                    .x_stride = inputs,
                    .y = step.x.data(),
                    .y_stride = hidden,
                    .rows = step.rows});
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      float* x = &step.x[row * hidden];
      machine.kernels.rms_norm(x, weights.main_norm.data(), hidden,
                               static_cast<float>(c.rms_norm_eps), x);
      machine.kernels.round_a(x, hidden, &step.x_round[row * hidden]);
    }
  });
  for (uint32_t stage = 0; stage < c.draft_stages; ++stage) {
    LocalKv(machine, c.layer_count + stage, step.x_round.data(), step);
    WriteWindows(machine, c.layer_count + stage, step);
  }
}

// ---- Drafting ----------------------------------------------------------------------------------

namespace {

// Every draft row of a request sees the same keys: the window up to the last verified position,
// then all draft rows, in both directions.
void AttendDrafts(Machine& machine, uint32_t layer, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t dim = c.head_dim, window = c.window;
  Floats past(step.parts.size() * window * dim);
  machine.pool.Run(static_cast<uint32_t>(step.parts.size()), [&](uint32_t index, uint32_t) {
    const Step::Part& part = step.parts[index];
    const uint32_t from = std::max(part.windows_from, part.first - std::min(part.first, c.window));
    for (uint32_t position = from; position < part.first; ++position) {
      std::byte* state = part.segment->memory.window;
      machine.kernels.dequantise_a(machine.windows.codes(state, layer, position),
                                   machine.windows.scales(state, layer, position), dim,
                                   &past[(index * window + position - from) * dim]);
    }
  });
  const uint32_t rows_of_part = c.draft_block;
  machine.pool.Run(step.rows, [&](uint32_t row, uint32_t worker) {
    const uint32_t index = row / rows_of_part;
    const Step::Part& part = step.parts[index];
    const uint32_t from = std::max(part.windows_from, part.first - std::min(part.first, c.window));
    const uint32_t past_count = part.first - from;
    float* top = machine.Scratch(worker, size_t{c.heads} * (dim + 2));
    float* total = top + c.heads;
    float* sum = total + c.heads;
    std::fill_n(top, c.heads, -1e30f);
    std::fill_n(total, c.heads * (dim + 1), 0.0f);
    const float* keys[kAttentionBlock];
    const size_t at = size_t{row} * c.heads * dim;
    AttentionCall call{.query = &step.query[at],
                       .heads = c.heads,
                       .dim = c.head_dim,
                       .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim))),
                       .keys = keys,
                       .top = top,
                       .total = total,
                       .sum = sum};
    for (uint32_t key = 0; key < past_count + rows_of_part; ++key) {
      keys[call.count++] = key < past_count ? &past[(index * window + key) * dim]
                                            : &step.kv[(part.row + size_t{key} - past_count) * dim];
      if (call.count < kAttentionBlock) continue;
      machine.kernels.attention_block(call);
      call.count = 0;
    }
    machine.kernels.attention_block(call);
    machine.kernels.attention_end(call, machine.weights.layers[layer].attn.sinks.data(),
                                  &step.attended[at]);
  });
}

void RunStage(Machine& machine, uint32_t layer, Step& step) {
  const LayerWeights& weights = machine.weights.layers[layer];
  Floats pre_next;
  Mix(machine, weights.hc_attn, step, &pre_next);
  CollapseAndNorm(machine, weights.attn_norm, step);
  Project(machine, layer, step);
  AttendDrafts(machine, layer, step);
  ProjectOut(machine, layer, step);
  UpdateStream(machine, step);
  std::swap(step.pre, pre_next);
  RunFeedForward(machine, layer, step);
}

// The sequential part: each draft corrects the logits of the next by a low-rank bigram.
class MarkovHead {
 public:
  MarkovHead(Machine& machine, const Floats& hidden, const Floats& logits, uint32_t requests)
      : machine_(machine),
        config_(machine.config),
        weights_(*machine.weights.draft),
        hidden_(hidden),
        logits_(logits),
        requests_(requests) {}

  void Run(std::span<const DraftRequest> requests, std::span<DraftResult> results) {
    const size_t rank = config_.draft_markov_rank, vocab = config_.vocab_size;
    const size_t width = config_.hidden_size + rank;
    std::vector<TokenId> previous;
    for (const DraftRequest& request : requests) previous.push_back(request.token);
    Floats inputs(requests_ * width), corrections(requests_ * vocab), confidence(requests_);
    for (uint32_t k = 0; k < config_.draft_block; ++k) {
      for (size_t r = 0; r < requests_; ++r) {
        float* input = &inputs[r * width];
        const size_t row = r * config_.draft_block + k;
        std::copy_n(&hidden_[row * config_.hidden_size], config_.hidden_size, input);
        std::copy_n(&weights_.markov_embed[static_cast<size_t>(previous[r]) * rank], rank,
                    input + config_.hidden_size);
      }
      const Machine::Product products[] = {{.matrix = &weights_.markov_head,
                                            .x = inputs.data() + config_.hidden_size,
                                            .x_stride = width,
                                            .y = corrections.data(),
                                            .y_stride = vocab,
                                            .rows = requests_,
                                            .round_bf16 = false},
                                           {.matrix = &weights_.confidence,
                                            .x = inputs.data(),
                                            .x_stride = width,
                                            .y = confidence.data(),
                                            .y_stride = 1,
                                            .rows = requests_,
                                            .round_bf16 = false}};
      machine_.Multiply(products);
      for (size_t r = 0; r < requests_; ++r) {
        float* corrected = &corrections[r * vocab];
        const float* base = &logits_[(r * config_.draft_block + k) * vocab];
        for (size_t i = 0; i < vocab; ++i) corrected[i] += base[i];
        const std::span<const float> row(corrected, vocab);
        const auto& draws = requests[r].draws;
        previous[r] = ChooseToken(draws.empty() ? TokenDraw{} : draws[k], row);
        results[r].tokens.push_back(previous[r]);
        results[r].confidences.push_back(
            static_cast<float>(1.0 / (1.0 + std::exp(-double{confidence[r]}))));
      }
    }
  }

 private:
  Machine& machine_;
  const ModelConfig& config_;
  const DraftWeights& weights_;
  const Floats& hidden_;
  const Floats& logits_;
  uint32_t requests_;
};

}  // namespace

void RunDraft(Machine& machine, const Rope& rope, std::span<const DraftRequest> requests,
              std::span<DraftResult> results) {
  const ModelConfig& c = machine.config;
  const auto count = static_cast<uint32_t>(requests.size());
  std::vector<Segment> segments(count);
  Step step;
  step.Resize(machine.geometry, count * c.draft_block);
  for (uint32_t r = 0; r < count; ++r) {
    segments[r].memory = requests[r].memory;
    step.parts.push_back({.segment = &segments[r],
                          .row = r * c.draft_block,
                          .rows = c.draft_block,
                          .first = requests[r].length,
                          .windows_from = requests[r].decoder_from});
    for (uint32_t k = 0; k < c.draft_block; ++k) {
      const size_t row = r * c.draft_block + k;
      step.positions[row] = requests[r].length + k;
      step.tokens[row] = k == 0 ? requests[r].token : c.draft_noise_token;
    }
  }
  EmbedRows(machine, rope, step);
  for (uint32_t stage = 0; stage < c.draft_stages; ++stage) {
    RunStage(machine, c.layer_count + stage, step);
  }
  const size_t hidden = c.hidden_size;
  Floats collapsed(step.rows * hidden), logits(size_t{step.rows} * c.vocab_size);
  for (size_t row = 0; row < step.rows; ++row) {
    float* y = &collapsed[row * hidden];
    machine.kernels.mhc_collapse(&step.stream[row * c.hc_mult * hidden], &step.pre[row * c.hc_mult],
                                 hidden, y);
    machine.kernels.rms_norm(y, machine.weights.draft->norm.data(), hidden,
                             static_cast<float>(c.rms_norm_eps), &step.x[row * hidden]);
  }
  machine.Multiply({.matrix = &machine.weights.head,
                    .x = step.x.data(),
                    .x_stride = hidden,
                    .y = logits.data(),
                    .y_stride = c.vocab_size,
                    .rows = step.rows,
                    .round_bf16 = false});
  for (DraftResult& result : results) result = {};
  MarkovHead(machine, collapsed, logits, count).Run(requests, results);
}

}  // namespace reprise::engine::cpu
