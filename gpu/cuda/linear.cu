#include "gpu/cuda/linear_tiles.cuh"

namespace reprise::engine::cuda {
namespace {

// ---- Few rows of a matrix with many outputs: a warpgroup for every 64 --------------------------

constexpr int kFewGroups = 2;
constexpr int kFewStages = 3;
constexpr int kFewStageTiles = 4;  // One barrier for so many tiles of inputs.

template <WeightFormat kFormat, int kRows>
__global__ __launch_bounds__(kFewGroups* kGroupThreads,
                             (kRows <= 32 && kFormat != WeightFormat::kBf16)
                                 ? 3
                                 : 2) void FewRows(LinearCall call) {
  constexpr int kAhead = kFormat == WeightFormat::kBf16 ? 2 : 4;
  constexpr uint32_t kTileBytes = kRows * 128, kStageBytes = kFewStageTiles * kTileBytes;
  extern __shared__ __align__(1024) uint8_t shared[];
  Work work;
  if (!FindWork(call, blockIdx.x * kFewGroups, kRows, &work)) return;
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t tiles = call.matrix.input_tiles;
  // The last block may have one group too many: it computes the first again, and stores nothing.
  const bool real = blockIdx.x * kFewGroups + group < call.matrix.output_tiles;
  const uint64_t weights = work.first_tile + (real ? uint64_t{group} * tiles : 0);
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kRows, kFewGroups * kGroupThreads> copies(call, work, threadIdx.x);
  const auto queue = [&](uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kFewStageTiles; ++i) {
      const uint32_t tile = stage * kFewStageTiles + i;
      if (tile < tiles) {
        copies.Queue(tile, stages + stage % kFewStages * kStageBytes + i * kTileBytes);
      }
    }
    CopyCommit();
  };

  RawWeights<kFormat> raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (i < tiles) raw[i].Load(call, weights + i, thread);
  }
#pragma unroll
  for (int i = 0; i < kFewStages - 1; ++i) queue(i);
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (uint32_t stage = 0; stage * kFewStageTiles < tiles; ++stage) {
    CopyWait<kFewStages - 2>();
    FenceForMatrixUnits();
    __syncthreads();
    queue(stage + kFewStages - 1);
    const uint32_t at = stages + stage % kFewStages * kStageBytes;
#pragma unroll
    for (int i = 0; i < kFewStageTiles; ++i) {
      const uint32_t tile = stage * kFewStageTiles + i;
      if (tile >= tiles) break;
      uint32_t a[4][4];
      Expand(raw[i % kAhead], a);
      if (tile + kAhead < tiles) raw[i % kAhead].Load(call, weights + tile + kAhead, thread);
      MultiplyTile<kRows>(sums, a, at + i * kTileBytes, tile > 0);
      WgmmaWait<0>();
      Keep(a);
    }
  }
  Hold(sums);
  __shared__ LargestRoom<kRows> rooms[kFewGroups];
  if (!real) return;
  Store<kRows>(call, work, 0, work.output + group * kTileOutputs, sums, group, rooms[group]);
}

template <int kRows>
constexpr uint32_t FewShared() {
  return kFewStages * kFewStageTiles * kRows * 128;
}

// ---- Many rows: two warpgroups over the same 128 rows ------------------------------------------

// A warpgroup takes 128 outputs, so that every row that comes from L2 meets 256.
constexpr int kManyStages = 4;
constexpr uint32_t kManyShared = kManyStages * kManyRows * 128;
constexpr int kManyTiles = 2;  // Of 64 outputs, of a warpgroup.

