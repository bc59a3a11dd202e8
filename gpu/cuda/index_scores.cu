#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// The indexer's queries, and scores of global entries over their FP4 keys (model-facts sections 5.2
// and 5.3).
namespace reprise::engine::cuda {
namespace {

__global__ void IndexQueries(StepView step, Bf16Bits* q, uint32_t heads, uint32_t dim) {
  const uint64_t row = blockIdx.x;
  const uint32_t pairs = step.pairs, begin = dim - 2 * pairs;
  const float* cosines = step.cosines[1] + row * pairs;
  const float* sines = step.sines[1] + row * pairs;
  for (uint32_t i = threadIdx.x; i < heads * dim; i += blockDim.x) {
    const uint32_t d = i % dim;
    Bf16* x = AsBf16(q) + row * heads * dim + i;
    float value = ToFloat(*x);
    const float other = __shfl_xor_sync(0xffffffff, value, 1);
    if (d >= begin) {
      const float c = cosines[(d - begin) / 2], s = sines[(d - begin) / 2];
      value = RoundBf16(d % 2 == 0 ? value * c - other * s : other * s + value * c);
    }
    const uint32_t code = ScaleC(WarpMax(fabsf(value)));
    const float scale = PowerOf(code);
    *x = ToBf16(E2m1Value(E2m1Of(__fdiv_rn(value, scale))) * scale);
  }
}

// ---- Scores ------------------------------------------------------------------------------------

constexpr uint32_t kScoreThreads = 128;

// A thread an entry, a block 128 of them: for models with few index heads.
__global__ void SimpleScores(ScoreCall call) {
  extern __shared__ float query[];  // [heads][dim], then [heads] weights.
  const uint32_t in_call = blockIdx.y, row = call.row + in_call;
  const uint32_t all = call.heads * call.dim;
  const uint32_t count = call.candidates == nullptr ? Visible(call.step, row, call.ratio)
                                                    : call.candidate_counts[in_call];
  if (blockIdx.x * kScoreThreads >= count) return;
  for (uint32_t i = threadIdx.x; i < all; i += kScoreThreads) {
    query[i] = ToFloat(AsBf16(call.queries)[uint64_t{row} * all + i]);
  }
  for (uint32_t h = threadIdx.x; h < call.heads; h += kScoreThreads) {
    query[all + h] = ToFloat(AsBf16(call.weights)[uint64_t{row} * call.heads + h]) * call.factor;
  }
  __syncthreads();
  const uint32_t i = blockIdx.x * kScoreThreads + threadIdx.x;
  if (i >= count) return;
  const uint64_t at = uint64_t{in_call} * call.stride + i;
  const uint32_t entry = call.candidates == nullptr ? i : call.candidates[at];
  const EntryPlace place =
      PlaceOf(call.step, call.entries, call.step.part[call.step.part_of_row[row]], entry);
  float score = 0;
  for (uint32_t h = 0; h < call.heads; ++h) {
    float dot = 0;
    for (uint32_t d = 0; d < call.dim; d += 8) {
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(place.index_codes + d / 2);
      const float scale = PowerOf(place.index_scales[d / 32]);
      const float* q = query + h * call.dim + d;
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) {
        dot = fmaf(q[k], E2m1Value(codes >> (4 * k) & 15) * scale, dot);
      }
    }
    score = fmaf(query[all + h], fmaxf(dot, 0.0f), score);
  }
  call.scores[at] = score + 0.0f;  // -0 becomes 0: they are a tie.
}

// ---- Scores by the matrix units ----------------------------------------------------------------

// A warpgroup takes 64 keys at a time as operand A, from codes in registers, and the queries of
// kRows rows as operand B. A thread loads 32 neighbouring values of a key, which share a scale; the
// order of the 128 inputs is whatever makes that cheap, and the queries lie in the same order.
constexpr uint32_t kIndexHeads = 32, kIndexDim = 128, kTileKeys = 64;
// Keys come 2^-16 too small, so that factors are bf16 whatever their scale; the weights undo it.
constexpr int kSmaller = 16;

// Where value `d` of a query lies: the input of the product.
__device__ inline uint32_t InputOf(uint32_t d) {
  const uint32_t thread = d / 32, word = d % 32 / 8, n = d % 8;
  const uint32_t pair = 3 - n % 4, high = n / 4;
  const uint32_t step = 2 * word + pair / 2;
  return 16 * step + 2 * thread + high + 8 * (pair % 2);
}

struct RawKeys {  // Of this thread's two keys.
  uint4 codes[2];
  uint32_t scales[2];
};

template <int kRows>
__global__ __launch_bounds__(128, kRows == 1 ? 6 : 3) void MatrixScores(ScoreCall call) {
  constexpr int kColumns = kRows * kIndexHeads;
  constexpr uint32_t kHalfBytes = kColumns * 128;  // Of 64 inputs.
  __shared__ __align__(1024) uint8_t queries[2 * kHalfBytes];
  const uint32_t in_call = blockIdx.y * kRows, row = call.row + in_call;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  for (uint32_t i = thread; i < kColumns * kIndexDim; i += 128) {
    const uint32_t column = i / kIndexDim, k = InputOf(i % kIndexDim);
    const uint32_t of_row = min(column / kIndexHeads, call.rows - 1 - in_call);
    const Bf16 value = AsBf16(call.queries)[(uint64_t{row} + of_row) * kIndexHeads * kIndexDim +
                                            i % (kIndexHeads * kIndexDim)];
    *reinterpret_cast<Bf16*>(queries + k / 64 * kHalfBytes + SwizzledOffset(column, k % 64 / 8) +
                             k % 8 * 2) = value;
  }
  // This thread's columns: in every eight, 2 (lane % 4) and the next.
  float weights[kColumns / 4];
#pragma unroll
  for (int i = 0; i < kColumns / 4; ++i) {
    const uint32_t column = i / 2 * 8 + lane % 4 * 2 + i % 2;
    const uint32_t of_row = min(column / kIndexHeads, call.rows - 1 - in_call);
    weights[i] = ToFloat(AsBf16(
                     call.weights)[(uint64_t{row} + of_row) * kIndexHeads + column % kIndexHeads]) *
                 call.factor * static_cast<float>(1 << kSmaller);
  }
  FenceForMatrixUnits();
  __syncthreads();

  const DevicePart& part = call.step.part[call.step.part_of_row[row]];
  uint32_t count = 0;  // Of the row that sees most.
  uint32_t counts[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    counts[r] = in_call + r >= call.rows     ? 0
                : call.candidates == nullptr ? Visible(call.step, row + r, call.ratio)
                                             : call.candidate_counts[in_call + r];
    count = max(count, counts[r]);
  }
  const uint32_t tiles = (count + kTileKeys - 1) / kTileKeys;
  const auto load = [&](uint32_t tile, RawKeys* raw) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = min(tile * kTileKeys + warp * 16 + lane / 4 + 8 * i, count - 1);
      const uint32_t entry =
          call.candidates == nullptr ? at : call.candidates[uint64_t{in_call} * call.stride + at];
      const EntryPlace place = PlaceOf(call.step, call.entries, part, entry);
      raw->codes[i] = __ldg(reinterpret_cast<const uint4*>(place.index_codes) + lane % 4);
      raw->scales[i] = __ldg(place.index_scales + lane % 4);
    }
  };
  RawKeys raw;
  if (blockIdx.x < tiles) load(blockIdx.x, &raw);
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    uint32_t a[8][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t half = (raw.scales[i] + 126 - kSmaller) << 7;
      const uint32_t both = half | half << 16;
      const __nv_bfloat162 factor = *reinterpret_cast<const __nv_bfloat162*>(&both);
      const uint32_t words[4] = {raw.codes[i].x, raw.codes[i].y, raw.codes[i].z, raw.codes[i].w};
#pragma unroll
      for (int word = 0; word < 4; ++word) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint32_t shifted = words[word] << (4 * pair);
          const uint32_t spread = (shifted & 0x80008000) | (shifted >> 6 & 0x01c001c0);
          const __nv_bfloat162 value =
              __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&spread), factor);
          a[2 * word + pair / 2][pair % 2 * 2 + i] = *reinterpret_cast<const uint32_t*>(&value);
        }
      }
    }
    if (tile + gridDim.x < tiles) load(tile + gridDim.x, &raw);
    float sums[kColumns / 2];
