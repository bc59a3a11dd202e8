#include "tests/gpu/cuda/kernel_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu/formats/number_formats.h"
#include "gpu/formats/quantisers.h"

namespace reprise::engine::cuda::reference {
namespace {

float Rounded(double x) { return RoundBf16(static_cast<float>(x)); }

double InverseRms(FloatSpan x, float eps) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  return 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
}

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

}  // namespace

// ---- Streams and hyper-connections -------------------------------------------------------------

void Rotations(uint32_t position, FloatSpan frequencies, float* cosines, float* sines) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];  // Rounded to float.
    cosines[i] = static_cast<float>(std::cos(double{angle}));
    sines[i] = static_cast<float>(std::sin(double{angle}));
  }
}

Floats SumOfExperts(FloatSpan outputs, std::span<const uint32_t> slots, FloatSpan shared) {
  const size_t hidden = shared.size();
  Floats h(hidden);
  for (size_t d = 0; d < hidden; ++d) {
    float sum = 0;
    for (const uint32_t slot : slots) sum += outputs[slot * hidden + d];
    h[d] = RoundBf16(sum + shared[d]);
  }
  return h;
}

Floats Update(FloatSpan stream, FloatSpan h, const float* post, const float* comb) {
  const size_t hidden = h.size();
  Floats out(stream.size());
  for (uint32_t k = 0; k < kCopies; ++k) {
    for (size_t d = 0; d < hidden; ++d) {
      double sum = double{post[k]} * h[d];
      for (uint32_t a = 0; a < kCopies; ++a) {
        sum += double{comb[a * kCopies + k]} * stream[a * hidden + d];
      }
      out[k * hidden + d] = Rounded(sum);
    }
  }
  return out;
}

Floats Collapse(FloatSpan stream, const float* pre) {
  const size_t hidden = stream.size() / kCopies;
  Floats y(hidden);
  for (size_t d = 0; d < hidden; ++d) {
    double sum = 0;
    for (uint32_t c = 0; c < kCopies; ++c) sum += double{pre[c]} * stream[c * hidden + d];
    y[d] = Rounded(sum);
  }
  return y;
}

Floats MeanOfCopies(FloatSpan stream) {
  const float quarters[kCopies] = {0.25f, 0.25f, 0.25f, 0.25f};
  return Collapse(stream, quarters);
}

void Sinkhorn(double (&c)[kCopies][kCopies], uint32_t iterations, double eps) {
  const auto divide_rows = [&](double more) {
    for (auto& row : c) {
      const double sum = row[0] + row[1] + row[2] + row[3] + more;
      for (double& value : row) value /= sum;
    }
  };
  const auto divide_columns = [&] {
    for (uint32_t k = 0; k < kCopies; ++k) {
      const double sum = c[0][k] + c[1][k] + c[2][k] + c[3][k] + eps;
      for (auto& row : c) row[k] /= sum;
    }
  };
  for (auto& row : c) {
    const double top = *std::max_element(row, row + kCopies);
    for (double& value : row) value = std::exp(value - top);
  }
  divide_rows(0);
  for (auto& row : c) {
    for (double& value : row) value += eps;
  }
  for (uint32_t turn = 0; turn < iterations; ++turn) {
    if (turn > 0) divide_rows(eps);
    divide_columns();
  }
}

Mixes MixesOf(FloatSpan stream, const MixParameters& p) {
  const double rms = InverseRms(stream, p.norm_eps);
  Mixes mixes;
  double m[24];
  for (uint32_t i = 0; i < 24; ++i) {
    const float* fn = p.fn.data() + i * stream.size();
    double sum = 0, squares = 0;
    for (size_t d = 0; d < stream.size(); ++d) {
      const double term = double{fn[d]} * stream[d];
      sum += term;
      squares += term * term;
    }
    const double scale = p.scale[i < kCopies ? 0 : i < 2 * kCopies ? 1 : 2];
    m[i] = sum * rms * scale + p.base[i];
    mixes.spread[i] = std::sqrt(squares) * rms * std::fabs(scale);
  }
  double c[kCopies][kCopies];
  for (uint32_t i = 0; i < kCopies; ++i) {
    mixes.pre[i] = static_cast<float>(Sigmoid(m[i]) + p.eps);
    mixes.post[i] = static_cast<float>(2 * Sigmoid(m[kCopies + i]));
    for (uint32_t k = 0; k < kCopies; ++k) c[i][k] = m[2 * kCopies + i * kCopies + k];
  }
  Sinkhorn(c, p.iterations, p.eps);
  for (uint32_t i = 0; i < kCopies * kCopies; ++i) {
    mixes.comb[i] = static_cast<float>(c[i / kCopies][i % kCopies]);
  }
  return mixes;
}

