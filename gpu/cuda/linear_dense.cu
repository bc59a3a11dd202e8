#include <algorithm>

#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/tensor_map.h"
#include "protocol/base/bytes.h"

// Products with one matrix that every row meets. One warp has the copy engine fill a ring of stages
// in shared memory with weights as codes and with rows of x, far ahead and, as weights do not
// change, before earlier launches have ended. Two warpgroups over the same rows expand their
// weights and multiply. The blocks of a cluster take a slice of the inputs each, and finish the
// eights of rows by turns.
namespace reprise::engine::cuda {
namespace {

constexpr int kMultipliers = 2;  // Warpgroups.
constexpr int kStageTiles = 2;   // Of inputs.
constexpr uint32_t kSlicesMax = 8;
// Of a block of few rows: two of them leave a multiprocessor room for those of the next launch. But
// matrices in bf16 are small, and their blocks few: all they need may come before the launch does.
constexpr uint32_t kFewShared = 72 * 1024;
// Shares of so many eights of rows, of all slices together, at most.
constexpr uint32_t SharesOf(uint32_t eights) {
  uint32_t most = 0;
  for (uint32_t slices = 2; slices <= kSlicesMax; ++slices) {
    most = std::max(most, (eights + slices - 1) / slices * slices);
  }
  return most;
}

// kTiles: of 64 outputs, of a warpgroup.
template <WeightFormat kFormat, int kRows, int kTiles>
struct Plan {
  // With as many rows a block has a multiprocessor to itself, and its registers go to multipliers.
  static constexpr bool kWide = kRows == kManyRows;
  static constexpr int kOutputTiles = kMultipliers * kTiles;
  static constexpr uint32_t kThreads =
      kMultipliers * kGroupThreads + (kWide ? kGroupThreads : uint32_t{32});
  static constexpr uint32_t kRowsBytes = kRows * 128, kCodes = TileBytes(kFormat);
  static constexpr uint32_t kScaleWords = TileScaleBytes(kFormat) / 4;
  static constexpr uint32_t kStageBytes = kStageTiles * (kRowsBytes + kOutputTiles * kCodes);
  static constexpr uint32_t kStages = std::clamp<uint32_t>(
      (kWide || kFormat == WeightFormat::kBf16 ? kSharedMax : kFewShared) / kStageBytes, 2, 6);
  // Later, sums: of every slice its share of the eights of rows, four values of a thread.
  // And the block's own share as it is stored, one tile of a warpgroup after the other.
  static constexpr uint32_t kSumsBytes = SharesOf(kRows / 8) * kOutputTiles * kGroupThreads * 16;
  static constexpr uint32_t kEightsMax = (kRows / 8 + 1) / 2;
  static constexpr uint32_t kShared =
      std::max({kStages * kStageBytes, kMultipliers* kRows* kStagedRowBytes,
                kSumsBytes + kMultipliers* kEightsMax * 8 * kStagedRowBytes});
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
  const uint32_t first_end = min(slice.begin + P::kStages * kStageTiles, slice.end);
  if (leads) {
    for (uint32_t tile = slice.begin, i = 0; tile < first_end; tile += kStageTiles) {
      fill_weights(tile, i++);
    }
  }
  FollowEarlier();
  if (leads) {
    for (uint32_t tile = slice.begin, i = 0; tile < first_end; tile += kStageTiles) {
      fill_rows(tile, i++);
    }
  }
  uint32_t index = 0, parity = 0;
  for (uint32_t tile = first_end; tile < slice.end; tile += kStageTiles) {
    WaitPhase(ring.Empty(index), parity);
    if (leads) {
      fill_weights(tile, index);
      fill_rows(tile, index);
    }
    __syncwarp();
    if (++index == P::kStages) {
      index = 0;
      parity ^= 1;
    }
  }
}

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

// A warpgroup's products with all tiles of the slice. Of `output_tiles` from first_tile on those
// are its own that begin with `first`; what lies beyond them is read as if it were one of them.
template <WeightFormat kFormat, int kRows, int kTiles>
__device__ inline void Multiply(const LinearCall& call, const Work& work, const Slice& slice,
                                uint32_t first, uint32_t output_tiles,
                                const Ring<Plan<kFormat, kRows, kTiles>>& ring,
                                float (&sums)[kTiles][kRows / 2]) {
  using P = Plan<kFormat, kRows, kTiles>;
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
        if (turn == 0 && tile > slice.begin && thread % 32 == 0) {
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

template <WeightFormat kFormat, int kRows, int kTiles>
__global__ __launch_bounds__(Plan<kFormat, kRows, kTiles>::kThreads,
                             kRows == kManyRows
                                 ? 1
                                 : 2) void Dense(const __grid_constant__ CUtensorMap x,
                                                 const __grid_constant__ LinearCall call) {
  using P = Plan<kFormat, kRows, kTiles>;
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
      InitBarrier(ring.Empty(i), kMultipliers * kGroupThreads / 32);
    }
    FenceBarriers();
  }
  __syncthreads();
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  if (group == kMultipliers) {
    if constexpr (P::kWide) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (thread < 32) Fill<P>(x, call, work, slice, output_tiles, ring);
    for (int i = 0; i < 2 && blocks > 1; ++i) {
      ClusterArrive();
      ClusterWait();
    }
    return;
  }
  if constexpr (P::kWide) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  const uint32_t first = group * kTiles;
  float sums[kTiles][kRows / 2];
  FollowEarlier();
  Multiply<kFormat, kRows, kTiles>(call, work, slice, first, output_tiles, ring, sums);
  const auto output_of = [&](int m) { return work.output + (first + m) * kTileOutputs; };
  const bool floats = call.output == LinearOutput::kFloat;
  constexpr uint32_t kEights = kRows / 8;

  if (blocks == 1) {
    GroupBarrier<3>(kMultipliers * kGroupThreads);  // Nobody reads stages any more.
    Bf16* const staged = reinterpret_cast<Bf16*>(shared) + group * kRows * kStagedRow;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      if (first + m >= output_tiles) return;
      if (floats) {
#pragma unroll
        for (uint32_t eight = 0; eight < kEights; ++eight) {
          const float four[4] = {sums[m][eight * 4], sums[m][eight * 4 + 1], sums[m][eight * 4 + 2],
                                 sums[m][eight * 4 + 3]};
          StoreFloats(call, work, eight * 8, output_of(m), four);
        }
        continue;
      }
      if (m > 0) BarrierOfGroup(group);
      StageSums<kRows>(sums[m], staged);
      BarrierOfGroup(group);
      StoreRows(call, work.row, work.rows, kRows, output_of(m), staged);
    }
    return;
  }
  // The block finishes so many eights of rows, one after another.
  const uint32_t share = (kEights + blocks - 1) / blocks, first_eight = rank * share;
  const auto place = [&](uint32_t of_slice, uint32_t turn, int m) {
    const uint32_t eight = (of_slice * share + turn) * P::kOutputTiles + first + m;
    return (eight * kGroupThreads + thread) * 16;
  };
  ClusterArrive();
  ClusterWait();  // No block reads its stages any more.
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (uint32_t eight = 0; eight < kEights; ++eight) {
      const uint32_t to = ring.stages + place(rank, eight % share, m);
      StoreRemote(PeerAddress(to, eight / share), &sums[m][eight * 4]);
    }
  }
  ClusterArrive();
  ClusterWait();
  Bf16* const staged =
      reinterpret_cast<Bf16*>(shared + P::kSumsBytes) + group * (P::kEightsMax * 8 * kStagedRow);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    if (first + m >= output_tiles) return;
    if (m > 0) BarrierOfGroup(group);
#pragma unroll 4
    for (uint32_t turn = 0; turn < share; ++turn) {
      float total[4] = {};
      for (uint32_t s = 0; s < blocks; ++s) {
        const float4 one = *reinterpret_cast<const float4*>(shared + place(s, turn, m));
        total[0] += one.x;
        total[1] += one.y;
        total[2] += one.z;
        total[3] += one.w;
      }
      if (floats) {
        StoreFloats(call, work, (first_eight + turn) * 8, output_of(m), total);
      } else {
        StageSums<8>(total, staged + turn * 8 * kStagedRow);
      }
    }
    if (floats || first_eight * 8 >= work.rows) continue;
    BarrierOfGroup(group);
    StoreRows(call, work.row + first_eight * 8, work.rows - first_eight * 8, share * 8,
              output_of(m), staged);
  }
}

