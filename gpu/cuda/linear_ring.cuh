#pragma once

#include "gpu/cuda/linear_tiles.cuh"
#include "gpu/cuda/mbarrier.cuh"

// Products of few rows with weights that are codes. What binds them, beside HBM, is how many
// instructions a code takes: so one warp has the copy engine fill a ring of stages in shared memory
// with codes and scales, far ahead, and adds rows of x; four warps expand their weights and
// multiply, each for itself.
namespace reprise::engine::cuda {

constexpr uint32_t kRingTiles = 2;  // Of 64 outputs, of a block.
constexpr uint32_t kRingThreads = kGroupThreads + 32;
constexpr uint32_t kRingStages = 2;
constexpr int kRingBlocks = 4;  // On a multiprocessor, each at another place.

// What a stage holds: some tiles of inputs, of all the block's outputs.
template <WeightFormat kFormat, int kRows>
struct RingStage {
  static constexpr uint32_t kTiles = kFormat == WeightFormat::kFp4 ? 4 : 2;
  static constexpr uint32_t kCodes = TileBytes(kFormat), kScales = TileScaleBytes(kFormat);
  static constexpr uint32_t kRowTileBytes = kRows * 128;  // Of a tile of inputs, swizzled.
  static constexpr uint32_t kScalesAt = kRingTiles * kTiles * kCodes;
  static constexpr uint32_t kRowsAt = kScalesAt + kRingTiles * kTiles * kScales;
  static constexpr uint32_t kBytes = (kRowsAt + kTiles * kRowTileBytes + 127) / 128 * 128;

  __device__ static uint32_t Codes(uint32_t m, uint32_t tile) {
    return (m * kTiles + tile) * kCodes;
  }
  __device__ static uint32_t Scales(uint32_t m, uint32_t tile) {
    return kScalesAt + (m * kTiles + tile) * kScales;
  }
};

// Once the copies that this thread queued are there; one of the arrivals that were announced.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Where a warp is in the ring.
template <uint32_t kBytes>
struct Ring {
  // By all threads.
  __device__ Ring() {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ uint64_t barriers[2 * kRingStages];
    stages = SharedAddress(shared);
    full = SharedAddress(barriers);
    if (threadIdx.x == 0) {
      for (uint32_t i = 0; i < kRingStages; ++i) {
        InitBarrier(full + i * 8, 1 + 32);  // The bytes of weights, and each lane's of rows.
        InitBarrier(full + (kRingStages + i) * 8, kGroupThreads / 32 * kWarpArrivals);
      }
      FenceBarriers();
    }
    __syncthreads();
  }
  __device__ uint32_t Stage() const { return stages + index * kBytes; }
  __device__ uint32_t Full() const { return full + index * 8; }
  __device__ uint32_t Empty() const { return full + (kRingStages + index) * 8; }
  __device__ void Next() {
    if (++index < kRingStages) return;
    index = 0;
    parity ^= 1;
  }
  uint32_t stages, full;
  uint32_t index = 0, parity = 0;
};

// By one warp. `waits`: for earlier launches, which do not change which weights are wanted.
template <WeightFormat kFormat, int kRows>
__device__ inline void FillRing(const LinearCall& call, const Work& work, uint32_t output_tiles,
                                bool waits, Ring<RingStage<kFormat, kRows>::kBytes> ring) {
  using Stage = RingStage<kFormat, kRows>;
  const uint32_t lane = threadIdx.x % 32, tiles = call.matrix.input_tiles;
  // Codes or scales of a tile of outputs are a lane's.
  const uint32_t m = lane / 2, unit = lane % 2 == 0 ? Stage::kCodes : Stage::kScales;
  const uint32_t weights_at = lane % 2 == 0 ? Stage::Codes(m, 0) : Stage::Scales(m, 0);
  const uint8_t* const weights =
      static_cast<const uint8_t*>(lane % 2 == 0 ? call.matrix.codes : call.matrix.scales) +
      (work.first_tile + m * tiles) * unit;
  const auto fill_weights = [&](uint32_t tile) {
    const uint32_t count = min(Stage::kTiles, tiles - tile);
    if (lane == 0) {
      ArriveExpecting(ring.Full(), count * output_tiles * (Stage::kCodes + Stage::kScales));
    }
    __syncwarp();
    if (lane < 2 * output_tiles) {
      CopyFromGlobal(ring.Stage() + weights_at, weights + tile * unit, count * unit, ring.Full());
    }
  };
  const uint32_t first_end = waits ? min(tiles, kRingStages * Stage::kTiles) : 0;
  if (waits) {
    const auto begin = ring;
    for (uint32_t tile = 0; tile < first_end; tile += Stage::kTiles, ring.Next()) {
      fill_weights(tile);
    }
    ring = begin;
    FollowEarlier();
  }
  // Sixteen bytes of a row of every tile are a lane's, and of every fourth row.
  constexpr uint32_t kAtOnce = 4;
  const uint32_t piece = lane % 8, first_row = lane / 8;
  const Bf16* rows[kRows / kAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < kRows / kAtOnce; ++i) {
    const uint32_t row = i * kAtOnce + first_row;
    const uint32_t at = work.row + (row < work.rows ? row : 0);
    rows[i] = static_cast<const Bf16*>(call.x) +
              (call.gather == nullptr ? at : call.gather[at]) * call.x_stride + work.column +
              piece * 8;
  }
  for (uint32_t tile = 0; tile < tiles; tile += Stage::kTiles, ring.Next()) {
    if (tile >= first_end) {
      WaitPhase(ring.Empty(), ring.parity ^ 1);
      fill_weights(tile);
    }
    const uint32_t to = ring.Stage() + Stage::kRowsAt;
#pragma unroll
    for (uint32_t i = 0; i < kRows / kAtOnce; ++i) {
      if (i * kAtOnce >= work.rows) break;
      const uint32_t row = i * kAtOnce + first_row;
#pragma unroll
      for (uint32_t t = 0; t < Stage::kTiles; ++t) {
        if (tile + t < tiles && row < work.rows) {
          CopyAsync16(to + t * Stage::kRowTileBytes + SwizzledOffset(row, piece),
                      rows[i] + t * kTileInputs, true);
        }
      }
      rows[i] += Stage::kTiles * kTileInputs;
    }
    ArriveAfterCopies(ring.Full());
  }
}

// A warp's products with all tiles, for the first kColumns rows. Of those that are none it
// multiplies what happens to be there: a row's sums are its own.
template <WeightFormat kFormat, int kRows, int kColumns>
__device__ inline void MultiplyRing(const LinearCall& call,
                                    Ring<RingStage<kFormat, kRows>::kBytes> ring,
                                    float (&sums)[kRingTiles][kColumns / 2]) {
  using Stage = RingStage<kFormat, kRows>;
  const uint32_t thread = threadIdx.x, lane = thread % 32;
  const uint32_t codes_at = thread * 16, scales_at = ScaleWord<kFormat>(thread) * 4;
#pragma unroll
  for (auto& of_tile : sums) {
#pragma unroll
    for (float& sum : of_tile) sum = 0;
  }
  const auto multiply = [&](uint32_t tile) {  // Of the stage.
    uint32_t rows[kColumns / 8][2][4];
#pragma unroll
    for (int eight = 0; eight < kColumns / 8; ++eight) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        LoadMatrices(ring.Stage() + Stage::kRowsAt + tile * Stage::kRowTileBytes + eight * 1024 +
                         SwizzledOffset(lane % 8, half * 4 + lane / 8),
                     rows[eight][half]);
      }
    }
#pragma unroll
    for (uint32_t m = 0; m < kRingTiles; ++m) {
      RawWeights<kFormat> raw;
      LoadCodes(ring.Stage() + codes_at + Stage::Codes(m, tile), 0, &raw);
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(raw.scales)
                   : "r"(ring.Stage() + scales_at + Stage::Scales(m, tile)));
      uint32_t a[4][4];
      Expand(raw, a);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int eight = 0; eight < kColumns / 8; ++eight) {
          const uint32_t(&b)[4] = rows[eight][step / 2];
          Multiply16x8(&sums[m][eight * 4], a[step], b[step % 2 * 2], b[step % 2 * 2 + 1]);
        }
      }
    }
  };
  uint32_t left = call.matrix.input_tiles;
  for (; left >= Stage::kTiles; left -= Stage::kTiles) {
    WaitPhase(ring.Full(), ring.parity);
#pragma unroll
    for (uint32_t tile = 0; tile < Stage::kTiles; ++tile) multiply(tile);
    __syncwarp();
    if (Arrives(lane)) ArriveAt(ring.Empty());
    ring.Next();
  }
  if (left > 0) {
    WaitPhase(ring.Full(), ring.parity);
#pragma unroll 1
    for (uint32_t tile = 0; tile < left; ++tile) multiply(tile);
  }
}

