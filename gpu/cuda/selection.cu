#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// The indexer: scores of global entries over their FP4 keys, the best of them, and the candidate
// pool (model-facts sections 5.2 to 5.5). Ties go to the lower entry.
namespace reprise::engine::cuda {
namespace {

__device__ inline Bf16* AsBf16(Bf16Bits* bits) { return reinterpret_cast<Bf16*>(bits); }
__device__ inline const Bf16* AsBf16(const Bf16Bits* bits) {
  return reinterpret_cast<const Bf16*>(bits);
}

__device__ inline uint32_t Visible(const StepView& step, uint32_t row, uint32_t ratio) {
  return (step.positions[row] + 1) / ratio;
}
// Ordered as the floats are.
__device__ inline uint32_t OrderedOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

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

// ---- The best ----------------------------------------------------------------------------------

constexpr uint32_t kSelectThreads = 1024;

// What a block needs to find the `wanted` largest of many values and their places.
struct SelectRoom {
  uint32_t counts[256];
  uint32_t bucket, above;
  uint32_t warps[32];
  uint32_t total;
};

// How many of values[0, count) reach the value that the `wanted`-th largest has: `*above` are
// larger than it. Returns its order. wanted < count.
__device__ uint32_t Threshold(const float* values, uint32_t count, uint32_t wanted,
                              SelectRoom& room, uint32_t* above) {
  uint32_t prefix = 0, left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (uint32_t i = threadIdx.x; i < 256; i += kSelectThreads) room.counts[i] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t order = OrderedOf(values[i]);
      if ((order & mask) == prefix) atomicAdd(&room.counts[order >> shift & 255], 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t seen = 0, bucket = 255;
      while (seen + room.counts[bucket] < left) seen += room.counts[bucket--];
      room.bucket = bucket;
      room.above = seen;
    }
    __syncthreads();
    prefix |= room.bucket << shift;
    left -= room.above;
    __syncthreads();
  }
  *above = wanted - left;
  return prefix;
}

// Calls put(i, place) for the `wanted` largest of values[0, count), places ascending with i.
template <typename Put>
__device__ void TakeLargest(const float* values, uint32_t count, uint32_t wanted, SelectRoom& room,
                            Put&& put) {
  uint32_t above = 0;
  const uint32_t threshold = Threshold(values, count, wanted, room, &above);
  uint32_t equal_left = wanted - above;  // Of those equal to it, the first so many.
  uint32_t placed = 0;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t begin = 0; begin < count; begin += kSelectThreads) {
    const uint32_t i = begin + threadIdx.x;
    const uint32_t order = i < count ? OrderedOf(values[i]) : 0;
    const bool equal = i < count && order == threshold;
    const bool larger = i < count && order > threshold;
    // Both counts in one word: larger in the low half, equal in the high.
    const uint32_t larger_mask = __ballot_sync(0xffffffff, larger);
    const uint32_t equal_mask = __ballot_sync(0xffffffff, equal);
    const uint32_t below = (1u << lane) - 1;
    if (lane == 0) room.warps[warp] = __popc(larger_mask) | __popc(equal_mask) << 16;
    __syncthreads();
    uint32_t before = 0, all = 0;
    for (uint32_t w = 0; w < kSelectThreads / 32; ++w) {
      before += w < warp ? room.warps[w] : 0;
      all += room.warps[w];
    }
    const uint32_t equal_before = (before >> 16) + __popc(equal_mask & below);
    const uint32_t larger_before = (before & 0xffff) + __popc(larger_mask & below);
    if (larger || (equal && equal_before < equal_left)) {
      put(i, placed + larger_before + min(equal_before, equal_left));
    }
    const uint32_t equal_taken = min(all >> 16, equal_left);
    placed += (all & 0xffff) + equal_taken;
    equal_left -= equal_taken;
    __syncthreads();
  }
}

__global__ __launch_bounds__(kSelectThreads) void Select(SelectCall call) {
  __shared__ SelectRoom room;
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  int32_t* selected = call.selected + uint64_t{row} * call.topk;
  const uint32_t visible = Visible(call.step, row, call.ratio);
  const uint32_t count = call.candidates == nullptr ? visible : call.candidate_counts[in_call];
  const uint32_t* candidates =
      call.candidates == nullptr ? nullptr : call.candidates + uint64_t{in_call} * call.stride;
  if (visible <= call.topk || count <= call.topk) {
    for (uint32_t i = threadIdx.x; i < call.topk; i += kSelectThreads) {
      const bool real = visible <= call.topk ? i < visible : i < count;
      const uint32_t entry =
          visible <= call.topk || candidates == nullptr || !real ? i : candidates[i];
      selected[i] = real ? static_cast<int32_t>(entry) : -1;
    }
    return;
  }
  TakeLargest(call.scores + uint64_t{in_call} * call.stride, count, call.topk, room,
              [&](uint32_t i, uint32_t place) {
                selected[place] = static_cast<int32_t>(candidates == nullptr ? i : candidates[i]);
              });
}

