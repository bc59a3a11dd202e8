#include <algorithm>

#include "gpu/cuda/linear_ring.cuh"
#include "gpu/cuda/linear_tiles.cuh"

namespace reprise::engine::cuda {
namespace {

// ---- Few rows: a warpgroup for every 64 outputs ------------------------------------------------

constexpr int kFewGroups = 2;
constexpr int kFewStageTiles = 4;  // One barrier for so many tiles of inputs.
// Tiles of weights that registers hold ahead are less than HBM takes: so many ahead come into L2.
template <WeightFormat kFormat>
constexpr int kFewPrefetch = kFormat == WeightFormat::kFp4 ? 2 * kFewStageTiles : 0;
template <int kRows>
constexpr int kFewStages = kRows <= 16 ? 4 : 3;

template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplyFewRows(const LinearCall& call, const Work& work,
                                       uint32_t output_block) {
  constexpr int kAhead = kFormat == WeightFormat::kBf16 ? 2 : 4;
  constexpr int kStages = kFewStages<kRows>, kPrefetch = kFewPrefetch<kFormat>;
  constexpr bool kByWarps = kRows == 8;
  constexpr uint32_t kTileBytes = kRows * 128, kStageBytes = kFewStageTiles * kTileBytes;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int tiles = static_cast<int>(call.matrix.input_tiles);
  // The last block may have one group too many: it computes the first again, and stores nothing.
  const bool real = output_block * kFewGroups + group < call.matrix.output_tiles;
  WeightParts<kFormat> parts(
      call, work.first_tile + (real ? uint64_t{group} * call.matrix.input_tiles : 0), thread);
  RawWeights<kFormat> raw[kAhead];
  if (tiles >= kFewStageTiles) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) parts.Load(i, &raw[i]);
  }
  if (WeightsAreKnown(call)) FollowEarlier();
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

  queue();
  queue();
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  uint32_t a[4][4] = {};
  uint32_t at = stages;
  const auto multiply = [&](int tile) {  // Of the stage.
    if constexpr (kByWarps) {
      MultiplyTileByWarps(sums, a, at + tile * kTileBytes);
    } else {
      MultiplyTile<kRows>(sums, a, FurtherOn(SwizzledRows(at), tile * kTileBytes), true);
      WgmmaWait<0>();
      Keep(a);
    }
  };
  int left = tiles;
  for (; left >= kFewStageTiles; left -= kFewStageTiles) {
    CopyWait<1>();
    if constexpr (!kByWarps) FenceForMatrixUnits();
    __syncthreads();
    queue();
    const bool more = left >= 2 * kFewStageTiles;
    if (kPrefetch > 0 && thread == 0 && left >= kFewStageTiles + kPrefetch) {
      parts.PrefetchAll(kPrefetch, kFewStageTiles);
    }
#pragma unroll
    for (int i = 0; i < kFewStageTiles; ++i) {
      Expand(raw[i % kAhead], a);
      if (i + kAhead < kFewStageTiles || more) parts.Load(i + kAhead, &raw[i % kAhead]);
      multiply(i);
    }
    parts.Skip(kFewStageTiles);
    at = after(at);
  }
  if (left > 0) {  // What is left is less than a stage.
    CopyWait<0>();
    FenceForMatrixUnits();
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < left; ++i) {
      parts.Load(i, &raw[0]);
      Expand(raw[0], a);
      multiply(i);
    }
  }
  Hold(sums);
  __shared__ LargestRoom<kRows> rooms[kFewGroups];
  if (!real) return;
  Store<kRows>(call, work, 0, work.output + group * kTileOutputs, sums, group, rooms[group]);
}

