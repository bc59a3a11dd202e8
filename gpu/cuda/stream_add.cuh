#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"

// The stream's update: what a sublayer gives, added to four neighbours of every copy at a time.
namespace reprise::engine::cuda {

constexpr uint32_t kCopies = 4;

// Neighbours in a row, four or eight, which are loaded and stored at once.
template <uint32_t kCount>
struct alignas(kCount * 2) Bf16s {
  static_assert(kCount == 4 || kCount == 8);
  uint32_t pairs[kCount / 2];

  __device__ static Bf16s At(const Bf16Bits* from) { return *reinterpret_cast<const Bf16s*>(from); }
  // Rounded to bf16.
  __device__ static Bf16s Of(const float (&values)[kCount]) {
    Bf16s of;
#pragma unroll
    for (uint32_t i = 0; i < kCount / 2; ++i) {
      of.pairs[i] = PairBits(values[2 * i], values[2 * i + 1]);
    }
    return of;
  }
  __device__ float operator[](uint32_t i) const {
    return __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
  }
  __device__ void Store(Bf16Bits* to) const { *reinterpret_cast<Bf16s*>(to) = *this; }
};

// As LaunchSumParts.
template <uint32_t kCount>
__device__ inline Bf16s<kCount> SummedParts(const StreamAdd& add, uint64_t at) {
  float sum[kCount];
#pragma unroll 1
  for (uint32_t rank = 0; rank < add.ranks; ++rank) {
    const float* const from = add.parts + rank * add.part_stride + at;
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) sum[i + j] = rank == 0 ? values[j] : sum[i + j] + values[j];
    }
  }
  return Bf16s<kCount>::Of(sum);
}

// Experts' outputs in order, then the shared one's. All loads are under way before the first sum.
template <uint32_t kCount>
__device__ inline Bf16s<kCount> SummedExperts(const StreamAdd& add, uint64_t row, uint32_t hidden,
                                              uint32_t d) {
  constexpr uint32_t kTogether = 6;
  const Bf16s<kCount> shared = Bf16s<kCount>::At(add.shared + row * hidden + d);
  const uint32_t* const slot_of = add.slot_of + row * add.chosen;
  float sum[kCount] = {};
  const auto include = [&](const Bf16s<kCount>& one) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) sum[i] += one[i];
  };
#pragma unroll 1
  for (uint32_t first = 0; first < add.chosen; first += kTogether) {
    uint32_t slots[kTogether];
    Bf16s<kCount> outputs[kTogether];
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      slots[k] = slot_of[min(first + k, add.chosen - 1)];
    }
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      if (first + k >= add.chosen) continue;
      outputs[k] = Bf16s<kCount>::At(add.outputs + uint64_t{slots[k]} * hidden + d);
    }
#pragma unroll
    for (uint32_t k = 0; k < kTogether; ++k) {
      if (first + k < add.chosen) include(outputs[k]);
    }
  }
  include(shared);
  return Bf16s<kCount>::Of(sum);
}

// What is added to the values of a row from d on.
template <uint32_t kCount>
__device__ inline Bf16s<kCount> Added(const StreamAdd& add, uint64_t row, uint32_t hidden,
                                      uint32_t d) {
  if (add.h != nullptr) return Bf16s<kCount>::At(add.h + row * hidden + d);
  if (add.parts != nullptr) return SummedParts<kCount>(add, row * hidden + d);
  return SummedExperts<kCount>(add, row, hidden, d);
}

// What a row's stream is updated and collapsed by.
struct alignas(16) RowWeights {
  static constexpr uint32_t kPieces = kCopies + 2;  // Of four floats.
  float comb[kCopies][kCopies];
  float post[kCopies], pre[kCopies];

  // pre null: none; without an update, only pre.
  __device__ static float4 Piece(const StreamAdd& add, const float* pre, uint64_t row, uint32_t i) {
    if (i == kCopies + 1) return reinterpret_cast<const float4*>(pre)[row];
    if (add.post == nullptr) return {};
    return i < kCopies ? reinterpret_cast<const float4*>(add.comb)[row * kCopies + i]
                       : reinterpret_cast<const float4*>(add.post)[row];
  }
  __device__ void Load(const StreamAdd& add, const float* of_pre, uint64_t row) {
#pragma unroll
    for (uint32_t i = 0; i < kPieces; ++i) {
      if (i <= kCopies || of_pre != nullptr) SetPiece(i, Piece(add, of_pre, row, i));
    }
  }
  __device__ void SetPiece(uint32_t i, const float4& four) {
    reinterpret_cast<float4*>(this)[i] = four;
  }
};

// Values of the copies from d on.
template <uint32_t kCount>
__device__ inline void LoadCopies(const Bf16Bits* stream, uint64_t row, uint32_t hidden, uint32_t d,
                                  Bf16s<kCount> (&copies)[kCopies]) {
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) {
    copies[c] = Bf16s<kCount>::At(stream + (row * kCopies + c) * hidden + d);
  }
}

template <uint32_t kCount>
__device__ inline void UpdateCopies(const RowWeights& weights, const Bf16s<kCount>& added,
                                    Bf16s<kCount> (&copies)[kCopies]) {
  float now[kCopies][kCount];
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
#pragma unroll
    for (uint32_t k = 0; k < kCopies; ++k) {
      float mixed = copies[0][i] * weights.comb[0][k];
#pragma unroll
      for (uint32_t a = 1; a < kCopies; ++a) mixed = fmaf(copies[a][i], weights.comb[a][k], mixed);
      now[k][i] = fmaf(weights.post[k], added[i], mixed);
    }
  }
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) copies[k] = Bf16s<kCount>::Of(now[k]);
}

// The copies collapsed by a row's weights.
template <uint32_t kCount>
__device__ inline Bf16s<kCount> Collapsed(const Bf16s<kCount> (&copies)[kCopies],
                                          const float (&pre)[kCopies]) {
  float sum[kCount];
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    sum[i] = copies[0][i] * pre[0];
#pragma unroll
    for (uint32_t c = 1; c < kCopies; ++c) sum[i] = fmaf(copies[c][i], pre[c], sum[i]);
  }
  return Bf16s<kCount>::Of(sum);
}

}  // namespace reprise::engine::cuda