template <WeightFormat kFormat, int kRows, int kTiles>
cudaError_t LaunchTiles(const LinearCall& call, cudaStream_t stream) {
  using P = Plan<kFormat, kRows, kTiles>;
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
  return Queue<Dense<kFormat, kRows, kTiles>>(grid, P::kThreads, P::kShared, matrix.slices, stream,
                                              x, call);
}

// Whether blocks of half as many outputs get a product of many rows done sooner.
bool BySmallBlocks(const LinearCall& call) {
  // Larger clusters do not fill all of the chip's parts.
  const uint32_t at_once = call.matrix.slices > 3 ? 112 : 120 + (call.matrix.slices < 3 ? 12 : 0);
  const auto turns = [&](uint32_t tiles) {
    const uint64_t blocks = DivideUp(call.matrix.output_tiles, tiles) *
                            DivideUp(call.rows, kManyRows) * call.matrix.slices;
    return DivideUp(blocks, at_once) * tiles;
  };
  // Two tiles take some 0.6 of the time of four.
  return call.block_outputs % 256 != 0 || turns(2) * 7 < turns(4) * 6;
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, uint32_t block_tiles,
                   cudaStream_t stream) {
  switch (tile_rows) {
    case 8:
      return LaunchTiles<kFormat, 8, 1>(call, stream);
    case 16:
      return LaunchTiles<kFormat, 16, 1>(call, stream);
    case 32:
      return LaunchTiles<kFormat, 32, 1>(call, stream);
    case 64:
      return LaunchTiles<kFormat, 64, 1>(call, stream);
    case kManyRows:
      return block_tiles == 2 || (block_tiles == 0 && BySmallBlocks(call))
                 ? LaunchTiles<kFormat, kManyRows, 1>(call, stream)
                 : LaunchTiles<kFormat, kManyRows, 2>(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t LaunchDenseLinear(const LinearCall& call, uint32_t tile_rows, uint32_t block_tiles,
                              cudaStream_t stream) {
  if (call.matrix.slices > kSlicesMax) return cudaErrorInvalidValue;
  return ByFormat(call.matrix.format, [&](auto format) {
    return Launch<format.value>(call, tile_rows, block_tiles, stream);
  });
}

}  // namespace reprise::engine::cuda
