// Norms, rotation, gates and hyper-connections. Part of kernels_<isa>.cc; see simd16.h and
// kernels.h.
#pragma once

#include "gpu/cpu/simd16.h"

namespace {

// ---- Norms
// ---------------------------------------------------------------------------------------

inline float SumOfSquares(const float* x, size_t count) {
  // Chains of 16 x 16 values, and these in order: as exact for 20,480 values as for 128.
  float total = 0.0f;
  for (size_t begin = 0; begin < count; begin += kLanes * kLanes) {
    const size_t left = count - begin;
    const size_t end = begin + (left < kLanes * kLanes ? left : kLanes * kLanes);
    F16 sum = Set(0.0f);
    for (size_t i = begin; i < end; i += kLanes) sum = MulAdd(Load(x + i), Load(x + i), sum);
    total += ReduceAdd(sum);
  }
  return total;
}

float KernelInverseRms(const float* x, size_t count, float eps) {
  const float mean = SumOfSquares(x, count) / static_cast<float>(count) + eps;
  return 1.0f / __builtin_sqrtf(mean);
}

void KernelRmsNorm(const float* x, const float* weight, size_t count, float eps, float* y) {
  const F16 scale = Set(KernelInverseRms(x, count, eps));
  for (size_t i = 0; i < count; i += kLanes) {
    Store(y + i, RoundToBf16(Load(x + i) * scale * Load(weight + i)));
  }
}

void KernelRoundBf16(const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; i += kLanes) Store(y + i, RoundToBf16(Load(x + i)));
}

void KernelRotate(float* x, const float* cosines, const float* sines, size_t pairs) {
  for (size_t i = 0; i < pairs; ++i) {
    const float a = x[2 * i], b = x[2 * i + 1];
    const float turned_a = a * cosines[i] - b * sines[i];
    const float turned_b = a * sines[i] + b * cosines[i];
    x[2 * i] = turned_a;
    x[2 * i + 1] = turned_b;
  }
  for (size_t i = 0; i < 2 * pairs; i += kLanes) Store(x + i, RoundToBf16(Load(x + i)));
}

// ---- Feed forward and compressor
// -----------------------------------------------------------------

void KernelSwiglu(const float* a, const float* b, float weight, float limit, size_t count,
                  float* y) {
  for (size_t i = 0; i < count; i += kLanes) {
    const F16 gate = Min(Load(a + i), Set(limit));
    const F16 up = Min(Max(Load(b + i), Set(-limit)), Set(limit));
    const F16 silu = gate / (Set(1.0f) + Exp(-gate));
    Store(y + i, RoundToBf16(silu * up * Set(weight)));
  }
}

void KernelCompressPair(const float* a0, const float* g0, const float* a1, const float* g1,
                        size_t count, float* y) {
  for (size_t i = 0; i < count; i += kLanes) {
    const F16 first = Load(g0 + i), second = Load(g1 + i);
    const F16 top = Max(first, second);
    const F16 e0 = Exp(first - top), e1 = Exp(second - top);
    const F16 sum = e0 + e1;
    const F16 mixed = MulAdd(e1 / sum, Load(a1 + i), (e0 / sum) * Load(a0 + i));
    Store(y + i, RoundToBf16(mixed));
  }
}

void KernelAdd(const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; i += kLanes) Store(y + i, Load(y + i) + Load(x + i));
}

void KernelAddScaled(float gate, const float* value, size_t count, float* x) {
  for (size_t i = 0; i < count; i += kLanes) {
    Store(x + i, RoundToBf16(MulAdd(Set(gate), Load(value + i), Load(x + i))));
  }
}

float KernelDot3(const float* a, const float* b, const float* c, size_t count) {
  F16 sum = Set(0.0f);
  for (size_t i = 0; i < count; i += kLanes) {
    sum = MulAdd(Load(a + i) * Load(b + i), Load(c + i), sum);
  }
  return ReduceAdd(sum);
}

// ---- Hyper-connections
// ---------------------------------------------------------------------------

constexpr uint32_t kCopies = 4;

