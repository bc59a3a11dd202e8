// The mixture of experts (model-facts section 8).
#include <cmath>
#include <utility>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

// One row at one expert. Slots are ordered by expert, and by row within an expert.
struct Slot {
  uint32_t row = 0;
  uint32_t expert = 0;
  float weight = 1;
};

float Affinity(float logit) {
  const double x = logit;
  return static_cast<float>(std::sqrt(x > 20 ? x : std::log1p(std::exp(x))));
}

// The experts of one row, best first, into slots[0, count); the bias decides the choice and not the
// weight.
void Route(const Floats& bias, const float* logits, uint32_t count, float scaling, uint32_t row,
           Slot* slots) {
  const auto experts = static_cast<uint32_t>(bias.size());
  Floats affinity(experts);
  for (uint32_t e = 0; e < experts; ++e) affinity[e] = Affinity(logits[e]);
  std::vector<uint32_t> order(experts);
  for (uint32_t e = 0; e < experts; ++e) order[e] = e;
  std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](uint32_t a, uint32_t b) {
    const float x = affinity[a] + bias[a], y = affinity[b] + bias[b];
    return x > y || (x == y && a < b);
  });
  float sum = 0;
  for (uint32_t i = 0; i < count; ++i) sum += affinity[order[i]];
  for (uint32_t i = 0; i < count; ++i) {
    slots[i] = {row, order[i], affinity[order[i]] / (sum + 1e-20f) * scaling};
  }
}

class ExpertMixture {
 public:
  ExpertMixture(Machine& machine, uint32_t layer, Step& step)
      : machine_(machine),
        config_(machine.config),
        weights_(machine.weights.layers[layer].moe),
        chosen_(machine.geometry.is_draft(layer) ? config_.draft_experts_per_token
                                                 : config_.experts_per_token),
        step_(step) {}

  void Run() {
    Choose();
    Gather();
    UpProjections();
    DownProjection();
    Sum();
  }

 private:
  // Buffers keep their size from layer to layer: fresh memory costs more than what is done in it.
  static float* Room(Floats* buffer, size_t count) {
    if (buffer->size() < count) buffer->resize(count);
    return buffer->data();
  }
  uint32_t routed() const { return static_cast<uint32_t>(weights_.bias.size()); }