#pragma unroll
    for (auto& step : a) Hold(step);
    WgmmaFence();
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      const uint32_t b = SharedAddress(queries) + step / 4 * kHalfBytes + step % 4 * 32;
      Wgmma<kColumns>::Run(sums, a[step], SwizzledRows(b), step > 0 ? 1 : 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    Keep(a);
    Hold(sums);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float score = 0;
#pragma unroll
        for (int b = 0; b < 4; ++b) {
          const int block = r * 4 + b;
          score = fmaf(weights[block * 2], fmaxf(sums[block * 4 + 2 * i], 0.0f), score);
          score = fmaf(weights[block * 2 + 1], fmaxf(sums[block * 4 + 2 * i + 1], 0.0f), score);
        }
        score += __shfl_xor_sync(0xffffffff, score, 1);
        score += __shfl_xor_sync(0xffffffff, score, 2);
        const uint32_t at = tile * kTileKeys + warp * 16 + lane / 4 + 8 * i;
        if (lane % 4 == 0 && at < counts[r]) {
          call.scores[(uint64_t{in_call} + r) * call.stride + at] = score + 0.0f;
        }
      }
    }
  }
}

template <int kRows>
cudaError_t LaunchMatrixScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream) {
  constexpr uint32_t kBlocks = 132 * (kRows == 1 ? 6 : 3);  // As many as run at once.
  const uint32_t rows = (call.rows + kRows - 1) / kRows;
  const uint32_t tiles = (entries_max + kTileKeys - 1) / kTileKeys;
  const dim3 grid(min(tiles, max(1u, kBlocks / rows)), rows);
  MatrixScores<kRows><<<grid, 128, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchIndexQueries(const StepView& step, Bf16Bits* q, uint32_t heads, uint32_t dim,
                               cudaStream_t stream) {
  IndexQueries<<<step.rows, 256, 0, stream>>>(step, q, heads, dim);
  return cudaGetLastError();
}

cudaError_t LaunchScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream) {
  if (call.rows == 0 || entries_max == 0) return cudaSuccess;
  if (call.heads == kIndexHeads && call.dim == kIndexDim) {
    const bool shared_keys =
        call.one_part && call.rows >= kRowsThatShareKeys && call.candidates == nullptr;
    return shared_keys ? LaunchMatrixScores<4>(call, entries_max, stream)
                       : LaunchMatrixScores<1>(call, entries_max, stream);
  }
  const size_t shared = call.heads * (call.dim + 1) * sizeof(float);
  const dim3 grid((entries_max + kScoreThreads - 1) / kScoreThreads, call.rows);
  SimpleScores<<<grid, kScoreThreads, shared, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