// ---- The best of very many ---------------------------------------------------------------------

// A sample says about where the last of the best lies; blocks collect what reaches it; one block
// takes the best of these. When the sample misled, the slow way: Select.
constexpr uint32_t kSample = 4096, kCollectedMax = 8192, kCollectThreads = 256;

struct Collected {  // Of a row.
  float threshold;
  uint32_t count;
};

__global__ __launch_bounds__(kSelectThreads) void SampleThreshold(SelectCall call,
                                                                  Collected* collected) {
  __shared__ SelectRoom room;
  __shared__ float sample[kSample];
  const uint32_t in_call = blockIdx.x;
  const uint32_t count = Visible(call.step, call.row + in_call, call.ratio);
  const float* scores = call.scores + uint64_t{in_call} * call.stride;
  if (count < kSelectManyFrom) {
    if (threadIdx.x == 0) collected[in_call] = {INFINITY, 0};
    return;
  }
  for (uint32_t i = threadIdx.x; i < kSample; i += kSelectThreads) {
    // One of every so many, anywhere among them: keys may have a period.
    const uint32_t many = count / kSample;
    sample[i] = scores[i * many + i * 2654435761u % many];
  }
  __syncthreads();
  const float expected = static_cast<float>(call.topk) * kSample / static_cast<float>(count);
  const uint32_t rank = min(kSample - 1, static_cast<uint32_t>(expected + 4 * sqrtf(expected) + 4));
  uint32_t above = 0;
  const uint32_t order = Threshold(sample, kSample, rank, room, &above);
  if (threadIdx.x == 0) {
    const uint32_t bits = (order >> 31) != 0 ? order & 0x7fffffff : ~order;
    collected[in_call] = {__uint_as_float(bits), 0};
  }
}

__global__ void Collect(SelectCall call, Collected* collected, uint64_t* places) {
  const uint32_t in_call = blockIdx.y;
  const uint32_t count = Visible(call.step, call.row + in_call, call.ratio);
  const float threshold = collected[in_call].threshold;
  if (count < kSelectManyFrom) return;
  const float* scores = call.scores + uint64_t{in_call} * call.stride;
  for (uint32_t i = blockIdx.x * kCollectThreads + threadIdx.x; i < count;
       i += gridDim.x * kCollectThreads) {
    const float score = scores[i];
    if (score < threshold) continue;
    const uint32_t at = atomicAdd(&collected[in_call].count, 1);
    if (at < kCollectedMax) {
      places[uint64_t{in_call} * kCollectedMax + at] =
          uint64_t{OrderedOf(score)} << 32 | (0xffffffffu - i);
    }
  }
}

// The best of what was collected: ranks above the topk-th, then sorted by place.
__global__ __launch_bounds__(kSelectThreads) void SelectCollected(SelectCall call,
                                                                  const Collected* collected,
                                                                  const uint64_t* places) {
  __shared__ SelectRoom room;
  __shared__ uint32_t taken[1024];
  extern __shared__ float values[];  // The collected scores, in no order.
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  const uint32_t visible = Visible(call.step, row, call.ratio);
  int32_t* selected = call.selected + uint64_t{row} * call.topk;
  const float* scores = call.scores + uint64_t{in_call} * call.stride;
  const uint32_t count = collected[in_call].count;
  if (visible <= call.topk) {
    for (uint32_t i = threadIdx.x; i < call.topk; i += kSelectThreads) {
      selected[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
    return;
  }
  const auto put = [&](uint32_t i, uint32_t place) { selected[place] = static_cast<int32_t>(i); };
  if (count < call.topk || count > kCollectedMax || call.topk > 1024) {
    TakeLargest(scores, visible, call.topk, room, put);
    return;
  }
  const uint64_t* ranks = places + uint64_t{in_call} * kCollectedMax;
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint32_t order = static_cast<uint32_t>(ranks[i] >> 32);
    const uint32_t bits = (order >> 31) != 0 ? order & 0x7fffffff : ~order;
    values[i] = __uint_as_float(bits);
  }
  __syncthreads();
  uint32_t above = 0;
  const uint32_t threshold =
      count == call.topk ? 0 : Threshold(values, count, call.topk, room, &above);
  // Those above the threshold, and of its equals the first places: by counting, as they are few.
  const uint32_t equal_wanted = call.topk - above;
  if (threadIdx.x == 0) room.total = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint32_t order = static_cast<uint32_t>(ranks[i] >> 32);
    bool take = count == call.topk || order > threshold;
    if (!take && order == threshold) {
      uint32_t before = 0;
      for (uint32_t k = 0; k < count; ++k) {
        before += static_cast<uint32_t>(ranks[k] >> 32) == threshold && ranks[k] > ranks[i] ? 1 : 0;
      }
      take = before < equal_wanted;
    }
    if (take) taken[atomicAdd(&room.total, 1)] = 0xffffffffu - static_cast<uint32_t>(ranks[i]);
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < call.topk; i += kSelectThreads) {
    const uint32_t entry = taken[i];
    uint32_t place = 0;
    for (uint32_t k = 0; k < call.topk; ++k) place += taken[k] < entry ? 1 : 0;
    selected[place] = static_cast<int32_t>(entry);
  }
}