template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplyFew(const LinearCall& call, uint32_t output_block,
                                   uint32_t row_tile) {
  Work work;
  if (!FollowToWork(call, output_block * kFewGroups, row_tile, kRows, &work)) return;
  if constexpr (kFormat == WeightFormat::kFp4 &&
                kRows == 32) {  // Of an expert, often half as many.
    if (work.rows <= kRows / 2) {
      MultiplyFewRows<kFormat, kRows / 2>(call, work, output_block);
      return;
    }
  }
  MultiplyFewRows<kFormat, kRows>(call, work, output_block);
}

template <int kRows>
constexpr uint32_t kFewShared = kFewStages<kRows>* kFewStageTiles* kRows * 128;

// ---- Many rows: two warpgroups over the same rows ----------------------------------------------

// A block takes 256 outputs, so that every row that comes from L2 meets many.
constexpr uint32_t kManyOutputTiles = 4;
constexpr int kManyStages = 5, kManyQueued = 3;  // Of x; copies under way.
constexpr uint32_t kManyAhead = 2;               // Tiles of weights that are loaded.
constexpr uint32_t kManyShared = kManyStages * kMostRows * 128;

// Of the first `output_tiles` tiles from the work's first on, those that two warpgroups take: each
// kTiles of them, which are multiplied by turns.
template <WeightFormat kFormat, int kRows, int kTiles>
__device__ __forceinline__ void MultiplyManyRows(const LinearCall& call, const Work& work,
                                                 uint32_t output_tiles) {
  constexpr int kCopiedRows = (kRows + 31) / 32 * 32;  // In whole turns of the threads.
  constexpr uint32_t kStageBytes = kCopiedRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t tiles = call.matrix.input_tiles;
  const auto real = [&](int m) { return group * kTiles + m < output_tiles; };
  WeightParts<kFormat> parts[kTiles];
  RawWeights<kFormat> raw[kManyAhead][kTiles];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    const uint64_t first = work.first_tile + (real(m) ? uint64_t{group * kTiles + m} * tiles : 0);
    parts[m] = WeightParts<kFormat>(call, first, thread);
    for (uint32_t i = 0; i < kManyAhead; ++i) {
      if (i < tiles) parts[m].Load(i, &raw[i][m]);
    }
    if (thread == 0 && tiles > kManyAhead) {
      parts[m].PrefetchAll(kManyAhead, min(kManyPrefetch, tiles) - kManyAhead);
    }
  }
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kCopiedRows, kManyGroups * kGroupThreads> copies(call, work, threadIdx.x);
#pragma unroll
  for (int i = 0; i < kManyQueued; ++i) {
    if (i < tiles) copies.Queue(i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kTiles][kRows / 2];
#pragma unroll
  for (auto& of_tile : sums) {
#pragma unroll
    for (float& sum : of_tile) sum = 0;
  }
  // While one tile is multiplied, the codes of the next are expanded.
  uint32_t a[2][4][4] = {};
  uint32_t stage = 0, to_stage = kManyQueued;
  const auto multiply = [&](uint32_t tile, uint32_t i) {  // i: tile % kManyAhead, a constant.
    CopyWait<kManyQueued - 1>();
    FenceForMatrixUnits();
    __syncthreads();
    if (tile + kManyQueued < tiles) {
      copies.Queue(tile + kManyQueued, stages + to_stage * kStageBytes);
    }
    CopyCommit();
    const uint64_t rows = SwizzledRows(stages + stage * kStageBytes);
#pragma unroll
    for (uint32_t m = 0; m < kTiles; ++m) {
      const uint32_t turn = (i * kTiles + m) % 2;
      Expand(raw[i][m], a[turn]);
      MultiplyTile<kRows>(sums[m], a[turn], rows, true);
      if constexpr (kFormat == WeightFormat::kBf16) {  // Taken as loaded: see linear_slices.cuh.
        WgmmaWait<0>();
        Keep(a[turn]);
      }
      if (tile + kManyAhead < tiles) parts[m].Load(kManyAhead, &raw[i][m]);
      if (thread == 0 && tile + kManyPrefetch < tiles) parts[m].PrefetchAll(kManyPrefetch, 1);
      parts[m].Skip(1);
      WgmmaWait<1>();
      Keep(a[1 - turn]);
    }
    stage = stage + 1 == kManyStages ? 0 : stage + 1;
    to_stage = to_stage + 1 == kManyStages ? 0 : to_stage + 1;
  };
  static_assert(kManyAhead == 2);
  for (uint32_t tile = 0; tile < tiles; tile += 2) {
    multiply(tile, 0);
    if (tile + 1 == tiles) break;
    multiply(tile + 1, 1);
  }
  WgmmaWait<0>();
  __syncthreads();  // Nobody reads rows of x any more.
  Keep(a[0]);
  Keep(a[1]);
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    Hold(sums[m]);
    const uint32_t output = work.output + (group * kTiles + m) * kTileOutputs;
    if (!real(m)) continue;
    if (call.output == LinearOutput::kFloat) {
#pragma unroll
      for (int i = 0; i < kRows / 2; i += 4) {
        StoreFloats(call, work, 2 * i, output,
                    {sums[m][i], sums[m][i + 1], sums[m][i + 2], sums[m][i + 3]});
      }
    } else {
      Bf16* const staged = reinterpret_cast<Bf16*>(shared) + group * kRows * kStagedRow;
      BarrierOfGroup(group);
      StageSums<kRows>(sums[m], staged);
      BarrierOfGroup(group);
      StoreRows(call, work.row, work.rows, kRows, output, staged);
    }
  }
}

