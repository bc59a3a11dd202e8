#pragma once

#include "gpu/cuda/formats.cuh"

// Rows of bf16 values, eight neighbours at a time: 16 bytes a load.
namespace reprise::engine::cuda {

struct Octet {
  float values[8];

  __device__ static Octet Of(const uint4& bits) {
    const uint32_t pairs[4] = {bits.x, bits.y, bits.z, bits.w};
    Octet octet = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      octet.values[i] =
          __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
    }
    return octet;
  }
  __device__ static Octet At(const Bf16* from) { return Of(*reinterpret_cast<const uint4*>(from)); }
  __device__ static Octet At(const float* from) {
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    return {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
  }
  // Rounded to bf16.
  __device__ void Store(Bf16* to) const {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = PairBits(values[2 * i], values[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
  __device__ float Largest() const {
    float largest = 0;
#pragma unroll
    for (const float value : values) largest = fmaxf(largest, fabsf(value));
    return largest;
  }
  // To bf16 values, scaled and weighted.
  __device__ Octet Normed(float scale, const Octet& weights) const {
    Octet normed;
#pragma unroll
    for (int i = 0; i < 8; ++i) normed.values[i] = RoundBf16(values[i] * scale * weights.values[i]);
    return normed;
  }
  // At d of a row of dim values whose last 2 pairs values are turned.
  __device__ Octet Turned(uint32_t d, uint32_t dim, uint32_t pairs, const float* cosines,
                          const float* sines) const {
    const uint32_t begin = dim - 2 * pairs;
    Octet turned = *this;
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
      if (d + i < begin) continue;
      const float c = cosines[(d + i - begin) / 2], s = sines[(d + i - begin) / 2];
      turned.values[i] = RoundBf16(values[i] * c - values[i + 1] * s);
      turned.values[i + 1] = RoundBf16(values[i] * s + values[i + 1] * c);
    }
    return turned;
  }
  // Through quantiser A.
  __device__ Octet Rounded(uint32_t scale_code) const {
    Octet rounded;
#pragma unroll
    for (int i = 0; i < 8; ++i) rounded.values[i] = RoundA(values[i], scale_code);
    return rounded;
  }
};

// The largest of 32 values that four lanes hold.
__device__ inline float LargestOfGroup(float largest) {
  const uint32_t four = 0xfu << threadIdx.x % 32 / 4 * 4;
  largest = fmaxf(largest, __shfl_xor_sync(four, largest, 1));
  return fmaxf(largest, __shfl_xor_sync(four, largest, 2));
}

// A row of values, of which each of kThreads threads holds kHeld octets, and finds what is beyond
// in memory: they must still be there.
template <uint32_t kThreads, uint32_t kHeld, typename Value = Bf16>
class RowOfOctets {
 public:
  __device__ RowOfOctets(const Value* from, uint32_t count) : from_(from), count_(count) {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (First(i) < count) held_[i] = Octet::At(from + First(i));
    }
  }
  // apply(where it begins, octet, the other row's octet), for this thread's octets.
  template <typename Other, typename Apply>
  __device__ void ForEach(const RowOfOctets<kThreads, kHeld, Other>& other, Apply&& apply) const {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (First(i) < count_) apply(First(i), held_[i], other.held_[i]);
    }
#pragma unroll 1
    for (uint32_t d = First(kHeld); d < count_; d += kThreads * 8) {
      apply(d, Octet::At(from_ + d), Octet::At(other.from_ + d));
    }
  }

 private:
  template <uint32_t, uint32_t, typename>
  friend class RowOfOctets;
  __device__ static uint32_t First(uint32_t i) { return (i * kThreads + threadIdx.x) * 8; }
  const Value* from_;
  uint32_t count_;
  Octet held_[kHeld];
};

// As BlockSum, to the last bit, by one barrier and of the first kThreads threads alone. room:
// kThreads / 32 floats that are not in use.
template <uint32_t kThreads>
__device__ inline float BlockSumOnce(float x, float* room) {
  const uint32_t lane = threadIdx.x % 32;
  x = WarpSum(x);
  if (threadIdx.x < kThreads && lane == 0) room[threadIdx.x / 32] = x;
  __syncthreads();
  return WarpSum(lane < kThreads / 32 ? room[lane] : 0.0f);
}
// 1 / rms of a row, of which thread t adds values t, t + kThreads and so on, whatever it holds: the
// order decides the last bits of records.
template <uint32_t kThreads>
__device__ inline float InverseRms(const Bf16* row, uint32_t count, float eps, float* room) {
  float squares = 0;
#pragma unroll 10
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    const float value = ToFloat(row[i]);
    squares = fmaf(value, value, squares);
  }
  return 1.0f / sqrtf(BlockSumOnce<kThreads>(squares, room) / static_cast<float>(count) + eps);
}

}  // namespace reprise::engine::cuda
