#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/mix_layout.h"
#include "gpu/cuda/mixes.cuh"
#include "gpu/cuda/stream_add.cuh"
#include "gpu/cuda/wgmma.cuh"

// Single-pass hyper-connections (model-facts section 7): what a sublayer gives is added to the
// stream, the next one's input is taken from it, and the weights for the round after that.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kTile = 64;  // Values of a copy that a block takes.
using Four = Bf16s<4>;
constexpr uint32_t kHalf = kTile / 4;  // Threads, half a warp, that have Four each of a row of it.

// ---- A tile of rows ----------------------------------------------------------------------------

// Of 64 rows, of which few may be real: the others are whatever was there, and no other row sees
// them.
struct TileRoom {
  uint8_t stream[kCopies][kTile * 128];
  uint8_t fn[kCopies][kMixTileValues * 2];
  uint64_t come;  // A barrier.
};

// Begins to bring the tile's weights, by one thread: room.come ends its first phase with them.
__device__ inline void QueueFn(const MixCall& call, uint32_t tile, TileRoom& room) {
  if (threadIdx.x != 0) return;
  const uint32_t come = SharedAddress(&room.come);
  InitBarrier(come, 1);
  FenceBarriers();
  ArriveExpecting(come, sizeof(room.fn));
  CopyFromGlobal(SharedAddress(room.fn), call.fn + uint64_t{tile} * kCopies * kMixTileValues,
                 sizeof(room.fn), come);
}

// The lanes of this thread's group of so many.
template <uint32_t kLanes>
__device__ inline uint32_t Together() {
  return ((1u << kLanes) - 1) << threadIdx.x % 32 / kLanes * kLanes;
}

// Squares of a row of a tile, which kTile / kCount threads of a warp add up: every four neighbours
// by themselves, and then these in pairs, those far apart first, whatever a thread has of them.
template <uint32_t kCount>
class SquareSum {
 public:
  __device__ void Add(const Bf16s<kCount>& few) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      sums_[i / 4] = fmaf(few[i], few[i], sums_[i / 4]);
    }
  }
  __device__ float Total() const {
    constexpr uint32_t kThreads = kTile / kCount;
    const uint32_t together = Together<kThreads>();
    float sums[kCount / 4];
#pragma unroll
    for (uint32_t i = 0; i < kCount / 4; ++i) {
      sums[i] = sums_[i];
#pragma unroll
      for (uint32_t step = kThreads / 2; step > 0; step /= 2) {
        sums[i] += __shfl_xor_sync(together, sums[i], step);
      }
    }
    return kCount == 8 ? sums[0] + sums[kCount / 4 - 1] : sums[0];
  }

 private:
  float sums_[kCount / 4] = {};
};

template <uint32_t kCount>
__device__ inline float SquaresOf(const Bf16s<kCount>& few) {
  SquareSum<kCount> sum;
  sum.Add(few);
  return sum.Total();
}

// By kTile / kCount threads of a warp: row r of the tile, with what is added to it, to where the
// products find it.
template <uint32_t kCount>
__device__ inline void KeepRow(const MixCall& call, uint64_t row, uint32_t tile, uint32_t r,
                               const Bf16s<kCount> (&copies)[kCopies], TileRoom& room) {
  const uint32_t first = threadIdx.x % (kTile / kCount) * kCount, hidden = call.mixes.shape.hidden;
  const uint32_t d = tile * kTile + first;
  SquareSum<kCount> squares;
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) {
    if (call.add.post != nullptr) copies[c].Store(call.updated + (row * kCopies + c) * hidden + d);
    uint8_t* const to = room.stream[c] + SwizzledOffset(r, first / 8) + first % 8 * 2;
    *reinterpret_cast<Bf16s<kCount>*>(to) = copies[c];
    squares.Add(copies[c]);
  }
  const float total = squares.Total();
  if (first == 0) {
    call.mixes.partials[(row * (hidden / kTile) + tile) * kMixPartials + kStreamSquares] = total;
  }
}

