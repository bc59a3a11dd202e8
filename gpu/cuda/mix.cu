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
constexpr uint32_t kHalf = 16;  // Threads, half a warp: they take a row of a tile.

// ---- A tile of rows ----------------------------------------------------------------------------

// Of 64 rows, of which few may be real: the others are whatever was there, and no other row sees
// them.
struct TileRoom {
  uint8_t stream[kCopies][kTile * 128];
  uint8_t fn[kCopies][kMixTileValues * 2];
};

// Begins to bring the tile's weights, by a block.
__device__ inline void QueueFn(const MixCall& call, uint32_t tile, TileRoom& room) {
  const auto* fn =
      reinterpret_cast<const uint8_t*>(call.fn + uint64_t{tile} * kCopies * kMixTileValues);
  for (uint32_t at = threadIdx.x * 16; at < sizeof(room.fn); at += blockDim.x * 16) {
    CopyAsync16(SharedAddress(room.fn) + at, fn + at, true);
  }
  CopyCommit();
}

// The sum over half a warp.
__device__ inline float HalfSum(float x) {
  const uint32_t half = 0xffffu << threadIdx.x % 32 / kHalf * kHalf;
#pragma unroll
  for (uint32_t step = kHalf / 2; step > 0; step /= 2) x += __shfl_xor_sync(half, x, step);
  return x;
}
__device__ inline float Squares(float sum, const Four& four) {
#pragma unroll
  for (const float value : four.values) sum = fmaf(value, value, sum);
  return sum;
}

// By half a warp: row r of the tile, with what is added to it, to where the products find it.
__device__ inline void KeepRow(const MixCall& call, uint64_t row, uint32_t tile, uint32_t r,
                               const Four (&copies)[kCopies], TileRoom& room) {
  const uint32_t in_half = threadIdx.x % kHalf, hidden = call.mixes.shape.hidden;
  const uint32_t d = tile * kTile + in_half * 4;
  float squares = 0;
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) {
    if (call.add.post != nullptr) copies[c].Store(call.updated + (row * kCopies + c) * hidden + d);
    uint8_t* const to = room.stream[c] + SwizzledOffset(r, in_half / 2);
    *reinterpret_cast<uint2*>(to + in_half % 2 * 8) = copies[c].Bits();
    squares = Squares(squares, copies[c]);
  }
  squares = HalfSum(squares);
  if (in_half == 0) {
    call.mixes.partials[(row * (hidden / kTile) + tile) * kMixPartials + kStreamSquares] = squares;
  }
}

// By four warps: the tile's part of the mixes of rows [first, first + rows).
__device__ inline void SumTile(const MixCall& call, uint32_t first, uint32_t rows, uint32_t tile,
                               const TileRoom& room) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t tiles = call.mixes.shape.hidden / kTile;
  float sums[kMixPieces * kMixes / 2];
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

// Four neighbours of x from those of the collapsed row; eight lanes make a group of quantiser A.
__device__ inline void StoreNormed(const MixCall& call, uint64_t at, const Four& y,
                                   const float4& norm, float scale) {
  const float weights[4] = {norm.x, norm.y, norm.z, norm.w};
  Four x, round;
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x.values[i] = RoundBf16(y.values[i] * scale * weights[i]);
    largest = fmaxf(largest, fabsf(x.values[i]));
  }
  const uint32_t eight = 0xffu << threadIdx.x % 32 / 8 * 8;
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(eight, largest, step));
  }
  const uint32_t code = ScaleA(largest);
