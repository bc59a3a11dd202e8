#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mix_layout.h"
#include "gpu/cuda/shared_room.h"
#include "gpu/cuda/wgmma.cuh"

// Single-pass hyper-connections (model-facts section 7): what a sublayer gives is added to the
// stream, the next one's input is taken from it, and the weights for the round after that.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kCopies = 4;
constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kTile = 64;                      // Values of a copy that a block takes.
constexpr uint32_t kStreamTileBytes = kTile * 128;  // Of 64 rows.
constexpr uint32_t kFnTileBytes = kMixTileValues * 2;
constexpr uint32_t kMixShared = kCopies * (kStreamTileBytes + kFnTileBytes);
// Of a partial sum's row: the mixes, then squares of the stream and of the collapsed row.
constexpr uint32_t kStreamSquares = kMixes, kRowSquares = kMixes + 1, kSums = kMixes + 2;
constexpr uint32_t kFewRows = 8;  // Of a block that finishes them itself.

// ---- The stream --------------------------------------------------------------------------------

__device__ inline float2 PairAt(const Bf16Bits* values, uint64_t at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(values + at));
}

// As LaunchSumParts.
__device__ inline float2 SummedParts(const StreamAdd& add, uint64_t at) {
  float2 sum = *reinterpret_cast<const float2*>(add.parts + at);
#pragma unroll 1
  for (uint32_t rank = 1; rank < add.ranks; ++rank) {
    const float2 one = *reinterpret_cast<const float2*>(add.parts + rank * add.part_stride + at);
    sum.x += one.x;
    sum.y += one.y;
  }
  return {RoundBf16(sum.x), RoundBf16(sum.y)};
}

// What is added to values d and d + 1 of a row: bf16 values.
__device__ inline float2 Added(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d) {
  if (add.h != nullptr) return PairAt(add.h, row * hidden + d);
  if (add.parts != nullptr) return SummedParts(add, row * hidden + d);
  float2 sum = {0, 0};
  for (uint32_t k = 0; k < add.chosen; ++k) {
    const float2 one =
        PairAt(add.outputs, uint64_t{add.slot_of[row * add.chosen + k]} * hidden + d);
    sum.x += one.x;
    sum.y += one.y;
  }
  const float2 shared = PairAt(add.shared, row * hidden + d);
  return {RoundBf16(sum.x + shared.x), RoundBf16(sum.y + shared.y)};
}

// Values d and d + 1 of the copies, with what is added to them; written back.
__device__ inline void UpdatePair(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d,
                                  Bf16Bits* stream, float2 (&copies)[kCopies]) {
  Bf16Bits* const x = stream + row * kCopies * hidden + d;
  float2 old[kCopies];
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) old[c] = copies[c] = PairAt(x, c * hidden);
  if (add.post == nullptr) return;
  const float2 added = Added(add, row, hidden, d);
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) {
    const float* mixing = add.comb + row * kCopies * kCopies + k;
    float2 mixed = {old[0].x * mixing[0], old[0].y * mixing[0]};
#pragma unroll
    for (uint32_t a = 1; a < kCopies; ++a) {
      mixed.x = fmaf(old[a].x, mixing[a * kCopies], mixed.x);
      mixed.y = fmaf(old[a].y, mixing[a * kCopies], mixed.y);
    }
    const float weight = add.post[row * kCopies + k];
    const __nv_bfloat162 now =
        __floats2bfloat162_rn(fmaf(weight, added.x, mixed.x), fmaf(weight, added.y, mixed.y));
    *reinterpret_cast<__nv_bfloat162*>(x + k * hidden) = now;
    copies[k] = __bfloat1622float2(now);
  }
}

__device__ inline float Collapsed(const float4& pre, float c0, float c1, float c2, float c3) {
  float sum = c0 * pre.x;
  sum = fmaf(c1, pre.y, sum);
  sum = fmaf(c2, pre.z, sum);
  return RoundBf16(fmaf(c3, pre.w, sum));
}

__global__ void Update(StreamAdd add, uint32_t hidden, Bf16Bits* stream) {
  const uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * 2;
  float2 copies[kCopies];
  if (d < hidden) UpdatePair(add, blockIdx.y, hidden, d, stream, copies);
}

