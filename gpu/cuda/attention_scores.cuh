#pragma once

#include "gpu/cuda/attention_codes.cuh"
#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/wgmma.cuh"

// What the products of attention by the matrix units have in common: queries, probabilities from
// logits, and the ends of sums.
namespace reprise::engine::cuda {

constexpr uint32_t kGroup = 128;  // Threads of a warpgroup.
constexpr uint32_t kWarps = kGroup / 32;
constexpr uint32_t kSteps = kDim / 16;  // Of a product with keys.
constexpr float kNone = -3e38f;

// Probabilities of a tile are 2^(logit - 16 top), with a top of the tile's own for each head. It is
// a multiple of 16, so that it seldom changes from tile to tile; and bringing numbers from one top
// to another loses nothing, as all are floating point.
constexpr int32_t kNoTop = -(1 << 24);
struct HeadSums {
  int32_t top[kHeads];
  float total[kHeads];  // Of the tile's probabilities.
};
// A tile's probabilities, bf16, lie as threads have them from a product with keys, which is how a
// product with values wants them as an operand: 16 bytes of every thread, for each 16 keys.
constexpr uint32_t kPieceBytes = kGroup * 16, kTileBytes = kKeys / 16 * kPieceBytes;

// 2^(16 (from - to)), for what goes from a top to one that is not below.
__device__ inline float TopFactor(int32_t from, int32_t to) {
  return __uint_as_float(static_cast<uint32_t>(max(127 + 16 * (from - to), 0)) << 23);
}

constexpr float kLog2E = 1.44269504f;
constexpr uint32_t kRotatedPairs = 32;  // Of a head's last 64 dimensions.

__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// Both values of a word, turned.
__device__ inline uint32_t Turned(uint32_t word, float c, float s) {
  const float2 x = __bfloat1622float2(AsPair(word));
  return PairBits(x.x * c - x.y * s, x.x * s + x.y * c);
}

// What a thread of a product holds: rows (heads) `head` and `head` + 8, columns 8 i + 2 quarter and
// the next; of dimensions, the 16 at 16 x quarter of every 64.
struct ProductPlace {
  __device__ ProductPlace()
      : thread(threadIdx.x % kGroup),
        lane(thread % 32),
        warp(thread / 32),
        head(warp * 16 + lane / 4),
        quarter(lane % 4) {}
  // Of this thread's probabilities for keys 16 i and on, in a tile.
  __device__ uint32_t PieceOffset(uint32_t i) const { return i * kPieceBytes + thread * 16; }
  uint32_t thread, lane, warp, head, quarter;
};

// Operand A: a row's queries, in the order of the keys' dimensions.
struct Queries {
  __device__ __forceinline__ void Load(const AttentionCall& call, const ProductPlace& at,
                                       uint32_t row) {
    const Bf16Bits* from =
        call.query + (uint64_t{row} * call.heads + at.head) * kDim + at.quarter * 16;
#pragma unroll
    for (uint32_t i = 0; i < kSteps; ++i) {  // Block i / 4, eight i / 2 % 2 of its row i % 2.
      const auto* eight =
          reinterpret_cast<const uint4*>(from + i % 2 * (8 * kDim) + i / 4 * 64 + i / 2 % 2 * 8);
      const uint4 raw = at.head + i % 2 * 8 < call.heads ? *eight : uint4{};
      steps[i][0] = raw.x;
      steps[i][1] = raw.y;
      steps[i][2] = raw.z;
      steps[i][3] = raw.w;
    }
    if (call.rotate_query) {  // The last block.
      const uint64_t pairs = uint64_t{row} * kRotatedPairs + at.quarter * 8;
      const float* cosines = call.step.cosines[call.rotation] + pairs;
      const float* sines = call.step.sines[call.rotation] + pairs;
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        const float4 c = reinterpret_cast<const float4*>(cosines)[h];
        const float4 s = reinterpret_cast<const float4*>(sines)[h];
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          uint32_t(&words)[4] = steps[kSteps - 4 + 2 * h + k];
          words[0] = Turned(words[0], c.x, s.x);
          words[1] = Turned(words[1], c.y, s.y);
          words[2] = Turned(words[2], c.z, s.z);
          words[3] = Turned(words[3], c.w, s.w);
        }
      }
    }
#pragma unroll
    for (uint32_t block = 0; block < kSteps; block += 4) {
      uint32_t its[4][4];
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t(&raw)[4] = steps[block + i];
        its[0][i] = __byte_perm(raw[0], raw[2], 0x5410);
        its[1][i] = __byte_perm(raw[0], raw[2], 0x7632);
        its[2][i] = __byte_perm(raw[1], raw[3], 0x5410);
        its[3][i] = __byte_perm(raw[1], raw[3], 0x7632);
      }
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) steps[block + i / 4][i % 4] = its[i / 4][i % 4];
    }
#pragma unroll
    for (auto& step : steps) Hold(step);
    __syncwarp();
  }

  uint32_t steps[kSteps][4];
};

