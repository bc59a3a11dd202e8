#include <algorithm>
#include <bit>

#include "gpu/cuda/linear_dense_ring.cuh"
#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/tensor_map.h"
#include "protocol/base/bytes.h"

// Products with one matrix that every row meets. One warp has the copy engine fill a ring of stages
// in shared memory with weights as codes and with rows of x, far ahead and, as weights do not
// change, before earlier launches have ended. Two or three warpgroups over the same rows expand
// their weights and multiply. The blocks of a cluster take a slice of the inputs each, and finish
// the eights of rows by turns. Where rows are many, one block may take all slices one after
// another: sums are the same.
namespace reprise::engine::cuda {
namespace {

// A warpgroup's products with all tiles of the slice, from `at` of the ring on. Of `output_tiles`
// from first_tile on those are its own that begin with `first`; what lies beyond them is read as if
// it were one of them. All stages are given back but the last.
template <WeightFormat kFormat, int kRows, int kBlockTiles, int kTiles>
__device__ inline void Multiply(const LinearCall& call, const Work& work, const Slice& slice,
                                uint32_t first, uint32_t output_tiles,
                                const Ring<Plan<kFormat, kRows, kBlockTiles>>& ring, Turn& at,
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
  uint32_t tile = slice.begin;
  const auto begin_stage = [&](uint32_t(&now)[kTiles][kStageTiles]) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) now[m][i] = scales[m][i];
    }
    load_scales(tile + kStageTiles);
    WaitPhase(ring.Full(at.index), at.parity);
  };
  const auto multiply = [&](int i, int m, uint32_t scale, uint32_t(&of_tile)[4][4]) {
    RawWeights<kFormat> raw;
    LoadCodes<kFormat>(ring.Codes(ring.Stage(at.index), first + m, i), thread, &raw);
    raw.scales = scale;
    Expand(raw, of_tile);
    MultiplySteps<kRows>(sums[m], of_tile, SwizzledRows(ring.Rows(ring.Stage(at.index), i)));
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
          ArriveAt(ring.Empty(at.Before<P>()));
        }
      }
    }
    at.Advance<P>();
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

// The same with all slices, one after another, whose sums are added in their order.
template <WeightFormat kFormat, int kRows, int kBlockTiles, int kTiles>
__device__ inline void MultiplyAllSlices(const LinearCall& call, const Work& work,
                                         const SlicesOfBlock& slices, uint32_t first,
                                         uint32_t output_tiles,
                                         const Ring<Plan<kFormat, kRows, kBlockTiles>>& ring,
                                         float (&totals)[kTiles][kRows / 2]) {
  using P = Plan<kFormat, kRows, kBlockTiles>;
#pragma unroll
  for (auto& of_tile : totals) {
#pragma unroll
    for (float& total : of_tile) total = 0;
  }
  Turn at;
#pragma unroll 1
  for (uint32_t s = slices.first; s < slices.end; ++s) {
    const Slice slice = slices.At(call, s);
    float sums[kTiles][kRows / 2];
    Multiply<kFormat, kRows, kBlockTiles>(call, work, slice, first, output_tiles, ring, at, sums);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) totals[m][i] += sums[m][i];
    }
    // The last stages, of which one may have been filled in part, are free again.
    const bool arrives = Arrives(threadIdx.x % 32);
    const uint32_t tiles = slice.end - slice.begin;
    if (arrives && tiles >= kStageTiles) ArriveAt(ring.Empty(at.Before<P>()));
    if (tiles % kStageTiles != 0) {
      if (arrives) ArriveAt(ring.Empty(at.index));
      at.Advance<P>();
    }
  }
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
template <WeightFormat kFormat, int kRows, int kBlockTiles, bool kAllSlices>
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
  const SlicesOfBlock slices{kAllSlices ? 0 : rank, kAllSlices ? call.matrix.slices : rank + 1};
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
    if (thread < 32) Fill<P>(x, call, work, slices, output_tiles, ring);
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
  if constexpr (kAllSlices) {
    MultiplyAllSlices<kFormat, kRows, kBlockTiles>(call, work, slices, first, output_tiles, ring,
                                                   sums);
  } else {
    Turn at;
    Multiply<kFormat, kRows, kBlockTiles>(call, work, slices.At(call, rank), first, output_tiles,
                                          ring, at, sums);
  }

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

