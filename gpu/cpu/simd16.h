// Vectors of sixteen lanes, whatever the machine has: one AVX-512 register, two of AVX2, or plain
// loops. Every operation is exact per lane or correctly rounded, multiply-add is always fused, and
// sums over lanes have one fixed tree: so the kernels give the same bits on every instruction set.
//
// Included by kernels_<isa>.cc alone, each compiled with its own flags. Everything here is in an
// anonymous namespace and nothing of the standard library is used: an inline function shared
// between objects of different flags would be linked as any one of them.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr size_t kLanes = 16;

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));
typedef uint8_t B16 __attribute__((vector_size(16)));
typedef uint16_t H16 __attribute__((vector_size(32)));

// ---- Memory ------------------------------------------------------------------------------------

inline F16 Load(const float* p) {
  F16 v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, F16 v) { memcpy(p, &v, sizeof(v)); }
inline U16 LoadU(const void* p) {
  U16 v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline U16 LoadBytes(const uint8_t* p) {
  B16 v;
  memcpy(&v, p, sizeof(v));
  return __builtin_convertvector(v, U16);
}
inline void StoreBytes(uint8_t* p, U16 v) {
  const B16 bytes = __builtin_convertvector(v, B16);
  memcpy(p, &bytes, sizeof(bytes));
}

// columns[i]: the i-th of four words from each of sixteen places.
inline void LoadColumns(const uint8_t* const* places, size_t offset, U16* columns) {
  typedef uint32_t U4 __attribute__((vector_size(16)));
  U16 quads[4];  // Of places i, i + 4, i + 8 and i + 12.
  for (int i = 0; i < 4; ++i) {
    U4 four[4];
    for (int j = 0; j < 4; ++j) memcpy(&four[j], places[4 * j + i] + offset, sizeof(U4));
    const auto low = __builtin_shufflevector(four[0], four[1], 0, 1, 2, 3, 4, 5, 6, 7);
    const auto high = __builtin_shufflevector(four[2], four[3], 0, 1, 2, 3, 4, 5, 6, 7);
    quads[i] =
        __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  U16 pairs[4];  // Words 0 and 1, then 2 and 3, of the first two quads; and of the other two.
  for (int i = 0; i < 4; i += 2) {
    const U16 a = quads[i], b = quads[i + 1];
    pairs[i] =
        __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
    pairs[i + 1] =
        __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  }
  for (int i = 0; i < 2; ++i) {
    const U16 a = pairs[i], b = pairs[i + 2];
    columns[2 * i] =
        __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
    columns[2 * i + 1] =
        __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  }
}

inline F16 Set(float x) { return F16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
inline U16 SetU(uint32_t x) { return U16{x, x, x, x, x, x, x, x, x, x, x, x, x, x, x, x}; }
inline U16 Numbers() { return U16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
inline F16 AsFloat(U16 v) { return (F16)v; }
inline U16 AsBits(F16 v) { return (U16)v; }
inline F16 ToFloat(U16 v) { return __builtin_convertvector((I16)v, F16); }  // Below 2^31.

// ---- Arithmetic --------------------------------------------------------------------------------

inline F16 MulAdd(F16 a, F16 b, F16 c) {
#if defined(__AVX512F__)
  return (F16)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  union Halves {
    F16 whole;
    __m256 half[2];
  } x{a}, y{b}, z{c};
  z.half[0] = _mm256_fmadd_ps(x.half[0], y.half[0], z.half[0]);
  z.half[1] = _mm256_fmadd_ps(x.half[1], y.half[1], z.half[1]);
  return z.whole;
#else
  for (size_t i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}
#if defined(__AVX512F__)
inline F16 Max(F16 a, F16 b) { return (F16)_mm512_maskz_max_ps(0xffff, (__m512)a, (__m512)b); }
inline F16 Min(F16 a, F16 b) { return (F16)_mm512_maskz_min_ps(0xffff, (__m512)a, (__m512)b); }
#else
inline F16 Max(F16 a, F16 b) { return a > b ? a : b; }
inline F16 Min(F16 a, F16 b) { return a < b ? a : b; }
#endif
inline F16 Abs(F16 a) { return AsFloat(AsBits(a) & SetU(0x7fffffff)); }
inline U16 SignOf(F16 a) { return AsBits(a) & SetU(0x80000000); }

// table[index & 15] per lane.
inline F16 Lookup(F16 table, U16 index) {
#if defined(__AVX512F__)
  return (F16)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
#elif defined(__AVX2__)
  union Halves {
    F16 whole;
    __m256 half[2];
  } t{table}, out{};
  union Indices {
    U16 whole;
    __m256i half[2];
  } at{index};
  for (int i = 0; i < 2; ++i) {
    const __m256 low = _mm256_permutevar8x32_ps(t.half[0], at.half[i]);
    const __m256 high = _mm256_permutevar8x32_ps(t.half[1], at.half[i]);
    const __m256 upper =
        _mm256_castsi256_ps(_mm256_slli_epi32(at.half[i], 28));  // Bit 3 to the sign.
    out.half[i] = _mm256_blendv_ps(low, high, upper);
  }
  return out.whole;
#else
  F16 out = table;
  for (size_t i = 0; i < kLanes; ++i) out[i] = table[index[i] & 15];
  return out;
#endif
}

// ---- Bytes: four to a lane
// -----------------------------------------------------------------------

// table[byte] for each of the 64 bytes, which must be below 16.
inline U16 LookupBytes(const int8_t* table, U16 bytes) {
#if defined(__AVX512BW__)
  __m128i entries;
  memcpy(&entries, table, sizeof(entries));
  return (U16)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(entries), (__m512i)bytes);
#elif defined(__AVX2__)
  __m128i entries;
  memcpy(&entries, table, sizeof(entries));
  union Halves {
    U16 whole;
    __m256i half[2];
  } v{bytes};
  const __m256i both = _mm256_broadcastsi128_si256(entries);
  v.half[0] = _mm256_shuffle_epi8(both, v.half[0]);
  v.half[1] = _mm256_shuffle_epi8(both, v.half[1]);
  return v.whole;
#else
  uint8_t out[64];
  memcpy(out, &bytes, sizeof(out));
  for (uint8_t& b : out) b = static_cast<uint8_t>(table[b & 15]);
  memcpy(&bytes, out, sizeof(out));
  return bytes;
#endif
}

// Sums of products of bytes, a unsigned and b signed, four to a lane: kept as one number of the
// lane where an instruction does that, else as two of 16 bits, which the caller keeps below 2^15.
// All of it is exact. StartSums begins with a number below 2^14, AddHalves gives the lane's sum.
inline U16 StartSums(I16 start) {
#if defined(__AVX512VNNI__)
  return (U16)start;
#else
  return (U16)start & SetU(0xffff);
#endif
}
inline U16 MulAddBytes(U16 a, U16 b, U16 sums) {
#if defined(__AVX512VNNI__)
  return (U16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__)
  return (U16)_mm512_add_epi16((__m512i)sums, _mm512_maddubs_epi16((__m512i)a, (__m512i)b));
#elif defined(__AVX2__)
  union Halves {
    U16 whole;
    __m256i half[2];
  } x{a}, y{b}, z{sums};
  for (int i = 0; i < 2; ++i) {
    z.half[i] = _mm256_add_epi16(z.half[i], _mm256_maddubs_epi16(x.half[i], y.half[i]));
  }
  return z.whole;
#else
  uint8_t x[64];
  int8_t y[64];
  int16_t z[32];
  memcpy(x, &a, sizeof(x));
  memcpy(y, &b, sizeof(y));
  memcpy(z, &sums, sizeof(z));
  for (int i = 0; i < 32; ++i) {
    z[i] = static_cast<int16_t>(z[i] + x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]);
  }
  memcpy(&sums, z, sizeof(z));
  return sums;
#endif
}

inline I16 AddHalves(U16 sums) {
  const I16 both = (I16)sums;
#if defined(__AVX512VNNI__)
  return both;
#else
  return ((both << 16) >> 16) + (both >> 16);
#endif
}

// ---- Comparison --------------------------------------------------------------------------------

// A bit for each lane where a >= b.
inline uint32_t AtLeast(F16 a, F16 b) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#elif defined(__AVX2__)
  union Halves {
    F16 whole;
    __m256 half[2];
  } x{a}, y{b};
  uint32_t mask = 0;
  for (int i = 0; i < 2; ++i) {
    const __m256 at_least = _mm256_cmp_ps(x.half[i], y.half[i], _CMP_GE_OQ);
    mask |= static_cast<uint32_t>(_mm256_movemask_ps(at_least)) << (8 * i);
  }
  return mask;
#else
  uint32_t mask = 0;
  for (size_t lane = 0; lane < kLanes; ++lane) mask |= uint32_t{a[lane] >= b[lane]} << lane;
  return mask;
#endif
}

// The lanes of the mask's bits, one after the other; returns how many.
inline uint32_t StorePacked(U16 v, uint32_t mask, void* out) {
  const auto count = static_cast<uint32_t>(__builtin_popcount(mask));
#if defined(__AVX512F__)
  const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), (__m512i)v);
  _mm512_mask_storeu_epi32(out, static_cast<__mmask16>((1u << count) - 1), packed);
#else
  auto* to = static_cast<char*>(out);
  for (; mask != 0; mask &= mask - 1, to += sizeof(uint32_t)) {
    const uint32_t lane = v[__builtin_ctz(mask)];
    memcpy(to, &lane, sizeof(lane));
  }
#endif
  return count;
}

