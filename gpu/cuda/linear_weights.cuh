#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/linear.h"
#include "gpu/cuda/wgmma.cuh"

// Weights as operand A of products, from codes as they lie (linear_layout.h).
namespace reprise::engine::cuda {

constexpr uint32_t kGroupThreads = 128;  // A warpgroup.

// A thread's part of a tile as it is loaded: codes, and the scales of its two rows.
template <WeightFormat kFormat>
struct RawWeights {
  static constexpr int kPieces = TileBytes(kFormat) / (kGroupThreads * 16);
  uint4 codes[kPieces];
  uint32_t scales;
};

// Which word of a tile's scales is a thread's.
template <WeightFormat kFormat>
__device__ inline uint32_t ScaleWord(uint32_t thread) {
  return kFormat == WeightFormat::kFp8 ? thread / 32 : thread / 32 * 8 + thread % 32 / 4;
}

// Where a thread's parts of successive tiles of inputs lie.
template <WeightFormat kFormat>
class WeightParts {
 public:
  WeightParts() = default;
  __device__ WeightParts(const LinearCall& call, uint64_t first_tile, uint32_t thread)
      : codes_(static_cast<const uint4*>(call.matrix.codes) + first_tile * kTilePieces + thread) {
    if constexpr (kScaleWords > 0) {
      scales_ = static_cast<const uint32_t*>(call.matrix.scales) + first_tile * kScaleWords +
                ScaleWord<kFormat>(thread);
    }
  }
  // Of the tile so many further on: best a constant.
  __device__ void Load(uint32_t tile, RawWeights<kFormat>* raw) const {
#pragma unroll
    for (int i = 0; i < RawWeights<kFormat>::kPieces; ++i) {
      raw->codes[i] = __ldg(codes_ + tile * kTilePieces + i * kGroupThreads);
    }
    if constexpr (kScaleWords > 0) raw->scales = __ldg(scales_ + tile * kScaleWords);
  }
  // Brings so many tiles from that one on as far as L2; by the first thread of a warpgroup.
  __device__ void PrefetchAll(uint32_t tile, uint32_t tiles) const {
    PrefetchBulk(codes_ + tile * kTilePieces, tiles * kTilePieces * 16);
    if constexpr (kScaleWords > 0) {
      PrefetchBulk(scales_ + tile * kScaleWords, tiles * kScaleWords * 4);
    }
  }
  // The same of the thread's part of one tile: fewer instructions, where all do it.
  __device__ void Prefetch(uint32_t tile) const {
#pragma unroll
    for (int i = 0; i < RawWeights<kFormat>::kPieces; ++i) {
      PrefetchL2(codes_ + tile * kTilePieces + i * kGroupThreads);
    }
    if constexpr (kScaleWords > 0) PrefetchL2(scales_ + tile * kScaleWords);
  }
  __device__ void Skip(uint32_t tiles) {
    codes_ += tiles * kTilePieces;
    if constexpr (kScaleWords > 0) scales_ += tiles * kScaleWords;
  }

 private:
  static constexpr uint32_t kTilePieces = TileBytes(kFormat) / 16;
  static constexpr uint32_t kScaleWords = TileScaleBytes(kFormat) / 4;
  const uint4* codes_ = nullptr;
  const uint32_t* scales_ = nullptr;
};

// A thread's codes of a tile that lies in shared memory from `codes` on.
template <WeightFormat kFormat>
__device__ inline void LoadCodes(uint32_t codes, uint32_t thread, RawWeights<kFormat>* raw) {
#pragma unroll
  for (int i = 0; i < RawWeights<kFormat>::kPieces; ++i) {
    uint4& piece = raw->codes[i];
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(piece.x), "=r"(piece.y), "=r"(piece.z), "=r"(piece.w)
                 : "r"(codes + (i * kGroupThreads + thread) * 16));
  }
}

// The factors of both rows, upper in the low half, from exponents that lie at bits 7 and 23.
__device__ inline __nv_bfloat162 FactorsOf(uint32_t word) { return AsPair(word & 0x7f807f80); }

// Operand A of two of the four steps of a tile.
template <WeightFormat kFormat>
__device__ inline void ExpandHalf(const RawWeights<kFormat>& raw, int half, uint32_t (*a)[4]) {
  if constexpr (kFormat == WeightFormat::kBf16) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4& codes = raw.codes[2 * half + i];
      a[i][0] = codes.x;
      a[i][1] = codes.y;
      a[i][2] = codes.z;
      a[i][3] = codes.w;
    }
  } else {
    // Shifts and masks that undo kFp8Bits and kFp4Bits.
    const __nv_bfloat162 factors =
        FactorsOf(half == 0 ? raw.scales : __funnelshift_r(raw.scales, raw.scales, 8));
    // A product takes either half of a register for both its factors: no instructions.
    const __nv_bfloat162 upper = __low2bfloat162(factors), lower = __high2bfloat162(factors);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kFormat == WeightFormat::kFp8) {
        const uint4 codes = raw.codes[half];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const uint32_t word =
              i == 0 ? (k == 0 ? codes.x : codes.y) : (k == 0 ? codes.z : codes.w);
          a[i][2 * k] = Multiplied(word & 0x87f087f0, upper);
          a[i][2 * k + 1] = Multiplied((word << 4 ^ word >> 4) & 0x87f087f0, lower);
        }
      } else {
        const uint4 codes = raw.codes[0];
        const uint32_t word =
            half == 0 ? (i == 0 ? codes.x : codes.y) : (i == 0 ? codes.z : codes.w);
        a[i][0] = Multiplied(word & 0x81c081c0, upper);
        a[i][1] = Multiplied(word << 4 & 0x81c081c0, lower);
        a[i][2] = Multiplied(__funnelshift_l(word, word, 10) & 0x81c081c0, upper);
        a[i][3] = Multiplied((word << 6 ^ word >> 2) & 0x81c081c0, lower);
      }
    }
  }
}

// Of all four.
template <WeightFormat kFormat>
__device__ inline void Expand(const RawWeights<kFormat>& raw, uint32_t (&a)[4][4]) {
  ExpandHalf(raw, 0, a);
  ExpandHalf(raw, 1, a + 2);
}

}  // namespace reprise::engine::cuda