// What a thread has of a tile.
struct Probabilities {
  // From the product of queries and keys; of the keys there are those of `mask`. `scale`: of logits
  // as powers of two, from sums with the keys' unit.
  __device__ __forceinline__ void Make(float (&logits)[32], const uint32_t (&mask)[2], float scale,
                                       const ProductPlace& at) {
    if ((mask[0] & mask[1]) != 0xffffffff) {
      const uint32_t own[2] = {mask[0] >> (2 * at.quarter), mask[1] >> (2 * at.quarter)};
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const uint32_t bit = i / 4 % 4 * 8 + i % 2;
        if ((own[i / 16] >> bit & 1) == 0) logits[i] = kNone;
      }
    }
    float largest[2] = {kNone, kNone};
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      largest[0] = fmaxf(largest[0], fmaxf(logits[i], logits[i + 1]));
      largest[1] = fmaxf(largest[1], fmaxf(logits[i + 2], logits[i + 3]));
    }
    float down[2];
    total[0] = total[1] = 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 1));
      largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 2));
      top[k] = max(kNoTop, min(__float2int_ru(largest[k] * (scale / 16)), -kNoTop));
      down[k] = -16 * static_cast<float>(top[k]);
    }
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int k = i / 2 % 2;
      const float x = Exp2(fmaf(logits[i], scale, down[k]));
      const float y = Exp2(fmaf(logits[i + 1], scale, down[k]));
      total[k] += x + y;
      p[i / 8][i / 2 % 4] = PairBits(x, y);
    }
  }
  // Totals are the thread's own until here, and then the head's.
  __device__ __forceinline__ void SumTotals() {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      total[k] += __shfl_xor_sync(0xffffffff, total[k], 1);
      total[k] += __shfl_xor_sync(0xffffffff, total[k], 2);
    }
  }

  uint32_t p[4][4];
  int32_t top[2];
  float total[2];
};

// What sums of values and totals are relative to, and the totals.
class RunningTops {
 public:
  // Adds a tile's totals. The sums so far are to be multiplied by `before`, the tile's
  // probabilities by `factors`; says whether any of the warp's are not 1.
  struct Change {
    float before[2], factors[2];
    bool higher, lower;
  };
  __device__ __forceinline__ Change Take(const int32_t (&tops)[2], const float (&totals)[2],
                                         bool first) {
    Change change;
    bool higher = false, lower = false;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const int32_t top = first ? tops[k] : max(top_[k], tops[k]);
      change.before[k] = first ? 1.0f : TopFactor(top_[k], top);
      change.factors[k] = TopFactor(tops[k], top);
      higher |= change.before[k] != 1;
      lower |= change.factors[k] != 1;
      const float added = totals[k] * change.factors[k];
      total_[k] = first ? added : total_[k] * change.before[k] + added;
      top_[k] = top;
    }
    change.higher = __any_sync(0xffffffff, higher);
    change.lower = __any_sync(0xffffffff, lower);
    return change;
  }
  // What a head's sums become outputs by, the sink counted in.
  __device__ __forceinline__ void Inverses(const AttentionCall& call, const ProductPlace& at,
                                           float (&inverse)[2]) const {
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t head = at.head + 8 * k;
      float total = total_[k];
      if (head < call.heads) {
        total += Exp2(fmaf(call.sinks[head], kLog2E, -16 * static_cast<float>(top_[k])));
      }
      inverse[k] = __fdividef(kKeyUnit, total);
    }
  }

 private:
  int32_t top_[2];
  float total_[2];
};
__device__ __forceinline__ void BringToTop(uint32_t (&p)[4][4], const float (&factors)[2]) {
#pragma unroll
  for (uint32_t i = 0; i < 16; ++i) {
    p[i / 4][i % 4] = Multiplied(p[i / 4][i % 4], __float2bfloat162_rn(factors[i % 2]));
  }
}

// Eight outputs of head `at.head` + 8 k side by side, those at 8 h of the thread's 16, from the
// sums of 64 dimensions.
__device__ __forceinline__ void EightOutputs(const float* sums, uint32_t h, uint32_t k,
                                             float inverse, uint32_t (&eight)[4]) {
#pragma unroll
  for (uint32_t m = 0; m < 4; ++m) {
    // Dimension d of eight is in step d % 4 as value d / 4.
    const uint32_t at = 2 * m % 4 * 8 + h * 4 + m / 2 + 2 * k;
    eight[m] = PairBits(sums[at] * inverse, sums[at + 8] * inverse);
  }
}
// Turned back.
__device__ __forceinline__ void TurnBack(uint32_t (&eight)[4], float4 c, float4 s) {
  eight[0] = Turned(eight[0], c.x, -s.x);
  eight[1] = Turned(eight[1], c.y, -s.y);
  eight[2] = Turned(eight[2], c.z, -s.z);
  eight[3] = Turned(eight[3], c.w, -s.w);
}

}  // namespace reprise::engine::cuda
