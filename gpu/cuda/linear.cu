#include "gpu/cuda/linear_tiles.cuh"

namespace reprise::engine::cuda {
namespace {

// ---- Few rows of a matrix with many outputs: a warpgroup for every 64 --------------------------

constexpr int kFewGroups = 2;
constexpr int kFewStageTiles = 4;  // One barrier for so many tiles of inputs.
// Tiles of weights that registers hold ahead are less than HBM takes: so many ahead come into L2.
template <WeightFormat kFormat>
constexpr int kFewPrefetch = kFormat == WeightFormat::kFp4 ? 2 * kFewStageTiles : 0;
template <int kRows>
constexpr int kFewStages = kRows <= 16 ? 4 : 3;

template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplyFewRows(const LinearCall& call, uint32_t row_tile) {
  constexpr int kAhead = kFormat == WeightFormat::kBf16 ? 2 : 4;
  constexpr int kStages = kFewStages<kRows>;
  // A product may be under way while the next tile is expanded. At a barrier its stage must not yet
  // be queued over, which takes a fourth one.
  constexpr int kUnderWay = kStages > 3 && kFormat == WeightFormat::kFp4 ? 1 : 0;
  constexpr uint32_t kTileBytes = kRows * 128, kStageBytes = kFewStageTiles * kTileBytes;
  extern __shared__ __align__(1024) uint8_t shared[];
  Work work;
  if (!FindWork(call, blockIdx.x * kFewGroups, row_tile, kRows, &work)) return;
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int tiles = static_cast<int>(call.matrix.input_tiles);
  // The last block may have one group too many: it computes the first again, and stores nothing.
  const bool real = blockIdx.x * kFewGroups + group < call.matrix.output_tiles;
  WeightParts<kFormat> parts(
      call, work.first_tile + (real ? uint64_t{group} * call.matrix.input_tiles : 0), thread);
  StageCopies<kRows, kFewGroups * kGroupThreads, kFewStageTiles> copies(call, work, threadIdx.x);
  const uint32_t stages = SharedAddress(shared), stages_end = stages + kStages * kStageBytes;
  const auto after = [&](uint32_t stage) {
    return stage + kStageBytes == stages_end ? stages : stage + kStageBytes;
  };
  uint32_t ahead = stages;  // Where the next tiles of x go.
  int unqueued = tiles;
  const auto queue = [&] {
    copies.Queue(unqueued, ahead);
    CopyCommit();
    unqueued -= kFewStageTiles;
    ahead = after(ahead);
  };

  RawWeights<kFormat> raw[kAhead];
  if (tiles >= kFewStageTiles) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) parts.Load(i, &raw[i]);
  }
  queue();
  queue();
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  uint32_t a[kUnderWay + 1][4][4] = {};
  uint32_t at = stages;
  int left = tiles;
  for (; left >= kFewStageTiles; left -= kFewStageTiles) {
    CopyWait<1>();
    FenceForMatrixUnits();
    __syncthreads();
    queue();
    const bool more = left >= 2 * kFewStageTiles;
    const bool far = left >= kFewStageTiles + kFewPrefetch<kFormat>;
    const uint64_t rows = SwizzledRows(at);
#pragma unroll
    for (int i = 0; i < kFewStageTiles; ++i) {
      uint32_t(&now)[4][4] = a[i % (kUnderWay + 1)];
      Expand(raw[i % kAhead], now);
      if (i + kAhead < kFewStageTiles || more) parts.Load(i + kAhead, &raw[i % kAhead]);
      if (kFewPrefetch < kFormat >> 0 && far) parts.Prefetch(i + kFewPrefetch<kFormat>);
      MultiplyTile<kRows>(sums, now, FurtherOn(rows, i * kTileBytes), true);
      WgmmaWait<kUnderWay>();
      Keep(a[(i + kUnderWay) % (kUnderWay + 1)]);
    }
    parts.Skip(kFewStageTiles);
    at = after(at);
  }
  WgmmaWait<0>();
#pragma unroll
  for (auto& of_tile : a) Keep(of_tile);
  if (left > 0) {  // What is left is less than a stage.
    CopyWait<0>();
    FenceForMatrixUnits();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < left; ++i) {
      parts.Load(i, &raw[0]);
      Expand(raw[0], a[0]);
      MultiplyTile<kRows>(sums, a[0], SwizzledRows(at + i * kTileBytes), true);
      WgmmaWait<0>();
      Keep(a[0]);
    }
  }
  Hold(sums);
  __shared__ LargestRoom<kRows> rooms[kFewGroups];
  if (!real) return;
  Store<kRows>(call, work, 0, work.output + group * kTileOutputs, sums, group, rooms[group]);
}

