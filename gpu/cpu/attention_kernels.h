// Attention rows. Part of kernels_<isa>.cc; see simd16.h and kernels.h.
#pragma once

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/quantise_kernels.h"
#include "gpu/cpu/simd16.h"

namespace {

using reprise::engine::cpu::AttentionCall;
using reprise::engine::cpu::kAttentionBlock;

// ---- Attention
// -----------------------------------------------------------------------------------

constexpr uint32_t kDotHeads = 4, kDotKeys = 4;

// logits[head][key] = q . k * scale, for 4 heads and 4 keys; out is [kDotHeads][stride].
inline void DotFourByFour(const float* query, const float* const* keys, uint32_t dim, float scale,
                          float* out, uint32_t stride) {
  F16 sum[kDotHeads * kDotKeys];
  for (F16& s : sum) s = Set(0.0f);
  for (uint32_t d = 0; d < dim; d += kLanes) {
    F16 key[kDotKeys];
    for (uint32_t k = 0; k < kDotKeys; ++k) key[k] = Load(keys[k] + d);
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      const F16 q = Load(query + h * dim + d);
      for (uint32_t k = 0; k < kDotKeys; ++k) {
        sum[h * kDotKeys + k] = MulAdd(q, key[k], sum[h * kDotKeys + k]);
      }
    }
  }
  float dots[kDotHeads * kDotKeys];
  Store(dots, ReduceAdd16(sum) * Set(scale));
  for (uint32_t h = 0; h < kDotHeads; ++h) {
    memcpy(out + h * stride, dots + h * kDotKeys, kDotKeys * sizeof(float));
  }
}

// Logits to probabilities, rounded to bf16, in place; the head's maximum and denominator go on.
// Returns what the old numerator is multiplied by.
inline float SoftmaxStep(float* logits, float* top, float* total) {
  F16 part[kAttentionBlock / kLanes];
  F16 largest = Set(-3e38f);
  for (uint32_t i = 0; i < kAttentionBlock / kLanes; ++i) {
    part[i] = Load(logits + i * kLanes);
    largest = Max(largest, part[i]);
  }
  const float new_top = Larger(*top, ReduceMax(largest));
  F16 sum = Set(0.0f);
  for (uint32_t i = 0; i < kAttentionBlock / kLanes; ++i) {
    const F16 p = Exp(part[i] - Set(new_top));
    sum += p;
    Store(logits + i * kLanes, RoundToBf16(p));
  }
  const float decay = Exp(Set(*top - new_top))[0];
  *total = *total * decay + ReduceAdd(sum);
  *top = new_top;
  return decay;
}

// sum[head][d] = sum * decay + sum over keys of p[head][key] key[d], for 4 heads.
inline void AddValues(const AttentionCall& call, const float* p, const float* decay, float* sum) {
  constexpr uint32_t kParts = 4;  // Registers of d at a time.
  const uint32_t dim = call.dim;
  uint32_t d = 0;
  for (; d + kParts * kLanes <= dim; d += kParts * kLanes) {
    F16 acc[kDotHeads][kParts];
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      for (uint32_t i = 0; i < kParts; ++i) {
        acc[h][i] = Load(sum + h * dim + d + i * kLanes) * Set(decay[h]);
      }
    }
    for (uint32_t k = 0; k < call.count; ++k) {
      F16 value[kParts];
      for (uint32_t i = 0; i < kParts; ++i) value[i] = Load(call.keys[k] + d + i * kLanes);
      for (uint32_t h = 0; h < kDotHeads; ++h) {
        const F16 weight = Set(p[h * kAttentionBlock + k]);
        for (uint32_t i = 0; i < kParts; ++i) acc[h][i] = MulAdd(weight, value[i], acc[h][i]);
      }
    }
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      for (uint32_t i = 0; i < kParts; ++i) Store(sum + h * dim + d + i * kLanes, acc[h][i]);
    }
  }
  for (; d < dim; d += kLanes) {
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      F16 acc = Load(sum + h * dim + d) * Set(decay[h]);
      for (uint32_t k = 0; k < call.count; ++k) {
        acc = MulAdd(Set(p[h * kAttentionBlock + k]), Load(call.keys[k] + d), acc);
      }
      Store(sum + h * dim + d, acc);
    }
  }
}

void KernelAttentionBlock(const AttentionCall& call) {
  if (call.count == 0) return;
  const float* padded[kAttentionBlock + kDotKeys];
  const uint32_t whole = (call.count + kDotKeys - 1) / kDotKeys * kDotKeys;
  for (uint32_t k = 0; k < whole; ++k) padded[k] = call.keys[k < call.count ? k : call.count - 1];
  for (uint32_t head = 0; head < call.heads; head += kDotHeads) {
    float logits[kDotHeads * kAttentionBlock];
    const float* query = call.query + size_t{head} * call.dim;
    for (uint32_t k = 0; k < whole; k += kDotKeys) {
      DotFourByFour(query, padded + k, call.dim, call.scale, logits + k, kAttentionBlock);
    }
    float decay[kDotHeads];
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      float* row = logits + h * kAttentionBlock;
      for (uint32_t k = call.count; k < kAttentionBlock; ++k) row[k] = -3e38f;
      decay[h] = SoftmaxStep(row, call.top + head + h, call.total + head + h);
    }
    AddValues(call, logits, decay, call.sum + size_t{head} * call.dim);
  }
}

void KernelAttentionEnd(const AttentionCall& call, const float* sinks, float* out) {
  for (uint32_t head = 0; head < call.heads; ++head) {
    const float total = call.total[head] + Exp(Set(sinks[head] - call.top[head]))[0];
    const F16 divisor = Set(total);
    for (uint32_t d = 0; d < call.dim; d += kLanes) {
      const size_t at = size_t{head} * call.dim + d;
      Store(out + at, RoundToBf16(Load(call.sum + at) / divisor));
    }
  }
}

}  // namespace
