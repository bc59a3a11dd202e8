#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

// The number formats of the checkpoint and of the caches, one value at a time (model-facts section
// 2.4). These are the definition; the vector kernels of gpu/cpu are tested against them over every
// code. float is IEEE binary32 everywhere, rounding is to nearest even.
namespace reprise::engine {

// ---- bfloat16: the upper half of a float
// ---------------------------------------------------------

inline uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN.
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float FromBf16(uint16_t code) { return std::bit_cast<float>(uint32_t{code} << 16); }
inline float RoundBf16(float x) { return FromBf16(ToBf16(x)); }

// ---- UE8M0: byte b is 2^(b - 127)
// ----------------------------------------------------------------

// The formats never use 0 (it would be 2^-127) nor 255 (NaN).
inline float FromUe8m0(uint8_t code) { return std::bit_cast<float>(uint32_t{code} << 23); }
// 2^ceil(log2 t) of a positive normal t, as a code.
inline uint8_t CeilToUe8m0(float t) {
  const auto bits = std::bit_cast<uint32_t>(t);
  return static_cast<uint8_t>((bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0));
}

// ---- E4M3FN: bias 7, no infinity, 0x7f and 0xff are NaN, largest 448
// -----------------------------

inline float FromE4m3(uint8_t code) {
  const uint32_t exponent = (code >> 3) & 15;
  const auto mantissa = static_cast<float>(code & 7);
  const float scale = std::bit_cast<float>((std::max(exponent, 1u) + 117) << 23);
  const float value = (exponent > 0 ? mantissa + 8.0f : mantissa) * scale;
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000);
  return code >= 128 ? -value : value;
}
// Of |x| <= 448; keeps the sign of zero.
inline uint8_t ToE4m3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint8_t>((bits >> 24) & 0x80);
  const float a = std::fabs(x);
  const int exponent = std::max(static_cast<int>((bits >> 23) & 255) - 127, -6);
  const float step = std::ldexp(1.0f, exponent - 3);  // Below 2^-6 the grid is the subnormal one.
  const float rounded = std::nearbyint(a / step) * step;
  const auto rounded_bits = std::bit_cast<uint32_t>(rounded);
  if (rounded < 0x1p-6f) return sign | static_cast<uint8_t>(rounded * 512.0f);
  return sign | static_cast<uint8_t>((rounded_bits >> 20) - (120u << 3));
}

// ---- E2M1: bit 3 the sign, then 0, 0.5, 1, 1.5, 2, 3, 4, 6
// ---------------------------------------

inline constexpr float kE2m1Values[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
inline float FromE2m1(uint8_t code) { return kE2m1Values[code & 15]; }
// Of |x| <= 6; ties go to the even code; keeps the sign of zero.
inline uint8_t ToE2m1(float x) {
  const auto sign = static_cast<uint8_t>((std::bit_cast<uint32_t>(x) >> 28) & 8);
  const float a = std::fabs(x);
  const float step = a < 2.0f ? 0.5f : a < 4.0f ? 1.0f : 2.0f;
  const float rounded = std::nearbyint(a / step) * step;
  if (rounded < 2.0f) return sign | static_cast<uint8_t>(rounded * 2.0f);
  if (rounded < 4.0f) return sign | static_cast<uint8_t>(rounded + 2.0f);
  return sign | static_cast<uint8_t>(rounded / 2.0f + 4.0f);
}

}  // namespace reprise::engine