// By four warps: the tile's part of the mixes of rows [first, first + rows).
__device__ inline void SumTile(const MixCall& call, uint32_t first, uint32_t rows, uint32_t tile,
                               const TileRoom& room) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t tiles = call.mixes.shape.hidden / kTile;
  float sums[kMixPieces * kMixes / 2];
  WaitPhase(SharedAddress(&room.come), 0);
  WgmmaFence();
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) {
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t a = SharedAddress(room.stream[c]) + step * 32;
      const uint32_t b = SharedAddress(room.fn[c]) + step * 32;
      WgmmaShared<kMixPieces * kMixes>::Run(sums, SwizzledRows(a), SwizzledRows(b),
                                            c + step > 0 ? 1 : 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  Hold(sums);
  constexpr uint32_t kEights = kMixes / 8;
#pragma unroll
  for (uint32_t below = 0; below < 2; ++below) {
    const uint32_t r = warp * 16 + lane / 4 + 8 * below;
    if (r >= rows) continue;
    float* const to = call.mixes.partials + ((uint64_t{first} + r) * tiles + tile) * kMixPartials;
#pragma unroll
    for (uint32_t eight = 0; eight < kEights; ++eight) {
      float pair[2];
#pragma unroll
      for (uint32_t j = 0; j < 2; ++j) {
        const auto piece = [&](uint32_t p) {
          return sums[(p * kEights + eight) * 4 + 2 * below + j];
        };
        pair[j] = (piece(0) + piece(1)) + piece(2);
      }
      *reinterpret_cast<float2*>(to + eight * 8 + lane % 4 * 2) = make_float2(pair[0], pair[1]);
    }
  }
}

// Weights of the norm.
template <uint32_t kCount>
struct NormWeights {
  float values[kCount] = {};

  __device__ static NormWeights At(const float* from) {
    NormWeights of;
#pragma unroll
    for (uint32_t i = 0; i < kCount; i += 4) {
      *reinterpret_cast<float4*>(of.values + i) = *reinterpret_cast<const float4*>(from + i);
    }
    return of;
  }
};

// Neighbours of x from those of the collapsed row; 32 values of several lanes make a group of
// quantiser A.
template <uint32_t kCount>
__device__ inline void StoreNormed(const MixCall& call, uint64_t at, const Bf16s<kCount>& y,
                                   const NormWeights<kCount>& norm, float scale) {
  constexpr uint32_t kLanes = 32 / kCount;
  float x[kCount], round[kCount], largest = 0;
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    x[i] = RoundBf16(y[i] * scale * norm.values[i]);
    largest = fmaxf(largest, fabsf(x[i]));
  }
#pragma unroll
  for (uint32_t step = 1; step < kLanes; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(Together<kLanes>(), largest, step));
  }
  const uint32_t code = ScaleA(largest);
#pragma unroll
  for (uint32_t i = 0; i < kCount; i += 2) {
    const float2 pair = RoundPairA({x[i], x[i + 1]}, code);
    round[i] = pair.x;
    round[i + 1] = pair.y;
  }
  Bf16s<kCount>::Of(x).Store(call.x + at);
  Bf16s<kCount>::Of(round).Store(call.x_round + at);
}

__device__ inline float InverseRms(const StreamShape& shape, float squares) {
  return 1.0f / sqrtf(squares / static_cast<float>(shape.hidden) + shape.eps);
}

// ---- Few rows ----------------------------------------------------------------------------------

// A cluster collapses the rows whole, a block an eighth of each, so that every block knows their
// squares; all clusters do the same, and each block finishes one tile of its eighth. No block waits
// for any of another cluster.
constexpr uint32_t kFirstFinisher = 128;  // Threads before are those of the products.
constexpr uint32_t kGroupTilesMax = 128;