// Candidates of a row: the entries of the best blocks, the newest block always among them.
__global__ __launch_bounds__(kSelectThreads) void Pool(PoolCall call) {
  __shared__ SelectRoom room;
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  const uint32_t visible = call.step.positions[row] + 1;
  const uint32_t blocks = (visible + call.block - 1) / call.block;
  const float* scores = call.scores + uint64_t{in_call} * call.stride;
  float* tops = call.tops + uint64_t{in_call} * call.tops_stride;
  uint32_t* candidates = call.candidates + uint64_t{row} * call.blocks_max * call.block;
  for (uint32_t b = threadIdx.x; b < blocks; b += kSelectThreads) {
    float top = INFINITY;
    if (b + 1 < blocks) {
      top = scores[b * call.block];
      for (uint32_t i = 1; i < call.block; ++i) top = fmaxf(top, scores[b * call.block + i]);
    }
    tops[b] = top;
  }
  __syncthreads();
  const uint32_t taken = min(blocks, call.blocks_max);
  // The last block is among them, and alone may be short.
  if (threadIdx.x == 0) {
    call.candidate_counts[row] = taken * call.block - (blocks * call.block - visible);
  }
  const auto put = [&](uint32_t b, uint32_t place) {
    for (uint32_t i = 0; i < call.block; ++i) {
      const uint32_t entry = b * call.block + i;
      if (entry < visible) candidates[place * call.block + i] = entry;
    }
  };
  if (blocks <= call.blocks_max) {
    for (uint32_t b = threadIdx.x; b < blocks; b += kSelectThreads) put(b, b);
    return;
  }
  TakeLargest(tops, blocks, call.blocks_max, room, put);
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
    // Rows of one sequence share its keys.
    const bool shared_keys = call.step.parts == 1 && call.rows >= 4 && call.candidates == nullptr;
    return shared_keys ? LaunchMatrixScores<4>(call, entries_max, stream)
                       : LaunchMatrixScores<1>(call, entries_max, stream);
  }
  const size_t shared = call.heads * (call.dim + 1) * sizeof(float);
  const dim3 grid((entries_max + kScoreThreads - 1) / kScoreThreads, call.rows);
  SimpleScores<<<grid, kScoreThreads, shared, stream>>>(call);
  return cudaGetLastError();
}

uint64_t SelectRoomBytes(uint32_t rows) {
  return rows * (sizeof(Collected) + kCollectedMax * sizeof(uint64_t));
}

cudaError_t LaunchSelect(const SelectCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  if (call.room != nullptr && call.candidates == nullptr && call.scores != nullptr &&
      call.entries_max >= kSelectManyFrom) {
    auto* places = static_cast<uint64_t*>(call.room);
    auto* collected = reinterpret_cast<Collected*>(places + uint64_t{call.rows} * kCollectedMax);
    SampleThreshold<<<call.rows, kSelectThreads, 0, stream>>>(call, collected);
    const uint32_t blocks = max(1u, 132 * 8 / call.rows);
    Collect<<<dim3(blocks, call.rows), kCollectThreads, 0, stream>>>(call, collected, places);
    SelectCollected<<<call.rows, kSelectThreads, kCollectedMax * sizeof(float), stream>>>(
        call, collected, places);
    return cudaGetLastError();
  }
  Select<<<call.rows, kSelectThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

cudaError_t LaunchPool(const PoolCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  Pool<<<call.rows, kSelectThreads, 0, stream>>>(call);
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
