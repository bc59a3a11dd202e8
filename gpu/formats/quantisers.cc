#include "gpu/formats/quantisers.h"

#include <algorithm>
#include <cmath>

#include "gpu/formats/number_formats.h"

namespace reprise::engine {
namespace {

float LargestMagnitude(const float* x, size_t count, float floor) {
  float largest = floor;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

void PackE2m1(const float* x, size_t count, float scale, uint8_t* codes) {
  for (size_t i = 0; i < count; i += 2) {
    const uint8_t low = ToE2m1(std::clamp(x[i] / scale, -6.0f, 6.0f));
    const uint8_t high = ToE2m1(std::clamp(x[i + 1] / scale, -6.0f, 6.0f));
    codes[i / 2] = static_cast<uint8_t>(low | (high << 4));
  }
}

void UnpackE2m1(const uint8_t* codes, size_t count, float scale, float* x) {
  for (size_t i = 0; i < count; i += 2) {
    x[i] = FromE2m1(codes[i / 2] & 15) * scale;
    x[i + 1] = FromE2m1(codes[i / 2] >> 4) * scale;
  }
}

}  // namespace

void QuantiseA(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t g = 0; g < count; g += kGroupA) {
    const float largest = LargestMagnitude(x + g, kGroupA, 1e-4f);
    scales[g / kGroupA] = CeilToUe8m0(largest * (1.0f / 448.0f));
    const float scale = FromUe8m0(scales[g / kGroupA]);
    for (size_t i = g; i < g + kGroupA; ++i) {
      codes[i] = ToE4m3(std::clamp(x[i] / scale, -448.0f, 448.0f));
    }
  }
}

void DequantiseA(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t i = 0; i < count; ++i) x[i] = FromE4m3(codes[i]) * FromUe8m0(scales[i / kGroupA]);
}

void QuantiseB(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t g = 0; g < count; g += kGroupB) {
    const float largest = LargestMagnitude(x + g, kGroupB, 6.0f * 0x1p-9f);
    scales[g / kGroupB] = ToE4m3(std::min(largest / 6.0f, 448.0f));
    PackE2m1(x + g, kGroupB, FromE4m3(scales[g / kGroupB]), codes + g / 2);
  }
}

void DequantiseB(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t g = 0; g < count; g += kGroupB) {
    UnpackE2m1(codes + g / 2, kGroupB, FromE4m3(scales[g / kGroupB]), x + g);
  }
}

void QuantiseC(const float* x, size_t count, uint8_t* codes, uint8_t* scales) {
  for (size_t g = 0; g < count; g += kGroupC) {
    const float largest = LargestMagnitude(x + g, kGroupC, 6.0f * 0x1p-126f);
    scales[g / kGroupC] = CeilToUe8m0(largest * (1.0f / 6.0f));
    PackE2m1(x + g, kGroupC, FromUe8m0(scales[g / kGroupC]), codes + g / 2);
  }
}

void DequantiseC(const uint8_t* codes, const uint8_t* scales, size_t count, float* x) {
  for (size_t g = 0; g < count; g += kGroupC) {
    UnpackE2m1(codes + g / 2, kGroupC, FromUe8m0(scales[g / kGroupC]), x + g);
  }
}

}  // namespace reprise::engine