template <int kRows>
constexpr uint32_t FewShared() {
  return kFewStages<kRows> * kFewStageTiles * kRows * 128;
}

// ---- Many rows: two warpgroups over the same 128 rows ------------------------------------------

// A warpgroup takes 128 outputs, so that every row that comes from L2 meets 256.
constexpr int kManyStages = 4;
constexpr uint32_t kManyShared = kManyStages * kManyRows * 128;
constexpr int kManyTiles = 2;  // Of 64 outputs, of a warpgroup.

template <WeightFormat kFormat>
__device__ inline void MultiplyManyRows(const LinearCall& call, uint32_t output_block,
                                        uint32_t row_tile) {
  constexpr uint32_t kStageBytes = kManyRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t first_output_tile = output_block * (kManyGroups * kManyTiles);
  Work work;
  if (!FindWork(call, first_output_tile, row_tile, kManyRows, &work)) return;
  const uint32_t tiles = call.matrix.input_tiles;
  const auto real = [&](int m) {
    return first_output_tile + group * kManyTiles + m < call.matrix.output_tiles;
  };
  const auto first = [&](int m) {
    return work.first_tile + (real(m) ? uint64_t{group * kManyTiles + m} * tiles : 0);
  };
  WeightParts<kFormat> parts[kManyTiles] = {{call, first(0), thread}, {call, first(1), thread}};
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kManyRows, kManyGroups * kGroupThreads> copies(call, work, threadIdx.x);

  RawWeights<kFormat> raw[kManyTiles];
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) {
    parts[m].Load(0, &raw[m]);
    for (uint32_t i = 1; i < min(kManyPrefetch, tiles); ++i) parts[m].Prefetch(i);
  }
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
    const uint64_t rows = SwizzledRows(stages + tile % kManyStages * kStageBytes);
#pragma unroll
    for (int m = 0; m < kManyTiles; ++m) {
      Expand(raw[m], a[m]);
      if (tile + kManyPrefetch < tiles) parts[m].Prefetch(kManyPrefetch);
      MultiplyTile<kManyRows>(sums[m], a[m], rows, true);
      if constexpr (kFormat == WeightFormat::kBf16) {  // Taken as loaded: see linear_slices.cuh.
        WgmmaWait<0>();
        Keep(a[m]);
      }
      if (tile + 1 < tiles) parts[m].Load(1, &raw[m]);
      parts[m].Skip(1);
      WgmmaWait<1>();
      Keep(a[1 - m]);
    }
  }
  WgmmaWait<0>();
  __shared__ LargestRoom<kManyRows> rooms[kManyGroups];
  __syncthreads();  // Nobody reads rows of x any more.
#pragma unroll
  for (int m = 0; m < kManyTiles; ++m) {
    Keep(a[m]);
    Hold(sums[m]);
    const uint32_t output = work.output + (group * kManyTiles + m) * kTileOutputs;
    if (!real(m)) continue;
    if (call.output == LinearOutput::kFloat) {
      Store<kManyRows>(call, work, 0, output, sums[m], group, rooms[group]);
    } else {
      BarrierOfGroup(group);
      StoreStaged(call, work, output, sums[m], group, shared + group * kStagedBytes);
    }
  }
}

// ---- Kernels -----------------------------------------------------------------------------------

template <WeightFormat kFormat, int kRows>
constexpr int kFewBlocks = kRows <= 32 && kFormat != WeightFormat::kBf16 ? 3 : 2;

template <WeightFormat kFormat, int kRows>
__global__ __launch_bounds__(kFewGroups* kGroupThreads,
                             kFewBlocks<kFormat, kRows>) void FewRows(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  MultiplyFewRows<kFormat, kRows>(call, blockIdx.y);
}

// Tiles of rows come first along the grid, so that the weights of some outputs stay in L2 while
// they pass; but an expert has few of them.
template <WeightFormat kFormat>
__global__ __launch_bounds__(kManyGroups* kGroupThreads, 1) void ManyRows(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  const bool experts = call.tiles != nullptr;
  MultiplyManyRows<kFormat>(call, experts ? blockIdx.x : blockIdx.y,
                            experts ? blockIdx.y : blockIdx.x);
}