// ---- Mixes -------------------------------------------------------------------------------------

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Of one row, by a warp: lane i holds sum i.
__device__ void SplitMixes(const MixCall& call, uint32_t row, float sum) {
  constexpr uint32_t kAll = 0xffffffff;
  const uint32_t lane = threadIdx.x % 32;
  const MixWeights& w = call.mix;
  const float squares = __shfl_sync(kAll, sum, kStreamSquares);
  const float mean = squares / static_cast<float>(kCopies * call.shape.hidden);
  const float rms = 1.0f / sqrtf(mean + call.shape.eps);
  const uint32_t mix = min(lane, kMixes - 1);
  const uint32_t kind = mix < kCopies ? 0 : mix < 2 * kCopies ? 1 : 2;
  const float m = __fadd_rn(__fmul_rn(__fmul_rn(sum, rms), w.scale[kind]), w.base[mix]);
  if (lane < kCopies) call.pre_next[row * kCopies + lane] = Sigmoid(m) + w.eps;
  if (lane >= kCopies && lane < 2 * kCopies) {
    call.post[row * kCopies + lane - kCopies] = 2.0f * Sigmoid(m);
  }

  // Lanes 0 to 15 hold C, row-major, and the others the same again.
  float c = __shfl_sync(kAll, m, 2 * kCopies + lane % 16);
  const auto over = [&](uint32_t step, auto&& join) {  // Lanes `step` and 2 step apart.
    const float two = join(c, __shfl_xor_sync(kAll, c, step));
    return join(two, __shfl_xor_sync(kAll, two, 2 * step));
  };
  const auto sum_of_row = [&] { return over(1, [](float a, float b) { return a + b; }); };
  const auto sum_of_column = [&] { return over(4, [](float a, float b) { return a + b; }); };
  const float top = over(1, [](float a, float b) { return fmaxf(a, b); });
  c = expf(c - top);
  c = c / sum_of_row() + w.eps;
  for (uint32_t turn = 0; turn < w.iterations; ++turn) {
    if (turn > 0) c = __fdividef(c, sum_of_row() + w.eps);
    c = __fdividef(c, sum_of_column() + w.eps);
  }
  if (lane < 16) call.comb[row * kCopies * kCopies + lane] = c;
}

// By a block, when the sums of all tiles are there: one warp splits the mixes, the others give x.
// What other blocks wrote is read past this processor's own cache.
__device__ void FinishRow(const MixCall& call, uint32_t row) {
  __shared__ float of_warp[kWarps][32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t hidden = call.shape.hidden, tiles = hidden / kTile;
  const float* sums = call.partials + uint64_t{row} * tiles * kMixPartials + lane;
  const uint32_t end = tiles * (warp + 1) / kWarps;
  float sum = 0;
  constexpr uint32_t kTogether = 10;
  for (uint32_t tile = tiles * warp / kWarps; tile < end; tile += kTogether) {
    float values[kTogether];
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const bool real = tile + i < end && lane < kSums;
      values[i] = real ? __ldcg(sums + (tile + i) * kMixPartials) : 0.0f;
    }
#pragma unroll
    for (const float value : values) sum += value;
  }
  __syncthreads();  // Of the row before, all is read.
  of_warp[warp][lane] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (const auto& one : of_warp) sum += one[lane];
  if (warp == 0) return SplitMixes(call, row, sum);
  const float mean = __shfl_sync(0xffffffff, sum, kRowSquares) / static_cast<float>(hidden);
  const float scale = 1.0f / sqrtf(mean + call.shape.eps);
  // A lane takes four neighbours, eight lanes a group of quantiser A.
  const uint64_t begin = uint64_t{row} * hidden;
  constexpr uint32_t kStep = (kWarps - 1) * 128;
#pragma unroll 3
  for (uint32_t at = (warp - 1) * 128; at < hidden; at += kStep) {
    const uint32_t d = at + lane * 4;
    const bool real = d < hidden;
    const uint2 bits = real ? __ldcg(reinterpret_cast<const uint2*>(call.y + begin + d)) : uint2{};
    const float4 norm =
        real ? *reinterpret_cast<const float4*>(call.norm + d) : make_float4(0, 0, 0, 0);
    const float2 low = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits.x));
    const float2 high = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bits.y));
    const float values[4] = {RoundBf16(low.x * scale * norm.x), RoundBf16(low.y * scale * norm.y),
                             RoundBf16(high.x * scale * norm.z),
                             RoundBf16(high.y * scale * norm.w)};
    float largest =
        fmaxf(fmaxf(fabsf(values[0]), fabsf(values[1])), fmaxf(fabsf(values[2]), fabsf(values[3])));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    if (!real) continue;
    const uint32_t code = ScaleA(largest);
    __nv_bfloat162* const x = reinterpret_cast<__nv_bfloat162*>(call.x + begin + d);
    __nv_bfloat162* const round = reinterpret_cast<__nv_bfloat162*>(call.x_round + begin + d);
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      x[i] = __floats2bfloat162_rn(values[2 * i], values[2 * i + 1]);
      round[i] =
          __floats2bfloat162_rn(RoundA(values[2 * i], code), RoundA(values[2 * i + 1], code));
    }
  }
}

