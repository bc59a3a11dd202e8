#include <algorithm>
#include <bit>

#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/tensor_map.h"
#include "protocol/base/bytes.h"

// Products with one matrix that every row meets. One warp has the copy engine fill a ring of stages
// in shared memory with weights as codes and with rows of x, far ahead and, as weights do not
// change, before earlier launches have ended. Two or three warpgroups over the same rows expand
// their weights and multiply. The blocks of a cluster take a slice of the inputs each, and finish
// the eights of rows by turns.
namespace reprise::engine::cuda {
namespace {

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

// By one warp.
template <typename P>
__device__ inline void Fill(const CUtensorMap& x, const LinearCall& call, const Work& work,
                            const Slice& slice, uint32_t output_tiles, const Ring<P>& ring) {
  const bool leads = threadIdx.x % 32 == 0;
  const auto fill_weights = [&](uint32_t tile, uint32_t index) {
    const uint32_t count = min(kStageTiles, slice.end - tile);
    ArriveExpecting(ring.Full(index), count * (P::kRowsBytes + output_tiles * P::kCodes));
    for (uint32_t o = 0; o < output_tiles; ++o) {
      const uint64_t at = work.first_tile + o * call.matrix.input_tiles + tile;
      CopyFromGlobal(ring.Codes(ring.Stage(index), o, 0),
                     static_cast<const uint8_t*>(call.matrix.codes) + at * P::kCodes,
                     count * P::kCodes, ring.Full(index));
    }
  };
  const auto fill_rows = [&](uint32_t tile, uint32_t index) {
    for (uint32_t i = 0; i < kStageTiles && tile + i < slice.end; ++i) {
      CopyBox(ring.Rows(ring.Stage(index), i), x, work.column + (tile + i) * kTileInputs, work.row,
              ring.Full(index));
    }
  };
  const uint32_t early_end = min(slice.begin + P::kEarlyStages * kStageTiles, slice.end);
  if (leads) {
    PrefetchMap(x);
    for (uint32_t tile = slice.begin, i = 0; tile < early_end; tile += kStageTiles) {
      fill_weights(tile, i++);
    }
  }
  FollowEarlier();
  uint32_t index = 0, parity = 1;
  for (uint32_t tile = slice.begin; tile < slice.end; tile += kStageTiles) {
    WaitPhase(ring.Empty(index), parity);
    if (leads) {
      if (tile >= early_end) fill_weights(tile, index);
      fill_rows(tile, index);
    }
    __syncwarp();
    if (++index == P::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
}

// A warpgroup's products with all tiles of the slice. Of `output_tiles` from first_tile on those
// are its own that begin with `first`; what lies beyond them is read as if it were one of them.
template <WeightFormat kFormat, int kRows, int kBlockTiles, int kTiles>
__device__ inline void Multiply(const LinearCall& call, const Work& work, const Slice& slice,
                                uint32_t first, uint32_t output_tiles,
                                const Ring<Plan<kFormat, kRows, kBlockTiles>>& ring,
                                float (&sums)[kTiles][kRows / 2]) {
  using P = Plan<kFormat, kRows, kBlockTiles>;
  constexpr uint32_t kScaleWords = P::kScaleWords;
  const uint32_t thread = threadIdx.x % kGroupThreads;
  const uint32_t* scales_from[kTiles] = {};
  uint32_t scales[kTiles][kStageTiles] = {};
#pragma unroll
  for (int m = 0; m < kTiles && kScaleWords > 0; ++m) {
    const uint64_t tile =
        work.first_tile + min(first + m, output_tiles - 1) * call.matrix.input_tiles;
    scales_from[m] = static_cast<const uint32_t*>(call.matrix.scales) + tile * kScaleWords +
                     ScaleWord<kFormat>(thread);
  }
  const auto load_scales = [&](uint32_t tile) {
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles && kScaleWords > 0; ++m) {
        if (tile + i < slice.end) scales[m][i] = __ldg(scales_from[m] + (tile + i) * kScaleWords);
      }
    }
  };
  load_scales(slice.begin);
#pragma unroll
  for (auto& of_tile : sums) {
#pragma unroll
    for (float& sum : of_tile) sum = 0;
  }
  // While one tile is multiplied, the codes of the next are expanded.
  uint32_t a[2][4][4] = {};
  uint32_t tile = slice.begin, index = 0, parity = 0;
  const auto begin_stage = [&](uint32_t(&now)[kTiles][kStageTiles]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) now[m][i] = scales[m][i];
    }
    load_scales(tile + kStageTiles);
    WaitPhase(ring.Full(index), parity);
  };
  const auto multiply = [&](int i, int m, uint32_t scale, uint32_t(&of_tile)[4][4]) {
    RawWeights<kFormat> raw;
    LoadCodes<kFormat>(ring.Codes(ring.Stage(index), first + m, i), thread, &raw);
    raw.scales = scale;
    Expand(raw, of_tile);
    MultiplyTile<kRows>(sums[m], of_tile, SwizzledRows(ring.Rows(ring.Stage(index), i)), true);
  };
  for (; tile + kStageTiles <= slice.end; tile += kStageTiles) {
    uint32_t now[kTiles][kStageTiles];
    begin_stage(now);
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        const int turn = i * kTiles + m;
        multiply(i, m, now[m][i], a[turn % 2]);
        WgmmaWait<1>();
        Keep(a[(turn + 1) % 2]);
        if (turn == 0 && tile > slice.begin && Arrives(thread % 32)) {
          // The last product of the stage before is over.
          ArriveAt(ring.Empty(index == 0 ? P::kStages - 1 : index - 1));
        }
      }
    }
    if (++index == P::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
  WgmmaWait<0>();
#pragma unroll
  for (auto& of_tile : a) Keep(of_tile);
  if (tile < slice.end) {  // One is left.
    uint32_t now[kTiles][kStageTiles];
    begin_stage(now);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply(0, m, now[m][0], a[0]);
      WgmmaWait<0>();
      Keep(a[0]);
    }
  }
