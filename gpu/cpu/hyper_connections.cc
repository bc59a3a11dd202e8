// Single-pass manifold-constrained hyper-connections (model-facts section 7).
#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {

void Mix(Machine& machine, const MhcWeights& weights, Step& step, Floats* pre_next) {
  const ModelConfig& c = machine.config;
  const size_t stride = size_t{c.hc_mult} * c.hidden_size;
  machine.Multiply({.matrix = &weights.fn,
                    .x = step.stream.data(),
                    .x_stride = stride,
                    .y = step.mixes.data(),
                    .y_stride = kTileOutputs,
                    .rows = step.rows,
                    .round_bf16 = false});
  pre_next->resize(size_t{step.rows} * c.hc_mult);
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (uint32_t row = first; row < end; ++row) {
      step.inverse_rms[row] = machine.kernels.inverse_rms(&step.stream[row * stride], stride,
                                                          static_cast<float>(c.rms_norm_eps));
    }
    machine.kernels.mhc_split(
        &step.mixes[size_t{first} * kTileOutputs], kTileOutputs, &step.inverse_rms[first],
        end - first, weights.base.data(), weights.scale.data(), c.hc_sinkhorn_iters,
        static_cast<float>(c.hc_eps), pre_next->data() + size_t{first} * c.hc_mult,
        &step.post[size_t{first} * c.hc_mult], &step.comb[size_t{first} * c.hc_mult * c.hc_mult]);
  });
}

void CollapseAndNorm(Machine& machine, const Floats& norm, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t hidden = c.hidden_size;
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      float* x = &step.x[row * hidden];
      machine.kernels.mhc_collapse(&step.stream[row * c.hc_mult * hidden],
                                   &step.pre[row * c.hc_mult], hidden, x);
      machine.kernels.rms_norm(x, norm.data(), hidden, static_cast<float>(c.rms_norm_eps), x);
      machine.kernels.round_a(x, hidden, &step.x_round[row * hidden]);
    }
  });
}

void UpdateStream(Machine& machine, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t hidden = c.hidden_size;
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      machine.kernels.mhc_update(&step.h[row * hidden], &step.post[row * c.hc_mult],
                                 &step.comb[row * c.hc_mult * c.hc_mult], hidden,
                                 &step.stream[row * c.hc_mult * hidden]);
    }
  });
}

}  // namespace reprise::engine::cpu
