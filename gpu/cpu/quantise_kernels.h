// The quantisers as vector loops. Part of kernels_<isa>.cc; see simd16.h.
#pragma once

#include "gpu/cpu/simd16.h"

namespace {

inline float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}
inline uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float Larger(float a, float b) { return a > b ? a : b; }
inline float Smaller(float a, float b) { return a < b ? a : b; }

inline uint32_t CeilToPowerCode(float t) {
  const uint32_t bits = BitsOf(t);
  return (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1 : 0);
}
inline float PowerOf(uint32_t code) { return FloatOf(code << 23); }
inline float InversePowerOf(uint32_t code) { return FloatOf((254 - code) << 23); }

// ---- E4M3
// ----------------------------------------------------------------------------------------

// |x| <= 448 to the grid; the result is a magnitude.
inline F16 RoundE4m3(F16 magnitude) {
  const U16 exponent = AsBits(magnitude) >> 23;
  const U16 low = SetU(127 - 6);
  const U16 at_least = exponent > low ? exponent : low;
  return RoundToStep(magnitude, AsFloat((at_least - SetU(3)) << 23));
}
inline U16 E4m3Code(F16 rounded, U16 sign) {
  const U16 normal = (AsBits(rounded) >> 20) - SetU(120u << 3);
  const U16 subnormal = (U16) __builtin_convertvector(rounded * Set(512.0f), I16);
  return (rounded < Set(0x1p-6f) ? subnormal : normal) | (sign >> 24);
}
inline F16 E4m3Value(U16 code) {
  const U16 magnitude = code & SetU(0x7f);
  const F16 normal = AsFloat((magnitude << 20) + SetU(120u << 23));
  const F16 subnormal = ToFloat(magnitude) * Set(0x1p-9f);
  F16 value = magnitude < SetU(8) ? subnormal : normal;
  value = magnitude == SetU(0x7f) ? AsFloat(SetU(0x7fc00000)) : value;
  return AsFloat(AsBits(value) | ((code & SetU(0x80)) << 24));
}

struct GroupA {
  F16 low, high;  // Rounded codes' values, signed.
  F16 low_magnitude, high_magnitude;
  uint32_t scale;
};
inline GroupA RoundGroupA(const float* x) {
  const F16 a = Load(x), b = Load(x + kLanes);
  const float largest = Larger(ReduceMax(Max(Abs(a), Abs(b))), 1e-4f);
  GroupA group;
  group.scale = CeilToPowerCode(largest * (1.0f / 448.0f));
  const F16 inverse = Set(InversePowerOf(group.scale));
  group.low_magnitude = RoundE4m3(Min(Abs(a) * inverse, Set(448.0f)));
  group.high_magnitude = RoundE4m3(Min(Abs(b) * inverse, Set(448.0f)));
  group.low = AsFloat(AsBits(group.low_magnitude) | SignOf(a));
  group.high = AsFloat(AsBits(group.high_magnitude) | SignOf(b));
  return group;
}

void KernelQuantiseA(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const GroupA group = RoundGroupA(x + i);
    StoreBytes(codes + i, E4m3Code(group.low_magnitude, SignOf(group.low)));
    StoreBytes(codes + i + kLanes, E4m3Code(group.high_magnitude, SignOf(group.high)));
    scales[i / (2 * kLanes)] = static_cast<uint8_t>(group.scale);
  }
}

void KernelRoundA(const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const GroupA group = RoundGroupA(x + i);
    const F16 scale = Set(PowerOf(group.scale));
    Store(y + i, group.low * scale);
    Store(y + i + kLanes, group.high * scale);
  }
}

void KernelDequantiseA(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const F16 scale = Set(PowerOf(scales[i / (2 * kLanes)]));
    Store(x + i, E4m3Value(LoadBytes(codes + i)) * scale);
    Store(x + i + kLanes, E4m3Value(LoadBytes(codes + i + kLanes)) * scale);
  }
}

// ---- E2M1
// ----------------------------------------------------------------------------------------

inline F16 E2m1Table() {
  return F16{0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
}

// Codes of 16 values already divided by their scale, packed into 8 bytes.
inline void StoreE2m1(F16 x, uint8_t* out) {
  const F16 a = Min(Abs(x), Set(6.0f));
  const F16 step = a < Set(2.0f) ? Set(0.5f) : (a < Set(4.0f) ? Set(1.0f) : Set(2.0f));
  const F16 r = RoundToStep(a, step);
  const F16 index =
      r < Set(2.0f) ? r * Set(2.0f) : (r < Set(4.0f) ? r + Set(2.0f) : r * Set(0.5f) + Set(4.0f));
  const U16 code = (U16) __builtin_convertvector(index, I16) | (SignOf(x) >> 28);
  uint8_t nibbles[kLanes];
  StoreBytes(nibbles, code);
  for (size_t i = 0; i < kLanes / 2; ++i) {
    out[i] = static_cast<uint8_t>(nibbles[2 * i] | (nibbles[2 * i + 1] << 4));
  }
}
inline F16 LoadE2m1(const uint8_t* in) {
  uint32_t words[2];
  memcpy(words, in, sizeof(words));
  const uint32_t a = words[0], b = words[1];
  const U16 repeated = {a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b};
  const U16 shifts = {0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28};
  return Lookup(E2m1Table(), (repeated >> shifts) & SetU(15));
}

inline uint32_t E4m3CodeOf(float x) { return E4m3Code(RoundE4m3(Set(x)), SetU(0))[0]; }
inline float E4m3ValueOf(uint8_t code) { return E4m3Value(SetU(code))[0]; }

void KernelQuantiseB(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t i = 0; i < count; i += kLanes) {
    const F16 v = Load(x + i);
    const float largest = Larger(ReduceMax(Abs(v)), 6.0f * 0x1p-9f);
    const uint32_t scale = E4m3CodeOf(Smaller(largest / 6.0f, 448.0f));
    scales[i / kLanes] = static_cast<uint8_t>(scale);
    StoreE2m1(v / Set(E4m3ValueOf(static_cast<uint8_t>(scale))), codes + i / 2);
  }
}
void KernelDequantiseB(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t i = 0; i < count; i += kLanes) {
    Store(x + i, LoadE2m1(codes + i / 2) * Set(E4m3ValueOf(scales[i / kLanes])));
  }
}

void KernelQuantiseC(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t i = 0; i < count; i += 2 * kLanes) {
    const F16 a = Load(x + i), b = Load(x + i + kLanes);
    const float largest = Larger(ReduceMax(Max(Abs(a), Abs(b))), 6.0f * 0x1p-126f);
    const uint32_t scale = CeilToPowerCode(largest * (1.0f / 6.0f));
    scales[i / (2 * kLanes)] = static_cast<uint8_t>(scale);
    const F16 divisor = Set(PowerOf(scale));
    StoreE2m1(a / divisor, codes + i / 2);
    StoreE2m1(b / divisor, codes + (i + kLanes) / 2);
  }
}
void KernelDequantiseC(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t i = 0; i < count; i += kLanes) {
    Store(x + i, LoadE2m1(codes + i / 2) * Set(PowerOf(scales[i / (2 * kLanes)])));
  }
}

}  // namespace