#pragma unroll
  for (auto& of_tile : sums) Hold(of_tile);
}

constexpr uint32_t kPieceBytes = kGroupThreads * 16;  // Of an eight of rows, of a tile of outputs.

// Every block of the cluster gets its share of the eights of rows, one after another from `to` on.
template <typename P>
__device__ inline void Send(const float (&sums)[P::kTiles][P::kEights * 4], uint32_t to,
                            uint32_t share) {
  uint32_t peer = 0, turn = 0, at = PeerAddress(to, 0);
#pragma unroll
  for (int eight = 0; eight < P::kEights; ++eight) {
#pragma unroll
    for (int m = 0; m < P::kTiles; ++m) StoreRemote(at + m * kPieceBytes, &sums[m][eight * 4]);
    at += P::kOutputTiles * kPieceBytes;
    if (++turn == share) {
      turn = 0;
      at = PeerAddress(to, ++peer);
    }
  }
}
// So many eights of a tile of outputs: the sums of all slices' in order, beginning with 0.
template <typename P, uint32_t kSlices, uint32_t kTurns>
__device__ inline void AddSlices(const uint8_t* from, float (&totals)[kTurns * 4]) {
  constexpr uint32_t kEightStep = P::kOutputTiles * kPieceBytes;
  float4 parts[kTurns][kSlices];
#pragma unroll
  for (uint32_t s = 0; s < kSlices; ++s) {
#pragma unroll
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const uint8_t* const at = from + (s * P::Share(kSlices) + turn) * kEightStep;
      parts[turn][s] = *reinterpret_cast<const float4*>(at);
    }
  }
