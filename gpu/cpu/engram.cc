// Engram: n-gram embeddings added to the stream through a gate (model-facts section 9).
#include <cmath>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

// The table rows of one token, decoded, end to end.
void Lookup(const Machine& machine, const EngramWeights& weights, std::span<const TokenId> recent,
            std::span<const uint8_t> marks, std::span<uint64_t> table_rows, float* out) {
  const uint32_t dim = machine.config.engram_head_dim;
  bool blocked[8] = {};
  for (size_t i = 0; i < marks.size(); ++i) blocked[i] = marks[i] != 0;
  weights.hash.Rows(recent, std::span<const bool>(blocked, marks.size()), table_rows);
  const auto* codes = reinterpret_cast<const uint8_t*>(weights.embed.bytes.data());
  const auto* scales = reinterpret_cast<const uint8_t*>(weights.embed_scale.bytes.data());
  for (size_t i = 0; i < table_rows.size(); ++i) {
    machine.kernels.dequantise_a(codes + table_rows[i] * dim, scales + table_rows[i] * (dim / 32),
                                 dim, out + i * dim);
  }
}

float Gate(const Machine& machine, const float* stream, const Floats& qk, const float* key) {
  const size_t hidden = machine.config.hidden_size;
  const auto eps = static_cast<float>(machine.config.rms_norm_eps);
  const Kernels& kernels = machine.kernels;
  const double dot = double{kernels.dot3(stream, qk.data(), key, hidden)} *
                     kernels.inverse_rms(stream, hidden, eps) *
                     kernels.inverse_rms(key, hidden, eps) / std::sqrt(static_cast<double>(hidden));
  const double root = std::copysign(std::sqrt(std::max(std::fabs(dot), 1e-6)), dot);
  return static_cast<float>(1.0 / (1.0 + std::exp(dot == 0.0 ? 0.0 : -root)));
}

}  // namespace

void AddEngram(Machine& machine, const EngramWeights& weights, Step& step) {
  const ModelConfig& c = machine.config;
  const size_t hidden = c.hidden_size;
  const uint32_t inputs = weights.wkv.inputs();
  const uint32_t outputs = weights.wkv.outputs();
  Floats embedded(size_t{step.rows} * inputs);
  for (const Step::Part& part : step.parts) {
    machine.ForRows(part.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
      std::vector<uint64_t> table_rows(weights.hash.rows_per_token());
      for (uint32_t row = first; row < end; ++row) {
        const uint32_t position = part.first + row;
        const uint32_t from = position + 1 - std::min(position + 1, c.engram_max_ngram);
        const Segment& segment = *part.segment;
        const auto recent = segment.tokens.subspan(from, position + 1 - from);
        const auto marks = segment.image_marks.empty()
                               ? std::span<const uint8_t>()
                               : segment.image_marks.subspan(from, position + 1 - from);
        float* out = &embedded[(part.row + size_t{row}) * inputs];
        Lookup(machine, weights, recent, marks, table_rows, out);
        machine.kernels.round_a(out, inputs, out);
      }
    });
  }
  Floats kv(size_t{step.rows} * outputs);  // Per row: a key for each copy, then the value.
  machine.Multiply({.matrix = &weights.wkv,
                    .x = embedded.data(),
                    .x_stride = inputs,
                    .y = kv.data(),
                    .y_stride = outputs,
                    .rows = step.rows});
  machine.ForRows(step.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
    for (size_t row = first; row < end; ++row) {
      if (step.image[row] != 0) continue;
      const float* keys = &kv[row * outputs];
      for (uint32_t copy = 0; copy < c.hc_mult; ++copy) {
        float* stream = &step.stream[(row * c.hc_mult + copy) * hidden];
        const float gate = Gate(machine, stream, weights.qk[copy], keys + copy * hidden);
        machine.kernels.add_scaled(gate, keys + c.hc_mult * hidden, hidden, stream);
      }
    }
  });
}

}  // namespace reprise::engine::cpu