struct FewRoom {
  TileRoom tile;
  float squares[kPartialMixes][kGroupTilesMax];
  float of_group[kSumGroups][kPartialMixes];  // By the blocks of the cluster.
};

template <uint32_t kThreads>
__global__ __launch_bounds__(kThreads) void MixFew(const __grid_constant__ MixCall call) {
  extern __shared__ __align__(1024) uint8_t raw[];
  FewRoom& room = *reinterpret_cast<FewRoom*>(raw);
  const uint32_t rank = ClusterRank(), cluster = blockIdx.x / kSumGroups;
  const uint32_t hidden = call.mixes.shape.hidden, rows = call.mixes.rows;
  const SumGroup group(hidden / kTile, rank);
  const uint32_t tiles = group.end - group.begin, own = group.begin + cluster;
  const bool real = cluster < tiles;  // Whether there is a tile to finish.
  const uint32_t in_half = threadIdx.x % kHalf;
  // Rows of the block's own tile come first, and go to the finishers.
  const uint32_t first = (threadIdx.x - kFirstFinisher) % kThreads / kHalf;
  const bool finisher = real && first < rows;
  const uint64_t own_at = own * kTile + in_half * 4;
  NormWeights<4> norm;
  if (real) QueueFn(call, own, room.tile);
  if (finisher) norm = NormWeights<4>::At(call.norm + own_at);
  ClusterArrive();
  WaitForEarlier();
  LetNextBegin();

  Four mine = {};
  for (uint32_t item = first; item < tiles * rows; item += kThreads / kHalf) {
    const uint64_t row = item % rows;
    const uint32_t in_group = (cluster + item / rows) % tiles, tile = group.begin + in_group;
    RowWeights weights;
    weights.Load(call.add, call.pre, row);
    Four copies[kCopies];
    const uint32_t d = tile * kTile + in_half * 4;
    LoadCopies(call.stream, row, hidden, d, copies);
    if (call.add.post != nullptr) {
      UpdateCopies(weights, Added<4>(call.add, row, hidden, d), copies);
    }
    const Four y = Collapsed(copies, weights.pre);
    const float squares = SquaresOf(y);
    if (in_half == 0) room.squares[row][in_group] = squares;
    if (!finisher || item != first) continue;
    mine = y;
    y.Store(call.y + row * hidden + own_at);
    KeepRow(call, row, own, first, copies, room.tile);
    if (in_half == 0) {
      call.mixes.partials[(row * (hidden / kTile) + own) * kMixPartials + kRowSquares] = squares;
    }
  }
  FenceForMatrixUnits();
  __syncthreads();
  ClusterWait();  // The others have begun.
  const uint32_t sender = threadIdx.x - kFirstFinisher;
  if (sender < kSumGroups * kPartialMixes) {
    const uint32_t row = sender % kPartialMixes;
    float sum = 0;
    for (uint32_t tile = 0; tile < tiles && row < rows; ++tile) sum += room.squares[row][tile];
    StoreToPeer(PeerAddress(SharedAddress(&room.of_group[rank][row]), sender / kPartialMixes), sum);
  }
  ClusterArrive();
  if (threadIdx.x < kFirstFinisher && real) SumTile(call, 0, rows, own, room.tile);
  ClusterWait();
  if (!finisher) return;
  float squares = 0;
#pragma unroll
  for (const auto& of : room.of_group) squares += of[first];
  StoreNormed(call, uint64_t{first} * hidden + own_at, mine, norm,
              InverseRms(call.mixes.shape, squares));
}

// ---- Many rows ---------------------------------------------------------------------------------

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
static_assert(kWarps == kSumGroups);

// kAtOnce: rows that a block is at.
template <uint32_t kAtOnce>
struct ManyRoom {
  TileRoom tile;
  RowWeights weights[kAtOnce];
};