#pragma unroll
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    float* const total = totals + turn * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) total[i] = 0;
#pragma unroll
    for (const float4& part : parts[turn]) {
      total[0] += part.x;
      total[1] += part.y;
      total[2] += part.z;
      total[3] += part.w;
    }
  }
}
// finish(slices), for their number as a constant.
template <typename Finish>
__device__ inline void BySlices(uint32_t slices, const Finish& finish) {
  switch (slices) {
    case 1:
      return finish(std::integral_constant<uint32_t, 1>());
    case 2:
      return finish(std::integral_constant<uint32_t, 2>());
    case 4:
      return finish(std::integral_constant<uint32_t, 4>());
    default:
      return finish(std::integral_constant<uint32_t, kSlicesMax>());
  }
}
// Of `tiles` of outputs from first_output on: floats to y, other values to where rows are staged.
template <typename P, uint32_t kSlices>
__device__ inline void Finish(const LinearCall& call, const Work& work, uint32_t first_row,
                              uint32_t first_output, uint32_t tiles, const uint8_t* from,
                              Bf16* staged) {
  constexpr uint32_t kShare = P::Share(kSlices);
#pragma unroll 1
  for (uint32_t m = 0; m < tiles; ++m, from += kPieceBytes) {
    if (call.output != LinearOutput::kFloat) {
      float totals[kShare * 4];
      AddSlices<P, kSlices, kShare>(from, totals);
      StageSums<kShare * 8>(totals, staged + m * kShare * (8 * kStagedRow));
      continue;
    }
#pragma unroll 1
    for (uint32_t turn = 0; turn < kShare; ++turn) {
      float total[4];
      AddSlices<P, kSlices, 1>(from + turn * (P::kOutputTiles * kPieceBytes), total);
      StoreFloats(call, work, first_row + turn * 8, first_output + m * kTileOutputs, total);
    }
  }
}

// What follows the products runs once, and its code comes from HBM: it is kept short, in loops
// wherever no sums are in registers.
template <WeightFormat kFormat, int kRows, int kBlockTiles>
__global__ __launch_bounds__(Plan<kFormat, kRows, kBlockTiles>::kThreads,
                             kRows == kManyRows
                                 ? 1
                                 : 2) void Dense(const __grid_constant__ CUtensorMap x,
                                                 const __grid_constant__ LinearCall call) {
  using P = Plan<kFormat, kRows, kBlockTiles>;
  constexpr int kTiles = P::kTiles, kMultipliers = P::kMultipliers;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t full[P::kStages], empty[P::kStages];
  const Ring<P> ring{SharedAddress(shared), SharedAddress(full), SharedAddress(empty)};
  const uint32_t blocks = ClusterBlocks(), rank = ClusterRank();
  const uint32_t first_output_tile = blockIdx.y * P::kOutputTiles;
  Work work;
  FindWork(call, first_output_tile, blockIdx.x / blocks, kRows, &work);
  const Slice slice(call.matrix.input_tiles, rank, blocks);
  // The last block may have tiles too many: they are computed from anything, and not stored.
  const uint32_t output_tiles = min(P::kOutputTiles, call.matrix.output_tiles - first_output_tile);
  if (threadIdx.x == 0) {
    for (uint32_t i = 0; i < P::kStages; ++i) {
      InitBarrier(ring.Full(i), 1);
      InitBarrier(ring.Empty(i), kMultipliers * kGroupThreads / 32 * kWarpArrivals);
    }
    FenceBarriers();
  }
  __syncthreads();
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  if (group == kMultipliers) {
    if constexpr (P::kWide) FewerRegisters<kFillRegisters>();
    if (thread < 32) Fill<P>(x, call, work, slice, output_tiles, ring);
    for (int i = 0; i < 2 && blocks > 1; ++i) {
      ClusterArrive();
      ClusterWait();
    }
    return;
  }
  if constexpr (P::kWide) MoreRegisters<MultiplyRegisters(kMultipliers)>();
  const uint32_t first = group * kTiles;
  float sums[kTiles][kRows / 2];
  FollowEarlier();
  Multiply<kFormat, kRows, kBlockTiles>(call, work, slice, first, output_tiles, ring, sums);

  const bool floats = call.output == LinearOutput::kFloat;
  const uint32_t tiles = min(kTiles, output_tiles - min(first, output_tiles));
  const uint32_t output = work.output + first * kTileOutputs;
  // The block finishes so many eights of rows.
  const uint32_t share = P::Share(blocks), first_row = rank * share * 8;
  Bf16* staged = reinterpret_cast<Bf16*>(shared) + group * (kTiles * kRows * kStagedRow);
  if (blocks == 1 && !floats) {
    GroupBarrier<5>(kMultipliers * kGroupThreads);  // Nobody reads stages any more.
#pragma unroll
    for (int m = 0; m < kTiles; ++m) StageSums<kRows>(sums[m], staged + m * (kRows * kStagedRow));
  } else {
    const uint32_t at = first * kPieceBytes + thread * 16;
    ClusterArrive();
    ClusterWait();  // No block reads its stages any more.
    Send<P>(sums, ring.stages + at + rank * share * (P::kOutputTiles * kPieceBytes), share);
    ClusterArrive();
    ClusterWait();
    if (first_row >= work.rows) return;
    staged = reinterpret_cast<Bf16*>(shared + P::kSumsBytes) +
             group * (kTiles * P::Share(2) * 8 * kStagedRow);
    const auto finish = [&](auto slices) {
      Finish<P, slices.value>(call, work, first_row, output, tiles, shared + at, staged);
    };
    BySlices(blocks, finish);
    if (floats) return;
  }
  BarrierOfGroup(group);
#pragma unroll 1
  for (uint32_t m = 0; m < tiles; ++m) {
    StoreRows(call, work.row + first_row, work.rows - first_row, share * 8,
              output + m * kTileOutputs, staged + m * share * (8 * kStagedRow));
  }
}

