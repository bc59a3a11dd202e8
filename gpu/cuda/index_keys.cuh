#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/wgmma.cuh"

// Index keys and queries as operands of the matrix units, and scores from their products
// (model-facts sections 5.2 and 5.3).
namespace reprise::engine::cuda {

// A warpgroup takes 64 keys at a time as operand A, from codes in registers, and the queries of
// kRows rows as operand B. A thread loads 32 neighbouring values of a key, which share a scale; the
// order of the 128 inputs is whatever makes that cheap, and the queries lie in the same order.
constexpr uint32_t kIndexHeads = 32, kIndexDim = 128, kTileKeys = 64;
constexpr uint32_t kKeyCodeBytes = kIndexDim / 2, kKeyScaleBytes = kIndexDim / 32;
// Keys come 2^-16 too small, so that factors are bf16 whatever their scale; the weights undo it.
constexpr int kSmaller = 16;

// Where value `d` of a query lies: the input of the product.
__device__ inline uint32_t InputOf(uint32_t d) {
  const uint32_t thread = d / 32, word = d % 32 / 8, n = d % 8;
  const uint32_t pair = 3 - n % 4, high = n / 4;
  const uint32_t step = 2 * word + pair / 2;
  return 16 * step + 2 * thread + high + 8 * (pair % 2);
}

// A piece of 16 bytes of queries, [columns][128], to where products find them: the first 64 inputs
// of all columns, and `half_bytes` further on the others. Of eight values the first four and the
// others make the pairs.
__device__ inline void StoreQueries(uint8_t* queries, uint32_t half_bytes, uint32_t piece,
                                    const uint4& values) {
  const uint32_t column = piece / (kIndexDim / 8), d = piece % (kIndexDim / 8) * 8;
  const uint32_t pairs[4] = {
      __byte_perm(values.x, values.z, 0x5410), __byte_perm(values.x, values.z, 0x7632),
      __byte_perm(values.y, values.w, 0x5410), __byte_perm(values.y, values.w, 0x7632)};
#pragma unroll
  for (uint32_t n = 0; n < 4; ++n) {
    const uint32_t k = InputOf(d + n);
    *reinterpret_cast<uint32_t*>(queries + k / 64 * half_bytes +
                                 SwizzledOffset(column, k % 64 / 8) + k % 8 * 2) = pairs[n];
  }
}

// Values that a loop is to find in registers: else the compiler computes them again every time.
__device__ inline void InRegister(uint32_t& value) { asm volatile("" : "+r"(value)); }
__device__ inline void InRegister(uint64_t& value) { asm volatile("" : "+l"(value)); }
template <typename T>
__device__ inline void InRegister(T*& pointer) {
  asm volatile("" : "+l"(pointer));
}

struct RawKeys {  // Of this thread's two keys.
  uint4 codes[2];
  uint32_t scales[2];
};

// Bits of `a` where kMask has ones, of `b` elsewhere. What the compiler knows of later masks would
// make two instructions of it.
template <uint32_t kMask>
__device__ inline uint32_t Mixed(uint32_t a, uint32_t b) {
  uint32_t mixed;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(mixed) : "r"(a), "r"(b), "n"(kMask));
  return mixed;
}
// The four registers of bf16 pairs of a word of codes: pair p is nibbles 3 - p and 7 - p.
// Magnitudes move six places away from their signs first, for two pairs at a time.
__device__ inline void ExpandKeys(uint32_t word, __nv_bfloat162 factor, uint32_t* (&to)[4]) {
  constexpr uint32_t kSigns = 0x88008800;
  const uint32_t upper = Mixed<kSigns>(word, word >> 6);
  const uint32_t lower = Mixed<kSigns>(word << 8, word << 2);
  const uint32_t pairs[4] = {upper & 0x81c081c0, upper << 4 & 0x81c081c0, lower & 0x81c081c0,
                             lower << 4 & 0x81c081c0};
#pragma unroll
  for (int i = 0; i < 4; ++i) *to[i] = Multiplied(pairs[i], factor);
}

// Of a tile, as operand A of eight products.
__device__ inline void ExpandTile(const RawKeys& raw, uint32_t (&a)[8][4]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // A product takes the lower half of a register for both its factors: no instructions.
    const uint32_t low = (raw.scales[i] << 7) + ((126 - kSmaller) << 7);
    const __nv_bfloat162 factor = __low2bfloat162(AsPair(low));
    const uint32_t words[4] = {raw.codes[i].x, raw.codes[i].y, raw.codes[i].z, raw.codes[i].w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t* to[4] = {&a[2 * word][i], &a[2 * word][2 + i], &a[2 * word + 1][i],
                         &a[2 * word + 1][2 + i]};
      ExpandKeys(words[word], factor, to);
    }
  }
}

// Of row `r`'s columns that are this thread's, for its key `i`; weights are half of theirs.
template <int kSums>
__device__ inline float ScoreOf(const float (&sums)[kSums], int r, int i,
                                const float (&weights)[8]) {
  float score = 0;
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    // x + |x| is twice the larger of x and 0, exactly, and cheaper than a maximum.
    const float sum = sums[(r * 4 + b / 2) * 4 + 2 * i + b % 2];
    score = fmaf(weights[b], sum + fabsf(sum), score);
  }
  return score;
}
// Half of the sums of four threads each: of `low` for threads without `bit`, of `high` for others.
__device__ inline float SumOfHalf(float low, float high, uint32_t lane, uint32_t bit) {
  const bool upper = (lane & bit) != 0;
  const float kept = upper ? high : low, given = upper ? low : high;
  return kept + __shfl_xor_sync(0xffffffff, given, bit);
}
// Half of the weight of a row's head, as sums are doubled.
__device__ inline float HalfWeight(Bf16 weight, float factor) {
  return ToFloat(weight) * factor * static_cast<float>(1 << (kSmaller - 1));
}

}  // namespace reprise::engine::cuda