// A block takes a tile of `of_block` rows, which are 64 at most; a thread kCount neighbours.
template <uint32_t kAtOnce, uint32_t kCount, uint32_t kBlocks>
__global__ __launch_bounds__(kAtOnce* kTile / kCount,
                             kBlocks) void Mix(const __grid_constant__ MixCall call,
                                               uint32_t of_block) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& room = *reinterpret_cast<ManyRoom<kAtOnce>*>(raw);
  constexpr uint32_t kOfRow = kTile / kCount;  // Threads.
  const uint32_t hidden = call.mixes.shape.hidden, tile = blockIdx.x;
  const uint32_t first = blockIdx.y * of_block, rows = min(of_block, call.mixes.rows - first);
  const uint32_t d = tile * kTile + threadIdx.x % kOfRow * kCount;
  const bool adds = call.add.post != nullptr;
  QueueFn(call, tile, room.tile);
  WaitForEarlier();
  LetNextBegin();
#pragma unroll 1
  for (uint32_t r = threadIdx.x / kOfRow; r < rows; r += kAtOnce) {
    const uint64_t row = first + r;
    // Each of a row's threads loads a piece of what all need.
    const uint32_t piece = threadIdx.x % kOfRow;
    float4 of_weights = {};
    if (piece < RowWeights::kPieces) of_weights = RowWeights::Piece(call.add, call.pre, row, piece);
    Bf16s<kCount> copies[kCopies], added = {};
    LoadCopies(call.stream, row, hidden, d, copies);
    if (adds) added = Added<kCount>(call.add, row, hidden, d);
    RowWeights& weights = room.weights[threadIdx.x / kOfRow];
    __syncwarp(Together<kOfRow>());  // Nobody reads those of the row before.
    if (piece < RowWeights::kPieces) weights.SetPiece(piece, of_weights);
    __syncwarp(Together<kOfRow>());
    if (adds) UpdateCopies(weights, added, copies);
    const Bf16s<kCount> y = Collapsed(copies, weights.pre);
    y.Store(call.y + row * hidden + d);
    KeepRow(call, row, tile, r, copies, room.tile);
    const float squares = SquaresOf(y);
    if (threadIdx.x % kOfRow == 0) {
      call.mixes.partials[(row * gridDim.x + tile) * kMixPartials + kRowSquares] = squares;
    }
  }
  FenceForMatrixUnits();
  __syncthreads();
  if (threadIdx.x < 128) SumTile(call, first, rows, tile, room.tile);
}

// A block takes a row, when the sums of all tiles are there: it gives x, and leaves their sums.
constexpr uint32_t kFinishThreads = 640;

__global__ __launch_bounds__(kFinishThreads) void Finish(const __grid_constant__ MixCall call) {
  constexpr uint32_t kCount = 8, kStep = kFinishThreads * kCount;
  using Norm = NormWeights<kCount>;
  __shared__ float of_group[kSumGroups][32];
  const uint64_t row = blockIdx.x;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t hidden = call.mixes.shape.hidden, first = threadIdx.x * kCount;
  const Bf16Bits* const y = call.y + row * hidden;
  Norm norm;
  Bf16s<kCount> held = {};
  if (first < hidden) norm = Norm::At(call.norm + first);
  LetNextBegin();  // A product, whose weights may come while sums are still made.
  WaitForEarlier();
  if (first < hidden) held = Bf16s<kCount>::At(y + first);
  if (warp < kSumGroups) {
    of_group[warp][lane] = SumOfGroup(call.mixes.partials, row, hidden / kTile, warp);
  }
  __syncthreads();
  const auto total = [&](uint32_t wanted) {
    float sum = 0;
#pragma unroll
    for (const auto& of : of_group) sum += of[wanted];
    return sum;
  };
  const float scale = InverseRms(call.mixes.shape, total(kRowSquares));
  if (first < hidden) StoreNormed(call, row * hidden + first, held, norm, scale);
#pragma unroll 1
  for (uint32_t d = first + kStep; d < hidden; d += kStep) {
    StoreNormed(call, row * hidden + d, Bf16s<kCount>::At(y + d), Norm::At(call.norm + d), scale);
  }
  if (warp == kFinishThreads / 32 - 1) RowSums(call.mixes, row)[lane] = total(lane);
}

