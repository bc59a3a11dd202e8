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
      MultiplySteps<kRows>(sums, a, FurtherOn(SwizzledRows(at), tile * kTileBytes));
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

// ---- Many rows: four warpgroups over the same rows ---------------------------------------------

// A block takes 256 outputs, so that every row that comes from L2 meets many; a warpgroup takes 64,
// which leaves registers for four of them: what one waits for, others hide.
constexpr uint32_t kManyGroups = 4;
// Weights are loaded a stage ahead, which is less than HBM takes: so many tiles ahead they come
// into L2.
constexpr int kManyPrefetch = 18;
constexpr int kManyStageTiles = 2;               // One barrier for so many tiles of inputs.
constexpr int kManyStages = 6, kManyQueued = 4;  // Of x; copies under way.
constexpr uint32_t kManyShared = kManyStages * kManyStageTiles * kManyRows * 128;
static_assert(kManyGroups * kManyRows * kStagedRowBytes <= kManyShared);

// Of the first `output_tiles` tiles from the work's first on, one for every warpgroup.
template <WeightFormat kFormat, int kRows>
__device__ __forceinline__ void MultiplyManyRows(const LinearCall& call, const Work& work,
                                                 uint32_t output_tiles) {
  constexpr uint32_t kTileBytes = kManyRows * 128, kStageBytes = kManyStageTiles * kTileBytes;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const int tiles = static_cast<int>(call.matrix.input_tiles);
  const bool real = group < output_tiles;
  WeightParts<kFormat> parts(call, work.first_tile + (real ? group : 0) * tiles, thread);
  RawWeights<kFormat> raw[kManyStageTiles];
#pragma unroll
  for (int i = 0; i < kManyStageTiles; ++i) {
    if (i < tiles) parts.Load(i, &raw[i]);
  }
  if (thread == 0 && tiles > kManyStageTiles) {
    parts.PrefetchAll(kManyStageTiles, min(kManyPrefetch, tiles) - kManyStageTiles);
  }
  const uint32_t stages = SharedAddress(shared), stages_end = stages + kManyStages * kStageBytes;
  const auto after = [&](uint32_t stage) {
    return stage + kStageBytes == stages_end ? stages : stage + kStageBytes;
  };
  StageCopies<kManyRows, kManyGroups * kGroupThreads, kManyStageTiles> copies(call, work,
                                                                              threadIdx.x);
  uint32_t ahead = stages;  // Where the next tiles of x go.
  int unqueued = tiles;
  const auto queue = [&] {
    copies.Queue(unqueued, ahead);
    CopyCommit();
    unqueued -= kManyStageTiles;
    ahead = after(ahead);
  };
#pragma unroll 1
  for (int i = 0; i < kManyQueued; ++i) queue();
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  // While half a tile is multiplied, the codes of the next half are expanded.
  uint32_t a[2][2][4] = {};
  uint32_t at = stages;
#pragma unroll 1
  for (int left = tiles; left > 0; left -= kManyStageTiles) {
    CopyWait<kManyQueued - 1>();
    FenceForMatrixUnits();
    __syncthreads();
    queue();
    if (left >= kManyPrefetch + kManyStageTiles) {
#pragma unroll
      for (int i = 0; i < kManyStageTiles; ++i) parts.Prefetch(kManyPrefetch + i);
    }
#pragma unroll
    for (int i = 0; i < kManyStageTiles; ++i) {
      if (i >= left) break;
      const uint64_t rows = FurtherOn(SwizzledRows(at), i * kTileBytes);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ExpandHalf(raw[i], half, a[half]);
        if (half == 1 && left > kManyStageTiles + i) parts.Load(kManyStageTiles + i, &raw[i]);
        MultiplySteps<kRows>(sums, a[half], FurtherOn(rows, half * 64));
        // Weights in bf16 are taken as loaded: see linear_slices.cuh.
        WgmmaWait<kFormat == WeightFormat::kBf16 ? 0 : 1>();
        Keep(a[kFormat == WeightFormat::kBf16 ? half : 1 - half]);
      }
    }
    parts.Skip(kManyStageTiles);
    at = after(at);
  }
  WgmmaWait<0>();
  __syncthreads();  // Nobody reads rows of x any more.
  Keep(a[0]);
  Keep(a[1]);
  Hold(sums);
  if (!real) return;
  const uint32_t output = work.output + group * kTileOutputs;
  if (call.output == LinearOutput::kFloat) {
#pragma unroll
    for (int i = 0; i < kRows / 2; i += 4) {
      StoreFloats(call, work, 2 * i, output, {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]});
    }
    return;
  }
  Bf16* const staged = reinterpret_cast<Bf16*>(shared) + group * kManyRows * kStagedRow;
  StageSums<kRows>(sums, staged);
  BarrierOfGroup(group);
  StoreRows(call, work.row, work.rows, kRows, output, staged);
}

// At a width that fits the rows: an expert's tiles seldom have all that they may.
template <WeightFormat kFormat>
__device__ __forceinline__ void MultiplyMany(const LinearCall& call, uint32_t output_block,
                                             uint32_t row_tile) {
  Work work;
  const uint32_t first_tile = output_block * kManyGroups;
  if (!FindWork(call, first_tile, row_tile, kManyRows, &work)) return;
  const uint32_t output_tiles = min(kManyGroups, call.matrix.output_tiles - first_tile);
  if constexpr (kFormat == WeightFormat::kFp4) {
    if (work.rows <= 64) return MultiplyManyRows<kFormat, 64>(call, work, output_tiles);
    if (work.rows <= 80) return MultiplyManyRows<kFormat, 80>(call, work, output_tiles);
    if (work.rows <= 88) return MultiplyManyRows<kFormat, 88>(call, work, output_tiles);
    if (work.rows <= 96) return MultiplyManyRows<kFormat, 96>(call, work, output_tiles);
    if (work.rows <= 104) return MultiplyManyRows<kFormat, 104>(call, work, output_tiles);
    if (work.rows <= 112) return MultiplyManyRows<kFormat, 112>(call, work, output_tiles);
  }
  MultiplyManyRows<kFormat, 128>(call, work, output_tiles);
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
  const uint32_t beside = TilesOf(call.beside.rows, kManyRows);
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
  const uint32_t outputs = TilesOf(call.matrix.output_tiles, kManyGroups);
  const uint32_t rows = TilesOf(call.beside.rows, kManyRows) + RowTiles(call, kManyRows);
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
