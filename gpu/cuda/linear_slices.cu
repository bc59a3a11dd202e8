#include "gpu/cuda/linear_slices.cuh"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {
namespace {

template <WeightFormat kFormat, int kRows>
__global__ __launch_bounds__(kSliceThreads,
                             kRows == 8 ? 2 : 1) void SlicedFewRows(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  MultiplySlicedFewRows<kFormat, kRows>(call);
}

// Two warpgroups over the same 128 rows; each takes 64 outputs. Tiles of rows come first along the
// grid: while they pass, the weights of some outputs are in L2.
constexpr uint32_t kManyShared = kSliceStages * kManyRows * 128;

template <WeightFormat kFormat>
__global__ __launch_bounds__(kManyGroups* kGroupThreads, 1) void SlicedManyRows(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  constexpr uint32_t kStageBytes = kManyRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ LargestRoom<kManyRows> rooms[kManyGroups];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  Work work;
  FindWork(call, blockIdx.y * kManyGroups, blockIdx.x, kManyRows, &work);
  const uint32_t tiles = call.matrix.input_tiles;
  const bool real = blockIdx.y * kManyGroups + group < call.matrix.output_tiles;
  WeightParts<kFormat> parts(call, work.first_tile + (real ? uint64_t{group} * tiles : 0), thread);
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kManyRows, kManyGroups * kGroupThreads> copies(call, work, threadIdx.x);

  RawWeights<kFormat> raw;
  parts.Load(0, &raw);
  for (uint32_t i = 1; i < min(kManyPrefetch, tiles); ++i) parts.Prefetch(i);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < tiles) copies.Queue(i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kManyRows / 2], total[kManyRows / 2];
#pragma unroll
  for (int i = 0; i < kManyRows / 2; ++i) sums[i] = total[i] = 0;
  // While one tile of inputs is multiplied, the codes of the next are expanded.
  uint32_t a[2][4][4] = {};
  uint32_t tile = 0;
  const auto multiply = [&](uint32_t(&of_tile)[4][4], bool add) {
    CopyWait<1>();
    FenceForMatrixUnits();
    __syncthreads();
    if (tile + 2 < tiles) {
      copies.Queue(tile + 2, stages + (tile + 2) % kSliceStages * kStageBytes);
    }
    CopyCommit();
    Expand(raw, of_tile);
    if (tile + kManyPrefetch < tiles) parts.Prefetch(kManyPrefetch);
    const uint32_t at = stages + tile % kSliceStages * kStageBytes;
    MultiplyTile<kManyRows>(sums, of_tile, SwizzledRows(at), add);
    if constexpr (kFormat == WeightFormat::kBf16) {  // As in MultiplySlicedFewRows.
      WgmmaWait<0>();
      Keep(of_tile);
    }
    if (tile + 1 < tiles) parts.Load(1, &raw);
    parts.Skip(1);
    ++tile;
  };
  for (uint32_t index = 0; index < call.matrix.slices; ++index) {
    const Slice slice(tiles, index, call.matrix.slices);
    if (slice.begin == slice.end) continue;
    while (tile + 2 <= slice.end) {
      multiply(a[0], tile > slice.begin);
      WgmmaWait<1>();
      Keep(a[1]);
      multiply(a[1], true);
      WgmmaWait<1>();
      Keep(a[0]);
    }
    WgmmaWait<0>();
    Keep(a[1]);
    if (tile < slice.end) {
      multiply(a[0], tile > slice.begin);
      WgmmaWait<0>();
      Keep(a[0]);
    }
    Hold(sums);
#pragma unroll
    for (int i = 0; i < kManyRows / 2; ++i) total[i] += sums[i];
  }
  __syncthreads();  // Nobody reads rows of x any more.
  if (!real) return;
  const uint32_t output = work.output + group * kTileOutputs;
  if (call.output == LinearOutput::kFloat) {
    Store<kManyRows>(call, work, 0, output, total, group, rooms[group]);
  } else {
    StoreStaged(call, work, output, total, group, shared + group * kStagedBytes);
  }
}

template <WeightFormat kFormat, int kRows>
cudaError_t LaunchFew(const LinearCall& call, dim3 grid, cudaStream_t stream) {
  const uint32_t cluster = call.matrix.slices / kSliceGroups;
  grid.x *= cluster;
  return Queue<SlicedFewRows<kFormat, kRows>>(
      grid, kSliceThreads, SliceSharedBytes<kRows>(call.matrix.slices), cluster, stream, call);
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  dim3 grid(call.matrix.output_tiles, static_cast<uint32_t>(DivideUp(call.rows, tile_rows)));
  switch (tile_rows) {
    case 8:
      return LaunchFew<kFormat, 8>(call, grid, stream);
    case 16:
      return LaunchFew<kFormat, 16>(call, grid, stream);
    case 32:
      return LaunchFew<kFormat, 32>(call, grid, stream);
    case 64:
      return LaunchFew<kFormat, 64>(call, grid, stream);
    case kManyRows:
      grid = dim3(grid.y, (grid.x + kManyGroups - 1) / kManyGroups);
      return Queue<SlicedManyRows<kFormat>>(grid, kManyGroups * kGroupThreads, kManyShared, 1,
                                            stream, call);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

uint32_t LinearTileRows(const DeviceLinear& matrix, uint32_t rows) {
  const uint32_t tile = LinearTileRows(rows);
  if (tile < kManyRows || matrix.slices == 1) return tile;
  // Few outputs make few blocks. One of 64 rows takes about a third of the time of one of 128 rows
  // and 128 outputs, shared by the blocks of a cluster.
  constexpr uint32_t kMultiprocessors = 132, kFewRowsOfTile = 64;
  const auto waves = [](uint64_t blocks) { return DivideUp(blocks, kMultiprocessors); };
  const uint32_t cluster = matrix.slices / kSliceGroups;
  const uint64_t few =
      waves(uint64_t{matrix.output_tiles} * cluster * DivideUp(rows, kFewRowsOfTile));
  const uint64_t many = waves(DivideUp(matrix.output_tiles, kManyGroups) * DivideUp(rows, tile));
  return few < 3 * many * cluster ? kFewRowsOfTile : tile;
}

cudaError_t LaunchSlicedLinear(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  if (call.matrix.slices != 8 && call.matrix.slices != 16) return cudaErrorInvalidValue;
  return ByFormat(call.matrix.format,
                  [&](auto format) { return Launch<format.value>(call, tile_rows, stream); });
}

}  // namespace reprise::engine::cuda
