#pragma once

#include <algorithm>

#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/linear_tiles.cuh"
#include "gpu/cuda/mbarrier.cuh"

// What the blocks of linear_dense.cu are made of, and the ring of stages through which their
// weights and rows come.
namespace reprise::engine::cuda {

constexpr int kStageTiles = 2;      // Of inputs.
constexpr uint32_t kSlicesMax = 8;  // Their number is a power of two.
// Of a block of few rows: two of them leave a multiprocessor room for those of the next launch. But
// matrices in bf16 are small, and their blocks few: all they need may come before the launch does.
constexpr uint32_t kFewShared = 72 * 1024;

// Registers of a thread of a block that has a multiprocessor to itself: of one that does not
// multiply, and what that leaves the others.
constexpr int kFillRegisters = 32;
__host__ __device__ constexpr int MultiplyRegisters(int multipliers) {
  const int groups = multipliers + 1, at_launch = 65536 / (groups * int{kGroupThreads}) / 8 * 8;
  return (at_launch * groups - kFillRegisters) / multipliers / 8 * 8;
}

// kBlockTiles: of 64 outputs.
template <WeightFormat kFormat, int kRows, int kBlockTiles>
struct Plan {
  // With as many rows a block has a multiprocessor to itself, and its registers go to multipliers.
  static constexpr bool kWide = kRows == kManyRows;
  static constexpr int kMultipliers = kBlockTiles == 3 ? 3 : 2;  // Warpgroups.
  static constexpr int kTiles = kBlockTiles / kMultipliers;      // Of each.
  static constexpr int kOutputTiles = kBlockTiles;
  static constexpr uint32_t kThreads =
      kMultipliers * kGroupThreads + (kWide ? kGroupThreads : uint32_t{32});
  static constexpr uint32_t kRowsBytes = kRows * 128, kCodes = TileBytes(kFormat);
  static constexpr uint32_t kScaleWords = TileScaleBytes(kFormat) / 4;
  static constexpr uint32_t kStageBytes = kStageTiles * (kRowsBytes + kOutputTiles * kCodes);
  static constexpr uint32_t kStages = std::clamp<uint32_t>(
      (kWide || kFormat == WeightFormat::kBf16 ? kSharedMax : kFewShared) / kStageBytes, 2, 6);
  // Of weights, filled before earlier launches have ended: more would keep many rows waiting.
  static constexpr uint32_t kEarlyStages = kWide ? 1 : kStages;
  // Later, sums: of every slice its share of the eights of rows, four values of a thread.
  // And the block's own share as it is stored.
  static constexpr uint32_t kEights = kRows / 8;
  __device__ __host__ static constexpr uint32_t Share(uint32_t slices) {
    return (kEights + slices - 1) / slices;
  }
  static constexpr uint32_t kSumsBytes =
      std::max(kEights, kSlicesMax) * kOutputTiles * kGroupThreads * 16;
  static constexpr uint32_t kShared =
      std::max({kStages * kStageBytes, kOutputTiles* kRows* kStagedRowBytes,
                kSumsBytes + kOutputTiles* Share(2) * 8 * kStagedRowBytes});
  static_assert(kShared <= kSharedMax);
};

template <typename P>
struct Ring {
  __device__ uint32_t Stage(uint32_t index) const { return stages + index * P::kStageBytes; }
  __device__ static uint32_t Rows(uint32_t stage, uint32_t i) { return stage + i * P::kRowsBytes; }
  __device__ static uint32_t Codes(uint32_t stage, uint32_t output_tile, uint32_t i) {
    return stage + kStageTiles * P::kRowsBytes + (output_tile * kStageTiles + i) * P::kCodes;
  }
  __device__ uint32_t Full(uint32_t index) const { return full + index * 8; }
  __device__ uint32_t Empty(uint32_t index) const { return empty + index * 8; }
  uint32_t stages, full, empty;
};
// The stage of a ring that is next, and its parity.
struct Turn {
  template <typename P>
  __device__ void Advance() {
    if (++index == P::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
  template <typename P>
  __device__ uint32_t Before() const {
    return index == 0 ? P::kStages - 1 : index - 1;
  }
  uint32_t index = 0, parity = 0;
};
// The slices of inputs that a block takes: one, or all.
struct SlicesOfBlock {
  __device__ Slice At(const LinearCall& call, uint32_t i) const {
    return Slice(call.matrix.input_tiles, i, call.matrix.slices);
  }
  uint32_t first, end;
};

// By one warp.
template <typename P>
__device__ inline void Fill(const CUtensorMap& x, const LinearCall& call, const Work& work,
                            const SlicesOfBlock& slices, uint32_t output_tiles,
                            const Ring<P>& ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const auto fill_weights = [&](const Slice& slice, uint32_t tile, uint32_t index) {
    const uint32_t count = min(kStageTiles, slice.end - tile);
    ArriveExpecting(ring.Full(index), count * (P::kRowsBytes + output_tiles * P::kCodes));
    for (uint32_t o = 0; o < output_tiles; ++o) {
      const uint64_t at = work.first_tile + o * call.matrix.input_tiles + tile;
      CopyFromGlobal(ring.Codes(ring.Stage(index), o, 0),
                     static_cast<const uint8_t*>(call.matrix.codes) + at * P::kCodes,
                     count * P::kCodes, ring.Full(index));
    }
  };
  const auto fill_rows = [&](const Slice& slice, uint32_t tile, uint32_t index) {
    for (uint32_t i = 0; i < kStageTiles && tile + i < slice.end; ++i) {
      CopyBox(ring.Rows(ring.Stage(index), i), x, work.column + (tile + i) * kTileInputs, work.row,
              ring.Full(index));
    }
  };
  const Slice first = slices.At(call, slices.first);
  const uint32_t early_end = min(first.begin + P::kEarlyStages * kStageTiles, first.end);
  if (leads) {
    PrefetchMap(x);
    for (uint32_t tile = first.begin, i = 0; tile < early_end; tile += kStageTiles) {
      fill_weights(first, tile, i++);
    }
  }
  FollowEarlier();
  Turn turn{.index = 0, .parity = 1};
  for (uint32_t s = slices.first; s < slices.end; ++s) {
    const Slice slice = slices.At(call, s);
    for (uint32_t tile = slice.begin; tile < slice.end; tile += kStageTiles) {
      WaitPhase(ring.Empty(turn.index), turn.parity);
      if (leads) {
        if (tile >= early_end) fill_weights(slice, tile, turn.index);
        fill_rows(slice, tile, turn.index);
      }
      __syncwarp();
      turn.Advance<P>();
    }
  }
}

}  // namespace reprise::engine::cuda