// A warpgroup takes two tiles of outputs at once where rows are few enough.
template <WeightFormat kFormat, int kRows>
__device__ __forceinline__ void MultiplyMany(const LinearCall& call, const Work& work,
                                             uint32_t output_tiles) {
  if constexpr (kRows <= 128) {
    MultiplyManyRows<kFormat, kRows, 2>(call, work, output_tiles);
  } else {
    Work half = work;
#pragma unroll 1
    for (uint32_t first = 0; first < output_tiles; first += kManyGroups) {
      MultiplyManyRows<kFormat, kRows, 1>(call, half, output_tiles - first);
      half.first_tile += uint64_t{kManyGroups} * call.matrix.input_tiles;
      half.output += kManyGroups * kTileOutputs;
      __syncthreads();  // Staged sums are stored.
    }
  }
}

// At a width that fits the rows: an expert's tiles seldom have all that they may.
template <WeightFormat kFormat>
__device__ __forceinline__ void MultiplyMany(const LinearCall& call, uint32_t output_block,
                                             uint32_t row_tile) {
  Work work;
  const uint32_t first_tile = output_block * kManyOutputTiles;
  if (!FindWork(call, first_tile, row_tile, kMostRows, &work)) return;
  const uint32_t output_tiles = min(kManyOutputTiles, call.matrix.output_tiles - first_tile);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (work.rows <= 64) return MultiplyMany<kFormat, 64>(call, work, output_tiles);
    if (work.rows <= 80) return MultiplyMany<kFormat, 80>(call, work, output_tiles);
    if (work.rows <= 96) return MultiplyMany<kFormat, 96>(call, work, output_tiles);
    if (work.rows <= 112) return MultiplyMany<kFormat, 112>(call, work, output_tiles);
  }
  if (work.rows <= 128) return MultiplyMany<kFormat, 128>(call, work, output_tiles);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (work.rows <= 160) return MultiplyMany<kFormat, 160>(call, work, output_tiles);
    if (work.rows <= 192) return MultiplyMany<kFormat, 192>(call, work, output_tiles);
    if (work.rows <= 208) return MultiplyMany<kFormat, 208>(call, work, output_tiles);
    if (work.rows <= 224) return MultiplyMany<kFormat, 224>(call, work, output_tiles);
  }
  MultiplyMany<kFormat, 256>(call, work, output_tiles);
}

// ---- Kernels -----------------------------------------------------------------------------------