__global__ __launch_bounds__(kThreads) void Mixes(const __grid_constant__ MixesCall call) {
  const MixLane weights(call.weights);
  WaitForEarlier();
  LetNextBegin();
  FinishMixes(call, weights, blockIdx.x);
}

// ---- The update alone --------------------------------------------------------------------------

__global__ __launch_bounds__(kThreads) void Update(StreamAdd add, uint32_t hidden,
                                                   Bf16Bits* stream) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.y;
  const uint32_t d = (blockIdx.x * kThreads + threadIdx.x) * 4;
  if (d >= hidden) return;
  RowWeights weights;
  weights.Load(add, nullptr, row);
  Four copies[kCopies];
  LoadCopies(stream, row, hidden, d, copies);
  UpdateCopies(weights, Added<4>(add, row, hidden, d), copies);
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) copies[c].Store(stream + (row * kCopies + c) * hidden + d);
}

template <uint32_t kThreads>
cudaError_t LaunchFew(const MixCall& call, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<MixFew<kThreads>>(sizeof(FewRoom));
  if (ready != cudaSuccess) return ready;
  const uint32_t clusters = (call.mixes.shape.hidden / kTile + kSumGroups - 1) / kSumGroups;
  return QueueNext(MixFew<kThreads>, {clusters * kSumGroups, kThreads, sizeof(FewRoom), kSumGroups},
                   stream, call);
}

template <uint32_t kAtOnce, uint32_t kCount, uint32_t kBlocks>
cudaError_t LaunchMany(const MixCall& call, uint32_t of_block, cudaStream_t stream) {
  constexpr auto kKernel = Mix<kAtOnce, kCount, kBlocks>;
  constexpr uint32_t kShared = sizeof(ManyRoom<kAtOnce>);
  const cudaError_t ready = AllowShared<kKernel>(kShared);
  if (ready != cudaSuccess) return ready;
  const dim3 grid(call.mixes.shape.hidden / kTile, (call.mixes.rows + of_block - 1) / of_block);
  const cudaError_t error =
      QueueNext(kKernel, {grid, kAtOnce * kTile / kCount, kShared}, stream, call, of_block);
  if (error != cudaSuccess) return error;
  return QueueNext(Finish, {call.mixes.rows, kFinishThreads}, stream, call);
}

}  // namespace

cudaError_t LaunchMix(const MixCall& call, cudaStream_t stream) {
  const uint32_t rows = call.mixes.rows;
  if (rows > kPartialMixes) {
    // While all blocks are on the chip at once, few rows each, and as many on every multiprocessor.
    if (rows <= 64) return LaunchMany<16, 4, 3>(call, 16, stream);
    if (rows <= 144) return LaunchMany<48, 8, 2>(call, (rows + 2) / 3, stream);
    return LaunchMany<32, 8, 3>(call, 64, stream);
  }
  // Blocks of fewer threads find room beside those of the launch before.
  return rows <= 3 ? LaunchFew<256>(call, stream) : LaunchFew<512>(call, stream);
}

cudaError_t LaunchMixes(const MixesCall& call, cudaStream_t stream) {
  return QueueNext(Mixes, {MixesBlocks(call.rows), kThreads}, stream, call);
}

cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const StreamAdd& add,
                         Bf16Bits* stream, cudaStream_t cuda) {
  const dim3 grid((shape.hidden / 4 + kThreads - 1) / kThreads, rows);
  return QueueNext(Update, {grid, kThreads}, cuda, add, shape.hidden, stream);
}

}  // namespace reprise::engine::cuda