template <WeightFormat kFormat, int kRows, int kBlockTiles, bool kAllSlices = false>
cudaError_t LaunchTiles(const LinearCall& call, cudaStream_t stream) {
  using P = Plan<kFormat, kRows, kBlockTiles>;
  const DeviceLinear& matrix = call.matrix;
  const uint64_t columns = call.block_outputs == 0
                               ? matrix.inputs
                               : matrix.outputs / call.block_outputs * call.block_inputs;
  CUtensorMap x;
  const cudaError_t error = MapRows(call.x, columns, call.rows, call.x_stride, kRows, &x);
  if (error != cudaSuccess) return error;
  const uint32_t blocks = kAllSlices ? 1 : matrix.slices;  // Of a cluster.
  // Tiles of rows come first: while they pass, the weights of some outputs are in L2.
  const dim3 grid(static_cast<uint32_t>(DivideUp(call.rows, kRows)) * blocks,
                  static_cast<uint32_t>(DivideUp(matrix.output_tiles, P::kOutputTiles)));
  return Queue<Dense<kFormat, kRows, kBlockTiles, kAllSlices>>(grid, P::kThreads, P::kShared,
                                                               blocks, stream, x, call);
}

// The blocks that get a product of many rows done soonest. Times are about those of an H200, in
// tenths of a microsecond: of a block, and of a tile of its inputs.
DenseBlocks Quickest(const LinearCall& call) {
  const uint32_t slices = call.matrix.slices;
  // Larger clusters do not fill all of the chip's parts.
  const uint64_t at_once = slices > 2 ? 112 : 132;
  const struct {
    DenseBlocks blocks;
    uint32_t tiles, slices;
    uint64_t at_once;
    double of_block, of_input_tile;
  } kinds[] = {{DenseBlocks::kTwoTiles, 2, slices, at_once, 80, 4},
               {DenseBlocks::kThreeTiles, 3, slices, at_once, 80, 5.5},
               {DenseBlocks::kFourTiles, 4, slices, at_once, 80, 7},
               {DenseBlocks::kAllSlices, 2, 1, 132, 50, 4}};
  DenseBlocks best = DenseBlocks::kTwoTiles;
  double least = 1e30;
  for (const auto& kind : kinds) {
    if (call.block_outputs % (kind.tiles * kTileOutputs) != 0) continue;
    const uint64_t blocks = DivideUp(call.matrix.output_tiles, kind.tiles) *
                            DivideUp(call.rows, kManyRows) * kind.slices;
    const double time =
        static_cast<double>(DivideUp(blocks, kind.at_once)) *
        (kind.of_block + kind.of_input_tile * call.matrix.input_tiles / kind.slices);
    if (time > least) continue;
    best = kind.blocks;
    least = time;
  }
  return best;
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, DenseBlocks blocks,
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
      break;
    default:
      return cudaErrorInvalidValue;
  }
  switch (blocks != DenseBlocks::kQuickest ? blocks : Quickest(call)) {
    case DenseBlocks::kTwoTiles:
      return LaunchTiles<kFormat, kManyRows, 2>(call, stream);
    case DenseBlocks::kThreeTiles:
      return LaunchTiles<kFormat, kManyRows, 3>(call, stream);
    case DenseBlocks::kAllSlices:
      return LaunchTiles<kFormat, kManyRows, 2, true>(call, stream);
    default:
      return LaunchTiles<kFormat, kManyRows, 4>(call, stream);
  }
}

}  // namespace

cudaError_t LaunchDenseLinear(const LinearCall& call, uint32_t tile_rows, DenseBlocks blocks,
                              cudaStream_t stream) {
  const uint32_t slices = call.matrix.slices;
  if (slices > kSlicesMax || !std::has_single_bit(slices)) return cudaErrorInvalidValue;
  return ByFormat(call.matrix.format, [&](auto format) {
    return Launch<format.value>(call, tile_rows, blocks, stream);
  });
}

}  // namespace reprise::engine::cuda