#pragma unroll
  for (int i = 0; i < 4; ++i) round.values[i] = RoundA(x.values[i], code);
  x.Store(call.x + at);
  round.Store(call.x_round + at);
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
  float squares[kMixesLeft][kGroupTilesMax];
  float of_group[kSumGroups][kMixesLeft];  // By the blocks of the cluster.
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
  float4 norm = {};
  if (real) QueueFn(call, own, room.tile);
  if (finisher) norm = *reinterpret_cast<const float4*>(call.norm + own_at);
  ClusterArrive();
  WaitForEarlier();
  LetNextBegin();

  Four mine = {};
  for (uint32_t item = first; item < tiles * rows; item += kThreads / kHalf) {
    const uint64_t row = item % rows;
    const uint32_t in_group = (cluster + item / rows) % tiles, tile = group.begin + in_group;
    const float4 pre = reinterpret_cast<const float4*>(call.pre)[row];
    Four copies[kCopies];
    UpdatedFour(call.add, row, hidden, tile * kTile + in_half * 4, call.stream, copies);
    const Four y = Collapsed(copies, pre);
    const float squares = HalfSum(Squares(0, y));
    if (in_half == 0) room.squares[row][in_group] = squares;
    if (!finisher || item != first) continue;
    mine = y;
    y.Store(call.y + row * hidden + own_at);
    KeepRow(call, row, own, first, copies, room.tile);
    if (in_half == 0) {
      call.mixes.partials[(row * (hidden / kTile) + own) * kMixPartials + kRowSquares] = squares;
    }
  }
  CopyWait<0>();
  FenceForMatrixUnits();
  __syncthreads();
  ClusterWait();  // The others have begun.
  const uint32_t sender = threadIdx.x - kFirstFinisher;
  if (sender < kSumGroups * kMixesLeft) {
    const uint32_t row = sender % kMixesLeft;
    float sum = 0;
    for (uint32_t tile = 0; tile < tiles && row < rows; ++tile) sum += room.squares[row][tile];
    StoreToPeer(PeerAddress(SharedAddress(&room.of_group[rank][row]), sender / kMixesLeft), sum);
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

// A block takes a tile of kRows rows.
template <uint32_t kRows>
__global__ __launch_bounds__(kThreads, 3) void Mix(const __grid_constant__ MixCall call) {
  extern __shared__ __align__(1024) uint8_t raw[];
  TileRoom& room = *reinterpret_cast<TileRoom*>(raw);
  const uint32_t hidden = call.mixes.shape.hidden, tile = blockIdx.x;
  const uint32_t first = blockIdx.y * kRows, rows = min(kRows, call.mixes.rows - first);
  const uint32_t in_half = threadIdx.x % kHalf, d = tile * kTile + in_half * 4;
  QueueFn(call, tile, room);
  WaitForEarlier();
  LetNextBegin();
#pragma unroll 1
  for (uint32_t r = threadIdx.x / kHalf; r < rows; r += kThreads / kHalf) {
    const uint64_t row = first + r;
    const float4 pre = reinterpret_cast<const float4*>(call.pre)[row];
    Four copies[kCopies];
    UpdatedFour(call.add, row, hidden, d, call.stream, copies);
    const Four y = Collapsed(copies, pre);
    y.Store(call.y + row * hidden + d);
    KeepRow(call, row, tile, r, copies, room);
    const float squares = HalfSum(Squares(0, y));
    if (in_half == 0) {
      call.mixes.partials[(row * gridDim.x + tile) * kMixPartials + kRowSquares] = squares;
    }
  }
  CopyWait<0>();
  FenceForMatrixUnits();
  __syncthreads();
  if (threadIdx.x < 128) SumTile(call, first, rows, tile, room);
}

// A block takes a row, when the sums of all tiles are there: eight warps give x, one the mixes.
constexpr uint32_t kFinishThreads = kThreads + 32;

__global__ __launch_bounds__(kFinishThreads) void Finish(const __grid_constant__ MixCall call) {
  constexpr uint32_t kHeld = 6, kStep = kThreads * 4;  // Four values a thread and step.
  __shared__ float of_group[kSumGroups][32];
  const uint64_t row = blockIdx.x;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t hidden = call.mixes.shape.hidden, begin = threadIdx.x * 4;
  const Bf16Bits* const y = call.y + row * hidden;
  const MixLane weights(call.mixes.weights);
  float4 norm[kHeld];
  Four held[kHeld];
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) {
    const uint32_t d = begin + i * kStep;
    if (warp < kWarps && d < hidden) norm[i] = *reinterpret_cast<const float4*>(call.norm + d);
  }
  WaitForEarlier();
  LetNextBegin();
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) {
    const uint32_t d = begin + i * kStep;
    if (warp < kWarps && d < hidden) held[i] = Four::At(y + d);
  }
  if (warp < kWarps) {
    of_group[warp][lane] = SumOfGroup(call.mixes.partials, row, hidden / kTile, warp);
  }
  __syncthreads();
  const uint32_t wanted = warp < kWarps ? kRowSquares : lane;
  float sum = 0;
#pragma unroll
  for (const auto& of : of_group) sum += of[wanted];
  if (warp == kWarps) return SplitMixes(call.mixes, weights, row, sum);
  const float scale = InverseRms(call.mixes.shape, sum);
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) {
    const uint32_t d = begin + i * kStep;
    if (d < hidden) StoreNormed(call, row * hidden + d, held[i], norm[i], scale);
  }
  for (uint32_t d = begin + kHeld * kStep; d < hidden; d += kStep) {
    StoreNormed(call, row * hidden + d, Four::At(y + d),
                *reinterpret_cast<const float4*>(call.norm + d), scale);
  }
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
  Four copies[kCopies];
  UpdatedFour(add, row, hidden, d, stream, copies);
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

template <uint32_t kRows>
cudaError_t LaunchMany(const MixCall& call, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<Mix<kRows>>(sizeof(TileRoom));
  if (ready != cudaSuccess) return ready;
  const dim3 grid(call.mixes.shape.hidden / kTile, (call.mixes.rows + kRows - 1) / kRows);
  const cudaError_t error = QueueNext(Mix<kRows>, {grid, kThreads, sizeof(TileRoom)}, stream, call);
  if (error != cudaSuccess) return error;
  return QueueNext(Finish, {call.mixes.rows, kFinishThreads}, stream, call);
}

}  // namespace

cudaError_t LaunchMix(const MixCall& call, cudaStream_t stream) {
  if (call.mixes.rows > kMixesLeft) {
    // Few rows a block while all blocks are on the chip at once.
    if (call.mixes.rows <= 64) return LaunchMany<16>(call, stream);
    return call.mixes.rows <= 128 ? LaunchMany<32>(call, stream) : LaunchMany<64>(call, stream);
  }
  // Blocks of fewer threads find room beside those of the launch before.
  return call.mixes.rows <= 3 ? LaunchFew<256>(call, stream) : LaunchFew<512>(call, stream);
}

cudaError_t LaunchMixes(const MixesCall& call, cudaStream_t stream) {
  return QueueNext(Mixes, {call.rows, kThreads}, stream, call);
}

cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const StreamAdd& add,
                         Bf16Bits* stream, cudaStream_t cuda) {
  const dim3 grid((shape.hidden / 4 + kThreads - 1) / kThreads, rows);
  return QueueNext(Update, {grid, kThreads}, cuda, add, shape.hidden, stream);
}

}  // namespace reprise::engine::cuda