__global__ __launch_bounds__(kThreads) void Finish(MixCall call) { FinishRow(call, blockIdx.x); }

// A block takes 64 values of every copy, of kRows rows.
template <uint32_t kRows>
__global__ __launch_bounds__(kThreads) void Mix(MixCall call) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const fn_tiles = shared + kCopies * kStreamTileBytes;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t hidden = call.shape.hidden, tiles = gridDim.x, tile = blockIdx.x;
  const uint32_t first = blockIdx.y * kRows, rows = min(kRows, call.rows - first);
  const uint8_t* fn =
      reinterpret_cast<const uint8_t*>(call.fn + uint64_t{tile} * kCopies * kMixTileValues);
  for (uint32_t at = threadIdx.x * 16; at < kCopies * kFnTileBytes; at += kThreads * 16) {
    CopyAsync16(SharedAddress(fn_tiles) + at, fn + at, true);
  }
  CopyCommit();
  const uint32_t d = tile * kTile + lane * 2;
#pragma unroll 4
  for (uint32_t r = warp; r < rows; r += kWarps) {
    const uint64_t row = first + r;
    float2 copies[kCopies];
    UpdatePair(call.add, row, hidden, d, call.stream, copies);
    float squares = 0;
#pragma unroll
    for (uint32_t c = 0; c < kCopies; ++c) {
      uint8_t* const to =
          shared + c * kStreamTileBytes + SwizzledOffset(r, lane / 4) + lane % 4 * 4;
      *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(copies[c].x, copies[c].y);
      squares = fmaf(copies[c].x, copies[c].x, squares);
      squares = fmaf(copies[c].y, copies[c].y, squares);
    }
    const float4 pre = reinterpret_cast<const float4*>(call.pre)[row];
    const float x = Collapsed(pre, copies[0].x, copies[1].x, copies[2].x, copies[3].x);
    const float y = Collapsed(pre, copies[0].y, copies[1].y, copies[2].y, copies[3].y);
    *reinterpret_cast<__nv_bfloat162*>(call.y + row * hidden + d) = __floats2bfloat162_rn(x, y);
    squares = WarpSum(squares);
    const float row_squares = WarpSum(fmaf(x, x, y * y));
    if (lane == 0) {
      float* const sums = call.partials + (row * tiles + tile) * kMixPartials;
      sums[kStreamSquares] = squares;
      sums[kRowSquares] = row_squares;
    }
  }
  CopyWait<0>();
  FenceForMatrixUnits();
  __syncthreads();
  if (threadIdx.x < 128) {
    float sums[kMixPieces * kMixes / 2];
    WgmmaFence();
#pragma unroll
    for (uint32_t c = 0; c < kCopies; ++c) {
#pragma unroll
      for (uint32_t step = 0; step < 4; ++step) {
        // Rows beyond those of the block are whatever was there: no other row sees them.
        const uint32_t a = SharedAddress(shared) + c * kStreamTileBytes + step * 32;
        const uint32_t b = SharedAddress(fn_tiles) + c * kFnTileBytes + step * 32;
        WgmmaShared<kMixPieces * kMixes, false>::Run(sums, SwizzledRows(a), SwizzledRows(b),
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
      float* const to = call.partials + ((uint64_t{first} + r) * tiles + tile) * kMixPartials;
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
  if constexpr (kRows == kFewRows) {
    // The last block of these rows finishes them.
    __shared__ uint32_t ticket;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) ticket = atomicAdd(&call.tickets[blockIdx.y], 1);
    __syncthreads();
    if (ticket + 1 < tiles) return;
    __threadfence();
    for (uint32_t r = 0; r < rows; ++r) FinishRow(call, first + r);
    if (threadIdx.x == 0) call.tickets[blockIdx.y] = 0;
  }
}

template <uint32_t kRows>
cudaError_t Queue(const MixCall& call, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<Mix<kRows>>(kMixShared);
  if (ready != cudaSuccess) return ready;
  const dim3 grid(call.shape.hidden / kTile, (call.rows + kRows - 1) / kRows);
  Mix<kRows><<<grid, kThreads, kMixShared, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchMix(const MixCall& call, cudaStream_t stream) {
  if (call.rows <= kMixTickets * kFewRows) return Queue<kFewRows>(call, stream);
  // Few rows a block while that keeps the chip busier.
  const cudaError_t error = call.rows <= 256 ? Queue<16>(call, stream) : Queue<64>(call, stream);
  if (error != cudaSuccess) return error;
  Finish<<<call.rows, kThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const StreamAdd& add,
                         Bf16Bits* stream, cudaStream_t cuda) {
  const dim3 grid((shape.hidden / 2 + kThreads - 1) / kThreads, rows);
  Update<<<grid, kThreads, 0, cuda>>>(add, shape.hidden, stream);
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