// ---- Norms, rotation, quantisers ---------------------------------------------------------------

Floats Norm(FloatSpan x, FloatSpan weight, float eps) {
  const double scale = InverseRms(x, eps);
  Floats y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = Rounded(x[i] * scale * weight[i]);
  return y;
}

Floats RoundA(FloatSpan x) {
  const Codes codes = CodesA(x);
  Floats y(x.size());
  DequantiseA(codes.codes.data(), codes.scales.data(), x.size(), y.data());
  return y;
}

Floats RoundC(FloatSpan x) {
  const Codes codes = CodesC(x);
  Floats y(x.size());
  DequantiseC(codes.codes.data(), codes.scales.data(), x.size(), y.data());
  return y;
}

Floats Turned(FloatSpan x, const Rotation& rotation) {
  Floats y(x.begin(), x.end());
  float* at = y.data() + y.size() - 2 * rotation.pairs;
  for (uint32_t i = 0; i < rotation.pairs; ++i, at += 2) {
    const double a = at[0], b = at[1], c = rotation.cosines[i], s = rotation.sines[i];
    at[0] = Rounded(a * c - b * s);
    at[1] = Rounded(a * s + b * c);
  }
  return y;
}

Codes CodesA(FloatSpan x) {
  Codes out{std::vector<uint8_t>(x.size()), std::vector<uint8_t>(x.size() / kGroupA)};
  QuantiseA(x.data(), x.size(), out.codes.data(), out.scales.data());
  return out;
}
Codes CodesB(FloatSpan x) {
  Codes out{std::vector<uint8_t>(x.size() / 2), std::vector<uint8_t>(x.size() / kGroupB)};
  QuantiseB(x.data(), x.size(), out.codes.data(), out.scales.data());
  return out;
}
Codes CodesC(FloatSpan x) {
  Codes out{std::vector<uint8_t>(x.size() / 2), std::vector<uint8_t>(x.size() / kGroupC)};
  QuantiseC(x.data(), x.size(), out.codes.data(), out.scales.data());
  return out;
}

void WriteWindow(const WindowView& view, uint32_t position, const uint8_t* codes,
                 const uint8_t* scales, uint8_t* window) {
  const uint32_t slot = position % view.ring_rows;
  uint8_t* layer = window + view.layer_offset;
  std::copy_n(codes, view.code_bytes, layer + slot * view.code_bytes);
  std::copy_n(scales, view.scale_bytes,
              layer + view.ring_rows * view.code_bytes + slot * view.scale_bytes);
}

// ---- Global KV and selection -------------------------------------------------------------------

Floats MixedPair(FloatSpan a0, FloatSpan g0, FloatSpan a1, FloatSpan g1) {
  Floats out(a0.size());
  for (size_t i = 0; i < out.size(); ++i) {
    const double p1 = Sigmoid(double{g1[i]} - g0[i]);
    out[i] = Rounded((1 - p1) * a0[i] + p1 * a1[i]);
  }
  return out;
}

float* TailOf(const WindowView& view, uint32_t position, uint32_t dim, uint8_t* window) {
  return reinterpret_cast<float*>(window + view.tail_offset) +
         size_t{position / 2 % view.tail_rows} * 2 * dim;
}

bool IsKept(const WindowView& view, uint32_t position, uint32_t end, uint32_t write_from) {
  // No two of so many last positions share a place.
  const bool last = position + 2 * view.tail_rows - 1 >= end;
  return position % 2 == 0 && last && position + 1 >= write_from;
}

Entry EntryOf(FloatSpan latent, FloatSpan key, FloatSpan key_norm, float eps,
              const Rotation& rotation) {
  return {.main = CodesB(Turned(latent, rotation)),
          .index = CodesC(Turned(Norm(key, key_norm, eps), rotation))};
}