// The matrix beside, as a call of its own.
__device__ __host__ inline LinearCall Beside(const LinearCall& call) {
  LinearCall of = call;
  of.matrix = call.beside.matrix;
  of.x = call.beside.x;
  of.y = call.beside.y;
  of.rows = call.beside.rows;
  of.gather = nullptr;
  of.row_weights = nullptr;
  of.tiles = nullptr;
  of.beside = {};
  return of;
}
__device__ __host__ constexpr uint32_t TilesOf(uint32_t rows, uint32_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// Routed experts in FP4, and before them the tiles of rows of the shared one, in FP8.
template <int kRows>
__global__ __launch_bounds__(
    kFewGroups* kGroupThreads,
    kFewBlocks<WeightFormat::kFp8, kRows>) void FewRowsAndBeside(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t beside = TilesOf(call.beside.rows, kRows);
  if (blockIdx.y < beside) {
    MultiplyFewRows<WeightFormat::kFp8, kRows>(Beside(call), blockIdx.y);
  } else {
    MultiplyFewRows<WeightFormat::kFp4, kRows>(call, blockIdx.y - beside);
  }
}
__global__ __launch_bounds__(kManyGroups* kGroupThreads,
                             1) void ManyRowsAndBeside(LinearCall call) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t beside = TilesOf(call.beside.rows, kManyRows);
  if (blockIdx.y < beside) {
    MultiplyManyRows<WeightFormat::kFp8>(Beside(call), blockIdx.x, blockIdx.y);
  } else {
    MultiplyManyRows<WeightFormat::kFp4>(call, blockIdx.x, blockIdx.y - beside);
  }
}

// ---- Launches ----------------------------------------------------------------------------------

// What a launch covers, in blocks of outputs and tiles of rows.
struct Extent {
  Extent(const LinearCall& call, uint32_t tile_rows, uint32_t block_tiles)
      : outputs(TilesOf(call.matrix.output_tiles, block_tiles)),
        rows(TilesOf(call.beside.rows, tile_rows) +
             (call.tiles != nullptr ? call.tiles_max : TilesOf(call.rows, tile_rows))) {}
  uint32_t outputs, rows;
};

template <WeightFormat kFormat, int kRows>
cudaError_t LaunchFew(const LinearCall& call, cudaStream_t stream) {
  constexpr uint32_t kThreads = kFewGroups * kGroupThreads, kShared = FewShared<kRows>();
  const Extent extent(call, kRows, kFewGroups);
  const dim3 grid(extent.outputs, extent.rows);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (call.beside.rows > 0) {
      return Queue<FewRowsAndBeside<kRows>>(grid, kThreads, kShared, 1, stream, call);
    }
  }
  return Queue<FewRows<kFormat, kRows>>(grid, kThreads, kShared, 1, stream, call);
}

template <WeightFormat kFormat>
cudaError_t LaunchMany(const LinearCall& call, cudaStream_t stream) {
  constexpr uint32_t kThreads = kManyGroups * kGroupThreads;
  const Extent extent(call, kManyRows, kManyGroups * kManyTiles);
  const dim3 grid(extent.outputs, extent.rows);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (call.beside.rows > 0) {
      return Queue<ManyRowsAndBeside>(grid, kThreads, kManyShared, 1, stream, call);
    }
  }
  return Queue<ManyRows<kFormat>>(call.tiles != nullptr ? grid : dim3(extent.rows, extent.outputs),
                                  kThreads, kManyShared, 1, stream, call);
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  switch (tile_rows) {
    case 8:
      return LaunchFew<kFormat, 8>(call, stream);
    case 16:
      return LaunchFew<kFormat, 16>(call, stream);
    case 32:
      return LaunchFew<kFormat, 32>(call, stream);
    case 64:
      return LaunchFew<kFormat, 64>(call, stream);
    case kManyRows:
      return LaunchMany<kFormat>(call, stream);
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
  const bool together =
      call.matrix.format == WeightFormat::kFp4 && call.beside.matrix.format == WeightFormat::kFp8;
  if (call.beside.rows > 0 && !together) {
    const cudaError_t error = LaunchLinear(Beside(call), tile_rows, stream);
    if (error != cudaSuccess) return error;
    LinearCall rest = call;
    rest.beside = {};
    return LaunchLinear(rest, tile_rows, stream);
  }
  if (call.matrix.slices > 1) return LaunchSlicedLinear(call, tile_rows, stream);
  return ByFormat(call.matrix.format,
                  [&](auto format) { return Launch<format.value>(call, tile_rows, stream); });
}

}  // namespace reprise::engine::cuda
