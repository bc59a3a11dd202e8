#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"

// The stream's update: what a sublayer gives, added to four neighbours of every copy at a time.
namespace reprise::engine::cuda {

constexpr uint32_t kCopies = 4;

// Four neighbours in a row.
struct Four {
  float values[4];

  __device__ static Four Of(const uint2& bits) {
    return {{__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
             __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)}};
  }
  __device__ static Four At(const Bf16Bits* from) {
    return Of(*reinterpret_cast<const uint2*>(from));
  }
  __device__ uint2 Bits() const {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values[0], values[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values[2], values[3]);
    return {*reinterpret_cast<const uint32_t*>(&low), *reinterpret_cast<const uint32_t*>(&high)};
  }
  __device__ void Store(Bf16Bits* to) const { *reinterpret_cast<uint2*>(to) = Bits(); }
  // To bf16 values.
  __device__ void Round() { *this = Of(Bits()); }
  __device__ void Add(const Four& other) {
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] += other.values[i];
  }
};

// As LaunchSumParts.
__device__ inline Four SummedParts(const StreamAdd& add, uint64_t at) {
  Four sum = {};
#pragma unroll 1
  for (uint32_t rank = 0; rank < add.ranks; ++rank) {
    const float4 one = *reinterpret_cast<const float4*>(add.parts + rank * add.part_stride + at);
    const Four values = {{one.x, one.y, one.z, one.w}};
    if (rank == 0) {
      sum = values;
    } else {
      sum.Add(values);
    }
  }
  sum.Round();
  return sum;
}

// Experts' outputs in order, then the shared one's. All loads are under way before the first sum.
__device__ inline Four SummedExperts(const StreamAdd& add, uint64_t row, uint32_t hidden,
                                     uint32_t d) {
  constexpr uint32_t kTogether = 6;
  const Four shared = Four::At(add.shared + row * hidden + d);
  const uint32_t* const slot_of = add.slot_of + row * add.chosen;
  Four sum = {};
#pragma unroll 1
  for (uint32_t first = 0; first < add.chosen; first += kTogether) {
    uint32_t slots[kTogether];
    uint2 outputs[kTogether];
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      slots[k] = slot_of[min(first + k, add.chosen - 1)];
    }
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      if (first + k >= add.chosen) continue;
      outputs[k] = *reinterpret_cast<const uint2*>(add.outputs + uint64_t{slots[k]} * hidden + d);
    }
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      if (first + k < add.chosen) sum.Add(Four::Of(outputs[k]));
    }
  }
  sum.Add(shared);
  sum.Round();
  return sum;
}

// What is added to values d to d + 3 of a row: bf16 values.
__device__ inline Four Added(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d) {
  if (add.h != nullptr) return Four::At(add.h + row * hidden + d);
  if (add.parts != nullptr) return SummedParts(add, row * hidden + d);
  return SummedExperts(add, row, hidden, d);
}

// Values d to d + 3 of the copies, with what is added to them: bf16 values.
__device__ inline void UpdatedFour(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d,
                                   const Bf16Bits* stream, Four (&copies)[kCopies]) {
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) {
    copies[c] = Four::At(stream + (row * kCopies + c) * hidden + d);
  }
  if (add.post == nullptr) return;
  const float4 post = reinterpret_cast<const float4*>(add.post)[row];
  const float weights[kCopies] = {post.x, post.y, post.z, post.w};
  float mixing[kCopies][kCopies];
#pragma unroll
  for (uint32_t a = 0; a < kCopies; ++a) {
    const float4 four = reinterpret_cast<const float4*>(add.comb)[row * kCopies + a];
    mixing[a][0] = four.x;
    mixing[a][1] = four.y;
    mixing[a][2] = four.z;
    mixing[a][3] = four.w;
  }
  const Four added = Added(add, row, hidden, d);
  Four now[kCopies];
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float mixed = copies[0].values[i] * mixing[0][k];
#pragma unroll
      for (uint32_t a = 1; a < kCopies; ++a) {
        mixed = fmaf(copies[a].values[i], mixing[a][k], mixed);
      }
      now[k].values[i] = fmaf(weights[k], added.values[i], mixed);
    }
    now[k].Round();
  }
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) copies[k] = now[k];
}

// The copies collapsed by a row's weights: bf16 values.
__device__ inline Four Collapsed(const Four (&copies)[kCopies], const float4& pre) {
  Four sum;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float one = copies[0].values[i] * pre.x;
    one = fmaf(copies[1].values[i], pre.y, one);
    one = fmaf(copies[2].values[i], pre.z, one);
    sum.values[i] = fmaf(copies[3].values[i], pre.w, one);
  }
  sum.Round();
  return sum;
}

}  // namespace reprise::engine::cuda