template <WeightFormat kFormat, int kRows, int kBlockTiles>
cudaError_t LaunchTiles(const LinearCall& call, cudaStream_t stream) {
  using P = Plan<kFormat, kRows, kBlockTiles>;
  const DeviceLinear& matrix = call.matrix;
  const uint64_t columns = call.block_outputs == 0
                               ? matrix.inputs
                               : matrix.outputs / call.block_outputs * call.block_inputs;
  CUtensorMap x;
  const cudaError_t error = MapRows(call.x, columns, call.rows, call.x_stride, kRows, &x);
  if (error != cudaSuccess) return error;
  // Tiles of rows come first: while they pass, the weights of some outputs are in L2.
  const dim3 grid(static_cast<uint32_t>(DivideUp(call.rows, kRows)) * matrix.slices,
                  static_cast<uint32_t>(DivideUp(matrix.output_tiles, P::kOutputTiles)));
  return Queue<Dense<kFormat, kRows, kBlockTiles>>(grid, P::kThreads, P::kShared, matrix.slices,
                                                   stream, x, call);
}

// Of how many tiles of outputs blocks get a product of many rows done soonest.
uint32_t BlockTiles(const LinearCall& call) {
  // Larger clusters do not fill all of the chip's parts.
  const uint32_t at_once = call.matrix.slices > 2 ? 112 : 132;
  const struct { uint32_t tiles, time; } kinds[] = {{2, 14}, {3, 19}, {4, 24}};
  uint32_t best = 2;
  uint64_t least = UINT64_MAX;
  for (const auto& kind : kinds) {
    if (call.block_outputs % (kind.tiles * kTileOutputs) != 0) continue;
    const uint64_t blocks = DivideUp(call.matrix.output_tiles, kind.tiles) *
                            DivideUp(call.rows, kManyRows) * call.matrix.slices;
    const uint64_t time = DivideUp(blocks, at_once) * kind.time;
    if (time > least) continue;
    best = kind.tiles;
    least = time;
  }
  return best;
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, uint32_t block_tiles,
                   cudaStream_t stream) {
  switch (tile_rows) {
    case 8:
      return LaunchTiles<kFormat, 8, 2>(call, stream);
    case 16:
      return LaunchTiles<kFormat, 16, 2>(call, stream);
    case 32:
      return LaunchTiles<kFormat, 32, 2>(call, stream);
    case 64:
      return LaunchTiles<kFormat, 64, 2>(call, stream);
    case kManyRows:
      switch (block_tiles != 0 ? block_tiles : BlockTiles(call)) {
        case 2:
          return LaunchTiles<kFormat, kManyRows, 2>(call, stream);
        case 3:
          return LaunchTiles<kFormat, kManyRows, 3>(call, stream);
        default:
          return LaunchTiles<kFormat, kManyRows, 4>(call, stream);
      }
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchDenseLinear(const LinearCall& call, uint32_t tile_rows, uint32_t block_tiles,
                              cudaStream_t stream) {
  const uint32_t slices = call.matrix.slices;
  if (slices > kSlicesMax || !std::has_single_bit(slices)) return cudaErrorInvalidValue;
  return ByFormat(call.matrix.format, [&](auto format) {
    return Launch<format.value>(call, tile_rows, block_tiles, stream);
  });
}

}  // namespace reprise::engine::cuda