template <WeightFormat kFormat, int kRows>
constexpr int kFewBlocks = kRows <= 32 && kFormat != WeightFormat::kBf16 ? 3 : 2;

template <WeightFormat kFormat, int kRows>
__global__ __launch_bounds__(kFewGroups* kGroupThreads,
                             kFewBlocks<kFormat, kRows>) void FewRows(LinearCall call) {
  MultiplyFew<kFormat, kRows>(call, blockIdx.x, blockIdx.y);
}

// Tiles of rows come first along the grid, so that the weights of some outputs stay in L2 while
// they pass; but an expert has few of them.
template <WeightFormat kFormat>
__global__ __launch_bounds__(kManyGroups* kGroupThreads, 1) void ManyRows(LinearCall call) {
  FollowEarlier();
  const bool experts = call.tiles != nullptr;
  MultiplyMany<kFormat>(call, experts ? blockIdx.x : blockIdx.y, experts ? blockIdx.y : blockIdx.x);
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

// Routed experts in FP4, and before them the tiles of rows of the shared one, in FP8: every row
// meets it, so its tiles may be larger.
template <int kRows, int kOfBeside>
__global__ __launch_bounds__(
    kFewGroups* kGroupThreads,
    kFewBlocks<WeightFormat::kFp8, kOfBeside>) void FewRowsAndBeside(LinearCall call) {
  const uint32_t beside = TilesOf(call.beside.rows, kOfBeside);
  if (blockIdx.y < beside) {
    MultiplyFew<WeightFormat::kFp8, kOfBeside>(Beside(call), blockIdx.x, blockIdx.y);
  } else {
    MultiplyFew<WeightFormat::kFp4, kRows>(call, blockIdx.x, blockIdx.y - beside);
  }
}
// The same by the ring of linear_ring.cuh.
constexpr int kRingOfBeside = 32;
template <int kRows>
__global__ __launch_bounds__(kRingThreads, kRingBlocks) void RingAndBeside(LinearCall call) {
  const uint32_t beside = TilesOf(call.beside.rows, kRingOfBeside);
  if (blockIdx.y < beside) {
    MultiplyByRing<WeightFormat::kFp8, kRingOfBeside>(Beside(call), blockIdx.x, blockIdx.y);
  } else {
    MultiplyByRing<WeightFormat::kFp4, kRows>(call, blockIdx.x, blockIdx.y - beside);
  }
}
__global__ __launch_bounds__(kManyGroups* kGroupThreads,
                             1) void ManyRowsAndBeside(LinearCall call) {
  FollowEarlier();
  const uint32_t beside = TilesOf(call.beside.rows, kMostRows);
  if (blockIdx.y < beside) {
    MultiplyMany<WeightFormat::kFp8>(Beside(call), blockIdx.x, blockIdx.y);
  } else {
    MultiplyMany<WeightFormat::kFp4>(call, blockIdx.x, blockIdx.y - beside);
  }
}

// ---- Launches ----------------------------------------------------------------------------------

uint32_t RowTiles(const LinearCall& call, uint32_t tile_rows) {
  return call.tiles != nullptr ? call.tiles_max : TilesOf(call.rows, tile_rows);
}

template <int kRows, int kOfBeside>
cudaError_t LaunchFewAndBeside(const LinearCall& call, cudaStream_t stream) {
  constexpr uint32_t kShared = std::max(kFewShared<kRows>, kFewShared<kOfBeside>);
  const dim3 grid(TilesOf(call.matrix.output_tiles, kFewGroups),
                  TilesOf(call.beside.rows, kOfBeside) + RowTiles(call, kRows));
  return Queue<FewRowsAndBeside<kRows, kOfBeside>>(grid, kFewGroups * kGroupThreads, kShared, 1,
                                                   stream, call);
}

// Whether blocks are as many as keep the chip full though each has but four warps.
bool ByRing(const LinearCall& call) {
  constexpr uint32_t kTilesLeast = 32;
  return call.tiles_max >= kTilesLeast;
}

template <int kRows>
cudaError_t LaunchRing(const LinearCall& call, cudaStream_t stream) {
  constexpr uint32_t kStageBytes = std::max(RingStage<WeightFormat::kFp4, kRows>::kBytes,
                                            RingStage<WeightFormat::kFp8, kRingOfBeside>::kBytes);
  const dim3 grid(TilesOf(call.matrix.output_tiles, kRingTiles),
                  TilesOf(call.beside.rows, kRingOfBeside) + RowTiles(call, kRows));
  return Queue<RingAndBeside<kRows>>(grid, kRingThreads, kRingStages * kStageBytes, 1, stream,
                                     call);
}

template <WeightFormat kFormat, int kRows>
cudaError_t LaunchFew(const LinearCall& call, cudaStream_t stream) {
  if constexpr (kFormat == WeightFormat::kFp4) {
    if constexpr (kRows <= 16) {
      if (ByRing(call)) return LaunchRing<kRows>(call, stream);
    }
    // As many as still leave room for three blocks.
    constexpr int kLarger = kRows < 32 ? 32 : kRows;
    if (call.beside.rows > kRows) return LaunchFewAndBeside<kRows, kLarger>(call, stream);
    if (call.beside.rows > 0) return LaunchFewAndBeside<kRows, kRows>(call, stream);
  }
  const dim3 grid(TilesOf(call.matrix.output_tiles, kFewGroups), RowTiles(call, kRows));
  return Queue<FewRows<kFormat, kRows>>(grid, kFewGroups * kGroupThreads, kFewShared<kRows>, 1,
                                        stream, call);
}

template <WeightFormat kFormat>
cudaError_t LaunchMany(const LinearCall& call, cudaStream_t stream) {
  constexpr uint32_t kThreads = kManyGroups * kGroupThreads;
  const uint32_t outputs = TilesOf(call.matrix.output_tiles, kManyOutputTiles);
  const uint32_t rows = TilesOf(call.beside.rows, kMostRows) + RowTiles(call, kMostRows);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (call.beside.rows > 0) {
      return Queue<ManyRowsAndBeside>(dim3(outputs, rows), kThreads, kManyShared, 1, stream, call);
    }
  }
  return Queue<ManyRows<kFormat>>(call.tiles != nullptr ? dim3(outputs, rows) : dim3(rows, outputs),
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

// Fewer rows than LinearTileRows where a matrix of few outputs would leave most of the chip idle.
uint32_t DenseTileRows(const LinearCall& call) {
  constexpr uint32_t kBlockOutputs = 128, kAtOnce = 112;  // Blocks, in clusters of eight.
  const uint32_t most = LinearTileRows(call.rows);
  if (call.matrix.slices == 1) return most;
  for (const uint32_t tile : {32u, 64u}) {
    const uint32_t blocks =
        TilesOf(call.matrix.outputs, kBlockOutputs) * call.matrix.slices * TilesOf(call.rows, tile);
    if (tile < most && blocks <= kAtOnce) return tile;
  }
  return most;
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
  // Few rows need no more than loads, unless their sums are shared.
  const bool plain = call.matrix.slices == 1 && tile_rows < kManyRows;
  if (call.tiles == nullptr && call.gather == nullptr && !plain) {
    return LaunchDenseLinear(call, tile_rows, DenseBlocks::kQuickest, stream);
  }
  if (call.matrix.slices > 1) return cudaErrorInvalidValue;
  return ByFormat(call.matrix.format,
                  [&](auto format) { return Launch<format.value>(call, tile_rows, stream); });
}

cudaError_t LaunchLinear(const LinearCall& call, cudaStream_t stream) {
  return LaunchLinear(call, DenseTileRows(call), stream);
}

}  // namespace reprise::engine::cuda
