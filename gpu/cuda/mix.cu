#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
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

// Four neighbours in a row.
struct Four {
  float values[4];

  __device__ static Four At(const Bf16Bits* from) {
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    return {{__uint_as_float(bits.x << 16), __uint_as_float(bits.x & 0xffff0000u),
             __uint_as_float(bits.y << 16), __uint_as_float(bits.y & 0xffff0000u)}};
  }
  // As bf16, which they become.
  __device__ uint2 Rounded() {
    const __nv_bfloat162 low = __floats2bfloat162_rn(values[0], values[1]);
    const __nv_bfloat162 high = __floats2bfloat162_rn(values[2], values[3]);
    const uint2 bits = {*reinterpret_cast<const uint32_t*>(&low),
                        *reinterpret_cast<const uint32_t*>(&high)};
    *this = At(reinterpret_cast<const Bf16Bits*>(&bits));
    return bits;
  }
};

// As LaunchSumParts.
__device__ inline Four SummedParts(const StreamAdd& add, uint64_t at) {
  Four sum = {};
#pragma unroll 1
  for (uint32_t rank = 0; rank < add.ranks; ++rank) {
    const float4 one = *reinterpret_cast<const float4*>(add.parts + rank * add.part_stride + at);
    const float values[4] = {one.x, one.y, one.z, one.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.values[i] = rank == 0 ? values[i] : sum.values[i] + values[i];
  }
  sum.Rounded();
  return sum;
}

// What is added to values d to d + 3 of a row: bf16 values.
__device__ inline Four Added(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d) {
  if (add.h != nullptr) return Four::At(add.h + row * hidden + d);
  if (add.parts != nullptr) return SummedParts(add, row * hidden + d);
  Four sum = {};
  for (uint32_t k = 0; k < add.chosen; ++k) {
    const uint64_t slot = add.slot_of[row * add.chosen + k];
    const Four one = Four::At(add.outputs + slot * hidden + d);
#pragma unroll
    for (int i = 0; i < 4; ++i) sum.values[i] += one.values[i];
  }
  const Four shared = Four::At(add.shared + row * hidden + d);
#pragma unroll
  for (int i = 0; i < 4; ++i) sum.values[i] += shared.values[i];
  sum.Rounded();
  return sum;
}

// Values d to d + 3 of the copies, with what is added to them; written back.
__device__ inline void UpdateFour(const StreamAdd& add, uint64_t row, uint32_t hidden, uint32_t d,
                                  Bf16Bits* stream, Four (&copies)[kCopies]) {
  Bf16Bits* const x = stream + row * kCopies * hidden + d;
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) copies[c] = Four::At(x + c * hidden);
  if (add.post == nullptr) return;
  const Four added = Added(add, row, hidden, d);
  Four now[kCopies];
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) {
    const float* mixing = add.comb + row * kCopies * kCopies + k;
    const float weight = add.post[row * kCopies + k];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float mixed = copies[0].values[i] * mixing[0];
#pragma unroll
      for (uint32_t a = 1; a < kCopies; ++a) {
        mixed = fmaf(copies[a].values[i], mixing[a * kCopies], mixed);
      }
      now[k].values[i] = fmaf(weight, added.values[i], mixed);
    }
    *reinterpret_cast<uint2*>(x + k * hidden) = now[k].Rounded();
  }
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) copies[k] = now[k];
}

__global__ void Update(StreamAdd add, uint32_t hidden, Bf16Bits* stream) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
  Four copies[kCopies];
  if (d < hidden) UpdateFour(add, blockIdx.y, hidden, d, stream, copies);
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

__global__ __launch_bounds__(kThreads) void Finish(MixCall call) {
  WaitForEarlier();
  LetNextBegin();
  FinishRow(call, blockIdx.x);
}

// A block takes 64 values of every copy, of kRows rows.
template <uint32_t kRows>
__global__ __launch_bounds__(kThreads) void Mix(MixCall call) {
  WaitForEarlier();
  LetNextBegin();
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
  // Half a warp takes a row.
  constexpr uint32_t kHalf = 16;
  const uint32_t in_half = lane % kHalf, d = tile * kTile + in_half * 4;
#pragma unroll 2
  for (uint32_t r = warp * 2 + lane / kHalf; r < rows; r += kWarps * 2) {
    const uint64_t row = first + r;
    const float4 pre = reinterpret_cast<const float4*>(call.pre)[row];
    Four copies[kCopies];
    UpdateFour(call.add, row, hidden, d, call.stream, copies);
    float squares = 0, row_squares = 0;
    Four collapsed;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float sum = copies[0].values[i] * pre.x;
      sum = fmaf(copies[1].values[i], pre.y, sum);
      sum = fmaf(copies[2].values[i], pre.z, sum);
      collapsed.values[i] = fmaf(copies[3].values[i], pre.w, sum);
    }
    *reinterpret_cast<uint2*>(call.y + row * hidden + d) = collapsed.Rounded();
#pragma unroll
    for (uint32_t c = 0; c < kCopies; ++c) {
      uint8_t* const to = shared + c * kStreamTileBytes + SwizzledOffset(r, in_half / 2);
      *reinterpret_cast<uint2*>(to + in_half % 2 * 8) = copies[c].Rounded();
#pragma unroll
      for (const float value : copies[c].values) squares = fmaf(value, value, squares);
    }
#pragma unroll
    for (const float value : collapsed.values) row_squares = fmaf(value, value, row_squares);
    const uint32_t together = __activemask();
#pragma unroll
    for (uint32_t step = kHalf / 2; step > 0; step /= 2) {
      squares += __shfl_xor_sync(together, squares, step);
      row_squares += __shfl_xor_sync(together, row_squares, step);
    }
    if (in_half == 0) {
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
  return QueueNext(Mix<kRows>, {grid, kThreads, kMixShared}, stream, call);
}

}  // namespace

cudaError_t LaunchMix(const MixCall& call, cudaStream_t stream) {
  if (call.rows <= kMixTickets * kFewRows) return Queue<kFewRows>(call, stream);
  // Few rows a block while that keeps the chip busier.
  const cudaError_t error = call.rows <= 256 ? Queue<16>(call, stream) : Queue<64>(call, stream);
  if (error != cudaSuccess) return error;
  return QueueNext(Finish, {call.rows, kThreads}, stream, call);
}

cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const StreamAdd& add,
                         Bf16Bits* stream, cudaStream_t cuda) {
  const dim3 grid((shape.hidden / 4 + kThreads - 1) / kThreads, rows);
  return QueueNext(Update, {grid, kThreads}, cuda, add, shape.hidden, stream);
}

}  // namespace reprise::engine::cuda