// ---- Over the lanes: lane i with i + 8, then + 4, + 2, + 1
// ---------------------------------------

typedef float F8 __attribute__((vector_size(32)));
typedef float F4 __attribute__((vector_size(16)));

inline float ReduceAdd(F16 v) {
  F8 a, b;
  memcpy(&a, &v, sizeof(a));
  memcpy(&b, reinterpret_cast<const char*>(&v) + sizeof(a), sizeof(b));
  a += b;
  F4 c, d;
  memcpy(&c, &a, sizeof(c));
  memcpy(&d, reinterpret_cast<const char*>(&a) + sizeof(c), sizeof(d));
  c += d;
  return (c[0] + c[2]) + (c[1] + c[3]);
}
inline float ReduceMax(F16 v) {
  F8 a, b;
  memcpy(&a, &v, sizeof(a));
  memcpy(&b, reinterpret_cast<const char*>(&v) + sizeof(a), sizeof(b));
  a = a > b ? a : b;
  F4 c, d;
  memcpy(&c, &a, sizeof(c));
  memcpy(&d, reinterpret_cast<const char*>(&a) + sizeof(c), sizeof(d));
  c = c > d ? c : d;
  const float x = c[0] > c[2] ? c[0] : c[2];
  const float y = c[1] > c[3] ? c[1] : c[3];
  return x > y ? x : y;
}