// C [4][4] of sixteen rows: made doubly stochastic by turns (model-facts section 7, step 3).
inline void Sinkhorn(F16 (&c)[kCopies][kCopies], uint32_t iterations, F16 eps) {
  for (uint32_t a = 0; a < kCopies; ++a) {
    const F16 top = Max(Max(c[a][0], c[a][1]), Max(c[a][2], c[a][3]));
    for (uint32_t k = 0; k < kCopies; ++k) c[a][k] = Exp(c[a][k] - top);
    const F16 sum = ((c[a][0] + c[a][1]) + c[a][2]) + c[a][3];
    for (uint32_t k = 0; k < kCopies; ++k) c[a][k] = c[a][k] / sum + eps;
  }
  for (uint32_t turn = 0; turn < iterations; ++turn) {
    if (turn > 0) {
      for (uint32_t a = 0; a < kCopies; ++a) {
        const F16 sum = (((c[a][0] + c[a][1]) + c[a][2]) + c[a][3]) + eps;
        for (uint32_t k = 0; k < kCopies; ++k) c[a][k] = c[a][k] / sum;
      }
    }
    for (uint32_t k = 0; k < kCopies; ++k) {
      const F16 sum = (((c[0][k] + c[1][k]) + c[2][k]) + c[3][k]) + eps;
      for (uint32_t a = 0; a < kCopies; ++a) c[a][k] = c[a][k] / sum;
    }
  }
}

void KernelMhcSplit(const float* mixes, size_t stride, const float* inverse_rms, uint32_t rows,
                    const float* base, const float* scale, uint32_t iterations, float eps,
                    float* pre, float* post, float* comb) {
  constexpr uint32_t kMixes = 2 * kCopies + kCopies * kCopies;
  float columns[kMixes][kLanes] = {};
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < kMixes; ++i) {
      columns[i][row] = mixes[row * stride + i] * inverse_rms[row];
    }
  }
  const F16 small = Set(eps);
  F16 c[kCopies][kCopies];
  for (uint32_t i = 0; i < kCopies; ++i) {
    const F16 before = Load(columns[i]) * Set(scale[0]) + Set(base[i]);
    const F16 after = Load(columns[kCopies + i]) * Set(scale[1]) + Set(base[kCopies + i]);
    Store(columns[i], Sigmoid(before) + small);
    Store(columns[kCopies + i], Set(2.0f) * Sigmoid(after));
  }
  for (uint32_t i = 0; i < kCopies * kCopies; ++i) {
    c[i / kCopies][i % kCopies] =
        Load(columns[2 * kCopies + i]) * Set(scale[2]) + Set(base[2 * kCopies + i]);
  }
  Sinkhorn(c, iterations, small);
  for (uint32_t i = 0; i < kCopies * kCopies; ++i) {
    Store(columns[2 * kCopies + i], c[i / kCopies][i % kCopies]);
  }
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < kCopies; ++i) {
      pre[row * kCopies + i] = columns[i][row];
      post[row * kCopies + i] = columns[kCopies + i][row];
    }
    for (uint32_t i = 0; i < kCopies * kCopies; ++i) {
      comb[row * kCopies * kCopies + i] = columns[2 * kCopies + i][row];
    }
  }
}

void KernelMhcCollapse(const float* x, const float* pre, size_t count, float* y) {
  for (size_t i = 0; i < count; i += kLanes) {
    F16 sum = Load(x + i) * Set(pre[0]);
    for (uint32_t c = 1; c < kCopies; ++c) {
      sum = MulAdd(Load(x + c * count + i), Set(pre[c]), sum);
    }
    Store(y + i, RoundToBf16(sum));
  }
}

void KernelMhcUpdate(const float* h, const float* post, const float* comb, size_t count, float* x) {
  for (size_t i = 0; i < count; i += kLanes) {
    F16 old[kCopies];
    for (uint32_t c = 0; c < kCopies; ++c) old[c] = Load(x + c * count + i);
    const F16 added = Load(h + i);
    for (uint32_t k = 0; k < kCopies; ++k) {
      F16 mixed = old[0] * Set(comb[k]);
      for (uint32_t a = 1; a < kCopies; ++a) {
        mixed = MulAdd(old[a], Set(comb[a * kCopies + k]), mixed);
      }
      Store(x + k * count + i, RoundToBf16(MulAdd(Set(post[k]), added, mixed)));
    }
  }
}

}  // namespace