void WriteEntry(const EntryView& view, uint32_t entry, const Entry& value, uint8_t* payload) {
  const uint32_t row = entry % (1u << view.block_shift);
  const auto put = [&](const std::vector<uint8_t>& bytes, uint32_t plane, uint32_t row_bytes) {
    std::copy(bytes.begin(), bytes.end(), payload + plane + row * row_bytes);
  };
  put(value.main.codes, view.main_codes, view.main_code_bytes);
  put(value.main.scales, view.main_scales, view.main_scale_bytes);
  put(value.index.codes, view.index_codes, view.index_code_bytes);
  put(value.index.scales, view.index_scales, view.index_scale_bytes);
}

std::vector<uint32_t> Pool(FloatSpan scores, uint32_t block, uint32_t blocks_max) {
  const auto visible = static_cast<uint32_t>(scores.size());
  const uint32_t blocks = (visible + block - 1) / block;
  Floats tops(blocks, std::numeric_limits<float>::infinity());
  for (uint32_t b = 0; b + 1 < blocks; ++b) {
    tops[b] = *std::max_element(scores.begin() + b * block, scores.begin() + (b + 1) * block);
  }
  std::vector<uint32_t> order(blocks);
  for (uint32_t b = 0; b < blocks; ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return tops[a] > tops[b]; });
  order.resize(std::min(blocks, blocks_max));
  std::sort(order.begin(), order.end());
  std::vector<uint32_t> entries;
  for (const uint32_t b : order) {
    for (uint32_t e = b * block; e < std::min(visible, (b + 1) * block); ++e) entries.push_back(e);
  }
  return entries;
}

// ---- Experts -----------------------------------------------------------------------------------

Route RouteOf(FloatSpan logits, FloatSpan bias, uint32_t chosen, float scaling) {
  const auto experts = static_cast<uint32_t>(logits.size());
  std::vector<double> affinity(experts), score(experts);
  std::vector<uint32_t> order(experts);
  for (uint32_t e = 0; e < experts; ++e) {
    affinity[e] = std::sqrt(std::log1p(std::exp(double{logits[e]})));
    score[e] = affinity[e] + bias[e];
    order[e] = e;
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
  Route route;
  route.margin = std::numeric_limits<double>::infinity();
  const uint32_t last = order[chosen - 1];
  for (uint32_t i = 0; i < experts; ++i) {
    // Equal logits under equal biases are equal scores for everyone; all else must not be close.
    const uint32_t e = order[i];
    if (logits[e] == logits[last] && bias[e] == bias[last]) continue;
    route.margin = std::min(route.margin, std::fabs(score[e] - score[last]));
  }
  double sum = 0;
  for (uint32_t i = 0; i < chosen; ++i) sum += affinity[order[i]];
  route.experts.assign(order.begin(), order.begin() + chosen);
  std::sort(route.experts.begin(), route.experts.end());
  for (const uint32_t e : route.experts) {
    route.weights.push_back(static_cast<float>(affinity[e] / (sum + 1e-20) * scaling));
  }
  return route;
}

float Swiglu(float a, float c, float limit, float weight) {
  const double gate = std::min(a, limit), up = std::clamp(c, -limit, limit);
  return Rounded(gate * Sigmoid(gate) * up * weight);
}

// ---- Engram ------------------------------------------------------------------------------------

Floats TableRow(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
  Floats values(codes.size());
  DequantiseA(codes.data(), scales.data(), codes.size(), values.data());
  return RoundA(values);
}

Floats Gated(FloatSpan stream, FloatSpan key, FloatSpan weight, FloatSpan value, float eps) {
  double dot = 0;
  for (size_t d = 0; d < stream.size(); ++d) dot += double{stream[d]} * weight[d] * key[d];
  dot *= InverseRms(stream, eps) * InverseRms(key, eps) /
         std::sqrt(static_cast<double>(stream.size()));
  const double root = std::sqrt(std::max(std::fabs(dot), 1e-6));
  const double gate = Sigmoid(dot > 0 ? root : dot < 0 ? -root : 0);
  Floats out(stream.size());
  for (size_t d = 0; d < out.size(); ++d) out[d] = Rounded(stream[d] + gate * value[d]);
  return out;
}

}  // namespace reprise::engine::cuda::reference
