#pragma once

#include "gpu/cuda/index_keys.cuh"

// Index keys and the queries of one row as integers of 8 bits: products take half as long as those
// of bf16, and their operand A half the registers. Twice a value of E2M1 is an integer of at most
// 12 either way, so where scales are within 2^3 of one another, a key's and likewise those of a
// head's query, integers are at most 96. Sums of such products are exact, those of bf16 as well,
// and scores the same bytes.
namespace reprise::engine::cuda {

// Exponents of floats, of scales and of weights must be near 2^0, so that nothing that is left out
// of sums and put back later makes a difference.
__device__ inline bool FarFromOne(uint32_t exponent) { return exponent - (127 - 32) > 64; }

struct ByteQueries {  // In shared memory.
  uint8_t values[kIndexHeads * kIndexDim];
  float weights[kIndexHeads];  // Of the heads' sums, as integers, times 2^22.
  int starts[kIndexHeads];     // What sums begin with: keys are 128 too large.
};

// By sixteen neighbouring lanes, which have a head's pieces of eight values.
template <typename T, typename Combine>
__device__ inline T OverHead(T value, const Combine& combine) {
#pragma unroll
  for (uint32_t bit = 1; bit < 16; bit *= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffff, value, bit));
  }
  return value;
}

// Eight values of a head's query as integers.
struct QueryPiece {
  uint32_t words[2] = {};
  int sum = 0;  // Of the whole head.
  float unit;   // Of the integers.
  bool exact;   // They are the values.
};
__device__ inline QueryPiece IntegersOf(const uint4& values) {
  const uint32_t pairs[4] = {values.x, values.y, values.z, values.w};
  float x[8], largest = 0;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    x[i] = __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000);
    largest = fmaxf(largest, fabsf(x[i]));
  }
  largest = OverHead(largest, [](float a, float b) { return fmaxf(a, b); });
  const uint32_t exponent = largest == 0 ? 127 : __float_as_uint(largest) >> 23;
  QueryPiece piece{.unit = PowerOf(exponent - 6), .exact = !FarFromOne(exponent)};
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const float scaled = x[i] * PowerOf(260 - exponent);  // Below 2^7.
    const int integer = __float2int_rn(scaled);
    piece.exact &= static_cast<float>(integer) == scaled;
    piece.sum += integer;
    piece.words[i / 4] |= (integer & 255) << (i % 4 * 8);
  }
  piece.sum = OverHead(piece.sum, [](int a, int b) { return a + b; });
  return piece;
}

// Stores piece `n` of [heads][16] to where products find it: of a product's 32 inputs a thread has
// eight neighbouring values of a key, four and four. Returns whether integers serve for it.
__device__ inline bool StoreIntegers(ByteQueries& queries, uint32_t n, const uint4& values,
                                     float weight) {
  const QueryPiece piece = IntegersOf(values);
  const uint32_t head = n / 16, thread = n % 16 / 4, step = n % 4;
#pragma unroll
  for (uint32_t half = 0; half < 2; ++half) {
    *reinterpret_cast<uint32_t*>(queries.values + SwizzledOffset(head, 2 * step + half) +
                                 4 * thread) = piece.words[half];
  }
  if (n % 16 == 0) {
    queries.weights[head] = weight * piece.unit;
    queries.starts[head] = -128 * piece.sum;
  }
  return piece.exact && (weight == 0 || !FarFromOne(__float_as_uint(weight) >> 23 & 255));
}

// What a thread has of the queries for its columns.
struct OwnHeads {
  __device__ OwnHeads(const ByteQueries& queries, uint32_t lane)
      : rows(SwizzledRows(SharedAddress(queries.values))) {
    InRegister(rows);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      const uint32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
      weights[i] = queries.weights[head];
      starts[i] = queries.starts[head];
    }
  }
  uint64_t rows;  // As operand B.
  float weights[8];
  int starts[8];
};

// Bytes that four nibbles of `which` choose of eight; those with their upper bit set give the sign
// of theirs, eight times.
__device__ inline uint32_t Chosen(uint32_t low, uint32_t high, uint32_t which) {
  uint32_t bytes;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(bytes) : "r"(low), "r"(high), "r"(which));
  return bytes;
}
// word >> 16, by the units that have less to do than those that shift.
__device__ inline uint32_t UpperHalf(uint32_t word) { return __dp2a_lo(word, 0x0100u, 0u); }

// A key's four scales, of 32 values each: the least one, and how many powers of two theirs are
// above it, a byte each.
struct KeyScales {
  __device__ explicit KeyScales(uint32_t scales) {
    const uint32_t lesser = __vminu2(scales & 0x00ff00ff, scales >> 8 & 0x00ff00ff);
    least = min(lesser & 0xffff, lesser >> 16);
    above = scales - least * 0x01010101;
  }
  __device__ bool Far() const { return (above & 0xfcfcfcfc) != 0 || FarFromOne(least); }
  // Of a score whose integers are left as they are.
  __device__ float Unit() const { return PowerOf(least + 21); }

  uint32_t least, above;
};
// Four lanes have a key each, and get the same quarter of all four keys: the transpose.
__device__ inline uint32_t OwnQuarters(uint32_t above, uint32_t lane) {
  const uint32_t two =
      Chosen(above, __shfl_xor_sync(0xffffffff, above, 2), (lane & 2) == 0 ? 0x5410 : 0x3276);
  return Chosen(two, __shfl_xor_sync(0xffffffff, two, 1), (lane & 1) == 0 ? 0x6240 : 0x3715);
}

// Two keys of a tile as operand A of four products, each value 128 too large. `above`: of their
// scales, a byte each.
__device__ inline void ExpandIntegers(const uint4 (&codes)[2], uint32_t above,
                                      uint32_t (&a)[4][4]) {
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    // Twice the magnitudes of E2M1.
    const uint32_t low = __funnelshift_l(0, 0x03020100, above >> (8 * i));
    const uint32_t high = __funnelshift_l(0, 0x0c080604, above >> (8 * i));
    const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
    // Those of negative values are 0 in the one, of the others in the other.
    const auto integers = [&](uint32_t which, uint32_t turned) {
      return Chosen(low, high, which) - Chosen(low, high, turned) + 0x80808080;
    };
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t word = words[step], turned = word ^ 0x88888888;
      a[step][i] = integers(word, turned);
      a[step][2 + i] = integers(UpperHalf(word), UpperHalf(turned));
    }
  }
}

// The larger of a sum and 0, times 2^-22. Its bits are a float, of 2^-149 for each 1 of it, and of
// a negative sum no number, which is 0 when saturated.
__device__ inline float Positive(uint32_t sum) {
  float positive;
  asm("mul.sat.f32 %0, %1, 0f7F000000;" : "=f"(positive) : "f"(__uint_as_float(sum)));
  return positive;
}
// Of this thread's columns, for its key `i`.
__device__ inline float ScoreOf(const uint32_t (&sums)[kIndexHeads / 2], int i,
                                const float (&weights)[8]) {
  float score = 0;
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    score = fmaf(weights[b], Positive(sums[b / 2 * 4 + 2 * i + b % 2]), score);
  }
  return score;
}

}  // namespace reprise::engine::cuda