// By as few columns as the work has rows: of an expert they are often fewer than a tile takes.
template <WeightFormat kFormat, int kRows, int kColumns = kRows>
__device__ inline void MultiplyAndStore(const LinearCall& call, const Work& work,
                                        uint32_t output_tiles,
                                        const Ring<RingStage<kFormat, kRows>::kBytes>& ring) {
  if constexpr (kColumns > 8) {
    if (work.rows <= kColumns / 2) {
      MultiplyAndStore<kFormat, kRows, kColumns / 2>(call, work, output_tiles, ring);
      return;
    }
  }
  __shared__ LargestRoom<kColumns> room;
  float sums[kRingTiles][kColumns / 2];
  MultiplyRing<kFormat, kRows, kColumns>(call, ring, sums);
#pragma unroll
  for (uint32_t m = 0; m < kRingTiles; ++m) {
    if (m >= output_tiles) return;
    Store<kColumns>(call, work, 0, work.output + m * kTileOutputs, sums[m], 0, room);
  }
}

// A block's outputs for one tile of rows.
template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplyByRing(const LinearCall& call, uint32_t output_block,
                                      uint32_t row_tile) {
  const uint32_t first = output_block * kRingTiles;
  const bool waits = WeightsAreKnown(call);
  Work work;
  if (!FollowToWork(call, first, row_tile, kRows, &work)) return;
  const Ring<RingStage<kFormat, kRows>::kBytes> ring;
  const uint32_t output_tiles = min(kRingTiles, call.matrix.output_tiles - first);
  // The same for the whole warp, which the compiler then knows.
  if (__shfl_sync(0xffffffff, threadIdx.x / 32, 0) == kGroupThreads / 32) {
    FillRing<kFormat, kRows>(call, work, output_tiles, waits, ring);
  } else {
    if (waits) FollowEarlier();
    MultiplyAndStore<kFormat, kRows>(call, work, output_tiles, ring);
  }
}

}  // namespace reprise::engine::cuda