// ---- Sixteen sums over lanes at once, each by the tree of ReduceAdd
// ------------------------------

// Of all groups of eight, four or two lanes, of a and then of b, the first half and the second.
inline F16 FirstEights(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
}
inline F16 SecondEights(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30,
                                 31);
}
inline F16 FirstFours(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
}
inline F16 SecondFours(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
}
inline F16 FirstTwos(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
}
inline F16 SecondTwos(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
}
inline F16 FirstOnes(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}
inline F16 SecondOnes(F16 a, F16 b) {
  return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
// Lane i is the sum of v[i].
inline F16 ReduceAdd16(const F16* v) {
  F16 eights[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i) {
    const F16 a = v[2 * i], b = v[2 * i + 1];
    eights[i] = FirstEights(a, b) + SecondEights(a, b);
  }
  for (int i = 0; i < 4; ++i) {
    const F16 a = eights[2 * i], b = eights[2 * i + 1];
    fours[i] = FirstFours(a, b) + SecondFours(a, b);
  }
  for (int i = 0; i < 2; ++i) {
    const F16 a = fours[2 * i], b = fours[2 * i + 1];
    twos[i] = FirstTwos(a, b) + SecondTwos(a, b);
  }
  return FirstOnes(twos[0], twos[1]) + SecondOnes(twos[0], twos[1]);
}

// ---- Rounding ----------------------------------------------------------------------------------

inline F16 RoundToBf16(F16 v) {
  const U16 bits = AsBits(v);
  return AsFloat((bits + SetU(0x7fff) + ((bits >> 16) & SetU(1))) & SetU(0xffff0000));
}
// a to the next multiple of a power of two, ties to even; a < 2^22 steps.
inline F16 RoundToStep(F16 a, F16 step) {
  const F16 shift = step * Set(0x1.8p23f);
  return (a + shift) - shift;
}

// ---- Functions ---------------------------------------------------------------------------------

// e^x within 2 ulp for x in [-87, 88]; below it is 0, above it is clamped. e^0 is 1.
inline F16 Exp(F16 x) {
  const F16 low = Set(-87.0f);
  const I16 vanishes = x < low;
  x = Min(Max(x, low), Set(88.0f));
  const F16 shift = Set(0x1.8p23f);
  const F16 n = MulAdd(x, Set(0x1.715476p0f), shift) - shift;  // round(x / ln 2)
  F16 r = MulAdd(n, Set(-0x1.62e4p-1f), x);                    // ln 2 in two parts.
  r = MulAdd(n, Set(-0x1.7f7d1cp-20f), r);
  // e^r = 1 + r + r^2 p(r) on [-ln 2 / 2, ln 2 / 2]: Taylor's coefficients are good to 1e-8 here.
  F16 p = Set(1.0f / 5040);
  p = MulAdd(p, r, Set(1.0f / 720));
  p = MulAdd(p, r, Set(1.0f / 120));
  p = MulAdd(p, r, Set(1.0f / 24));
  p = MulAdd(p, r, Set(1.0f / 6));
  p = MulAdd(p, r, Set(0.5f));
  p = MulAdd(p * r, r, r) + Set(1.0f);
  const U16 exponent = (U16) __builtin_convertvector(n, I16) << 23;
  const F16 y = AsFloat(AsBits(p) + exponent);
  return vanishes ? Set(0.0f) : y;
}
inline F16 Sigmoid(F16 x) { return Set(1.0f) / (Set(1.0f) + Exp(-x)); }

}  // namespace