  void Choose() {
    Floats logits(size_t{step_.rows} * routed());
    machine_.Multiply({.matrix = &weights_.gate,
                       .x = step_.x.data(),
                       .x_stride = config_.hidden_size,
                       .y = logits.data(),
                       .y_stride = routed(),
                       .rows = step_.rows,
                       .round_bf16 = false});
    const uint32_t of_row = chosen_ + 1;  // The shared expert is the last.
    std::vector<Slot> by_row(size_t{step_.rows} * of_row);
    machine_.ForRows(step_.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
      for (uint32_t row = first; row < end; ++row) {
        Slot* slots = &by_row[size_t{row} * of_row];
        Route(step_.image[row] != 0 ? weights_.image_bias : weights_.bias,
              &logits[size_t{row} * routed()], chosen_, static_cast<float>(config_.routed_scaling),
              row, slots);
        slots[chosen_] = {row, routed(), 1.0f};
      }
    });
    std::vector<uint32_t> places(routed() + 2);  // First slot of each expert, then the next free.
    for (const Slot& slot : by_row) ++places[slot.expert + 1];
    for (size_t e = 1; e < places.size(); ++e) places[e] += places[e - 1];
    slots_.resize(by_row.size());
    for (const Slot& slot : by_row) slots_[places[slot.expert]++] = slot;
  }

  void Gather() {
    const size_t hidden = config_.hidden_size;
    const auto count = static_cast<uint32_t>(slots_.size());
    input_ = Room(&step_.expert_input, slots_.size() * hidden);
    machine_.ForRows(count, 64, [&](uint32_t first, uint32_t end, uint32_t) {
      for (size_t i = first; i < end; ++i) {
        std::copy_n(&step_.x_round[slots_[i].row * hidden], hidden, &input_[i * hidden]);
      }
    });
  }

  // One product per expert that has slots.
  template <typename Add>
  void ForExperts(Add&& add) {
    for (size_t first = 0; first < slots_.size();) {
      size_t end = first;
      while (end < slots_.size() && slots_[end].expert == slots_[first].expert) ++end;
      add(weights_.experts[slots_[first].expert], first, static_cast<uint32_t>(end - first));
      first = end;
    }
  }

  void UpProjections() {
    const size_t hidden = config_.hidden_size, inner = config_.expert_dim;
    float* gate = Room(&step_.expert_gate, slots_.size() * inner);
    float* up = Room(&step_.expert_up, slots_.size() * inner);
    std::vector<Machine::Product> products;
    ForExperts([&](const ExpertWeights& expert, size_t first, uint32_t rows) {
      Machine::Product product{.matrix = &expert.w1,
                               .x = &input_[first * hidden],
                               .x_stride = hidden,
                               .y = &gate[first * inner],
                               .y_stride = inner,
                               .rows = rows};
      products.push_back(product);
      product.matrix = &expert.w3;
      product.y = &up[first * inner];
      products.push_back(product);
    });
    machine_.Multiply(products);
    inner_ = Room(&step_.expert_inner, slots_.size() * inner);
    const auto limit = static_cast<float>(config_.swiglu_limit);
    machine_.ForRows(static_cast<uint32_t>(slots_.size()), 32,
                     [&](uint32_t first, uint32_t end, uint32_t) {
                       for (size_t i = first; i < end; ++i) {
                         float* z = &inner_[i * inner];
                         machine_.kernels.swiglu(&gate[i * inner], &up[i * inner], slots_[i].weight,
                                                 limit, inner, z);
                         machine_.kernels.round_a(z, inner, z);
                       }
                     });
  }

  void DownProjection() {
    const size_t hidden = config_.hidden_size, inner = config_.expert_dim;
    output_ = Room(&step_.expert_output, slots_.size() * hidden);
    std::vector<Machine::Product> products;
    ForExperts([&](const ExpertWeights& expert, size_t first, uint32_t rows) {
      products.push_back({.matrix = &expert.w2,
                          .x = &inner_[first * inner],
                          .x_stride = inner,
                          .y = &output_[first * hidden],
                          .y_stride = hidden,
                          .rows = rows});
    });
    machine_.Multiply(products);
  }

  // Routed experts in ascending order, then the shared one, in float; rounded once.
  void Sum() {
    const size_t hidden = config_.hidden_size;
    const uint32_t of_row = chosen_ + 1;
    std::vector<uint32_t> slots_of_row(size_t{step_.rows} * of_row), counts(step_.rows);
    for (uint32_t i = 0; i < slots_.size(); ++i) {
      const uint32_t row = slots_[i].row;
      slots_of_row[size_t{row} * of_row + counts[row]++] = i;
    }
    machine_.ForRows(step_.rows, 32, [&](uint32_t first, uint32_t end, uint32_t) {
      for (size_t row = first; row < end; ++row) {
        float* h = &step_.h[row * hidden];
        std::fill_n(h, hidden, 0.0f);
        for (size_t i = row * of_row; i < (row + 1) * of_row; ++i) {
          machine_.kernels.add(&output_[slots_of_row[i] * hidden], hidden, h);
        }
        machine_.kernels.round_bf16(h, hidden, h);
      }
    });
  }

  Machine& machine_;
  const ModelConfig& config_;
  const MoeWeights& weights_;
  uint32_t chosen_;
  Step& step_;
  std::vector<Slot> slots_;  // By expert, and by row within an expert.
  // [slots][hidden or expert_dim], in the step's buffers.
  float* input_ = nullptr;
  float* inner_ = nullptr;
  float* output_ = nullptr;
};

}  // namespace

void FeedForward(Machine& machine, uint32_t layer, Step& step) {
  ExpertMixture(machine, layer, step).Run();
}

void RunFeedForward(Machine& machine, uint32_t layer, Step& step) {
  const LayerWeights& weights = machine.weights.layers[layer];
  Floats pre_next;
  Mix(machine, weights.hc_ffn, step, &pre_next);
  CollapseAndNorm(machine, weights.ffn_norm, step);
  FeedForward(machine, layer, step);
  UpdateStream(machine, step);
  std::swap(step.pre, pre_next);
}

}  // namespace reprise::engine::cpu
