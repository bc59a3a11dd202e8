#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

// The number formats of the caches (model-facts section 2.4), as device code. The CPU's
// gpu/formats/quantisers.h is what they must equal, code by code.
namespace reprise::engine::cuda {

using Bf16 = __nv_bfloat16;

// Launches take bf16 values as their bits.
__device__ inline const Bf16* AsBf16(const uint16_t* bits) {
  return reinterpret_cast<const Bf16*>(bits);
}
__device__ inline Bf16* AsBf16(uint16_t* bits) { return reinterpret_cast<Bf16*>(bits); }

__device__ inline float ToFloat(Bf16 x) { return __bfloat162float(x); }
__device__ inline Bf16 ToBf16(float x) { return __float2bfloat16_rn(x); }
// Two, rounded, as a word.
__device__ inline uint32_t PairBits(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// And a word as two; and both times a factor.
__device__ inline __nv_bfloat162 AsPair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
__device__ inline uint32_t Multiplied(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(AsPair(pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Through bf16 and back.
__device__ inline float RoundBf16(float x) { return __bfloat162float(__float2bfloat16_rn(x)); }

__device__ inline float PowerOf(uint32_t ue8m0) {
  return ue8m0 == 0 ? __uint_as_float(0x00400000u) : __uint_as_float(ue8m0 << 23);
}
__device__ inline uint32_t CeilToPowerCode(float t) {
  const uint32_t bits = __float_as_uint(t);
  return (bits >> 23) + ((bits & 0x7fffff) != 0 ? 1u : 0u);
}

// ---- E4M3 and quantiser A ----------------------------------------------------------------------

__device__ inline uint8_t E4m3Of(float x) {  // Saturates at 448.
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}
__device__ inline float E4m3Value(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}
// Scale code of a group of 32 by its largest magnitude.
__device__ inline uint32_t ScaleA(float largest) {
  return CeilToPowerCode(fmaxf(largest, 1e-4f) * (1.0f / 448.0f));
}
__device__ inline float InverseOfScaleA(uint32_t scale) {
  return __uint_as_float((254 - scale) << 23);
}
__device__ inline uint8_t CodeA(float x, uint32_t scale) {
  return E4m3Of(fminf(fmaxf(x * InverseOfScaleA(scale), -448.0f), 448.0f));
}
// x quantised and dequantised: a bf16 value.
__device__ inline float RoundA(float x, uint32_t scale) {
  return E4m3Value(CodeA(x, scale)) * PowerOf(scale);
}

// The same of two, by fewer instructions.
__device__ inline float2 RoundPairA(float2 x, uint32_t scale) {
  const float inverse = InverseOfScaleA(scale), power = PowerOf(scale);
  const auto clamped = [&](float one) { return fminf(fmaxf(one * inverse, -448.0f), 448.0f); };
  const __nv_fp8x2_storage_t codes =
      __nv_cvt_float2_to_fp8x2(make_float2(clamped(x.x), clamped(x.y)), __NV_SATFINITE, __NV_E4M3);
  const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3)));
  return {values.x * power, values.y * power};
}

// ---- E2M1, quantisers B and C ------------------------------------------------------------------

// x / s, clamped to 6, ties to the even code.
__device__ inline uint32_t E2m1Of(float x) {
  const float a = fabsf(x);
  const uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                        (a >= 3.5f) + (a > 5.0f);
  return code | (__float_as_uint(x) >> 31 << 3);
}
__device__ inline float E2m1Value(uint32_t code) {
  // 0, 0.5, 1, 1.5, 2, 3, 4, 6: the code is a float with two bits of exponent and one of mantissa.
  const float magnitude = __uint_as_float((code & 7) << 22) * 0x1p126f;
  return (code & 8) != 0 ? -magnitude : magnitude;
}
__device__ inline uint8_t ScaleB(float largest) {
  return E4m3Of(fminf(fmaxf(largest, 6.0f * 0x1p-9f) / 6.0f, 448.0f));
}
__device__ inline uint32_t ScaleC(float largest) {
  return CeilToPowerCode(fmaxf(largest, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
}

// ---- Warps -------------------------------------------------------------------------------------

__device__ inline float WarpMax(float x) {
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}
__device__ inline float WarpSum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffff, x, step);
  return x;
}
// Of all threads of the block, in an order that does not depend on anything; `room`: 33 floats.
__device__ inline float BlockSum(float x, float* room) {
  x = WarpSum(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32) {
    float y = threadIdx.x < blockDim.x / 32 ? room[threadIdx.x] : 0.0f;
    y = WarpSum(y);
    if (threadIdx.x == 0) room[32] = y;
  }
  __syncthreads();
  return room[32];
}

}  // namespace reprise::engine::cuda