template <WeightFormat kFormat>
__global__ __launch_bounds__(kManyGroups* kGroupThreads, 1) void ManyRows(LinearCall call) {
  constexpr uint32_t kStageBytes = kManyRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t first_output_tile = blockIdx.x * (kManyGroups * kManyTiles);
  Work work;
  if (!FindWork(call, first_output_tile, kManyRows, &work)) return;
  const uint32_t tiles = call.matrix.input_tiles;
  uint64_t weights[kManyTiles];
  bool real[kManyTiles];
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) {
    const uint32_t output_tile = group * kManyTiles + m;
    real[m] = first_output_tile + output_tile < call.matrix.output_tiles;
    weights[m] = work.first_tile + (real[m] ? uint64_t{output_tile} * tiles : 0);
  }
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kManyRows, kManyGroups * kGroupThreads> copies(call, work, threadIdx.x);

  RawWeights<kFormat> raw[kManyTiles];
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) raw[m].Load(call, weights[m], thread);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < tiles) copies.Queue(i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kManyTiles][kManyRows / 2];
#pragma unroll
  for (auto& of_tile : sums) {
#pragma unroll
    for (float& sum : of_tile) sum = 0;
  }
  // While one tile of outputs is multiplied, the codes of the other are expanded.
  uint32_t a[kManyTiles][4][4] = {};
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    CopyWait<1>();
    FenceForMatrixUnits();
    __syncthreads();
    if (tile + 2 < tiles) {
      copies.Queue(tile + 2, stages + (tile + 2) % kManyStages * kStageBytes);
    }
    CopyCommit();
    const uint32_t b = stages + tile % kManyStages * kStageBytes;
#pragma unroll
    for (int m = 0; m < kManyTiles; ++m) {
      Expand(raw[m], a[m]);
      if (tile + 1 < tiles) raw[m].Load(call, weights[m] + tile + 1, thread);
      MultiplyTile<kManyRows>(sums[m], a[m], b, tile > 0);
      WgmmaWait<1>();
      Keep(a[1 - m]);
    }
  }
  WgmmaWait<0>();
  __shared__ LargestRoom<kManyRows> rooms[kManyGroups];
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) {
    Keep(a[m]);
    Hold(sums[m]);
    const uint32_t output = work.output + (group * kManyTiles + m) * kTileOutputs;
    if (real[m]) Store<kManyRows>(call, work, 0, output, sums[m], group, rooms[group]);
  }
}

// ---- Launches ----------------------------------------------------------------------------------

template <WeightFormat kFormat, int kRows>
cudaError_t LaunchFew(const LinearCall& call, dim3 grid, cudaStream_t stream) {
  grid.x = (grid.x + kFewGroups - 1) / kFewGroups;
  return Queue<FewRows<kFormat, kRows>>(call, grid, kFewGroups * kGroupThreads, FewShared<kRows>(),
                                        1, stream);
}

template <WeightFormat kFormat>
cudaError_t LaunchMany(const LinearCall& call, dim3 grid, cudaStream_t stream) {
  grid.x = (grid.x + kManyGroups * kManyTiles - 1) / (kManyGroups * kManyTiles);
  return Queue<ManyRows<kFormat>>(call, grid, kManyGroups * kGroupThreads, kManyShared, 1, stream);
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  const uint32_t row_tiles =
      call.tiles != nullptr ? call.tiles_max : (call.rows + tile_rows - 1) / tile_rows;
  const dim3 grid(call.matrix.output_tiles, row_tiles);
  switch (tile_rows) {
    case 8:
      return LaunchFew<kFormat, 8>(call, grid, stream);
    case 16:
      return LaunchFew<kFormat, 16>(call, grid, stream);
    case 32:
      return LaunchFew<kFormat, 32>(call, grid, stream);
    case 64:
      return LaunchFew<kFormat, 64>(call, grid, stream);
    case 128:
      return LaunchMany<kFormat>(call, grid, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

uint32_t LinearTileRows(uint32_t rows) {
  for (const uint32_t tile : {8u, 16u, 32u, 64u}) {
    if (rows <= tile) return tile;
  }
  return kManyRows;
}

cudaError_t LaunchLinear(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  if (call.matrix.slices > 1) return LaunchSlicedLinear(call, tile_rows, stream);
  switch (call.matrix.format) {
    case WeightFormat::kBf16:
      return Launch<WeightFormat::kBf16>(call, tile_rows, stream);
    case WeightFormat::kFp8:
      return Launch<WeightFormat::kFp8>(call, tile_rows, stream);
    case WeightFormat::kFp4:
      return Launch<WeightFormat::kFp4>(call, tile_rows, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace reprise::engine::cuda
