#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/places.cuh"

// The best of the indexer's scores, and the candidate pool (model-facts sections 5.4 and 5.5). Ties
// go to the lower entry.
namespace reprise::engine::cuda {
namespace {

// Ordered as the floats are.
__device__ inline uint32_t OrderedOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
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

// By a warp: the highest bucket from which on there are `left` or more, and how many lie above it.
__device__ void FindBucket(SelectRoom& room, uint32_t left) {
  constexpr uint32_t kAll = 0xffffffff, kOfLane = 8;
  const uint32_t lane = threadIdx.x, top = 255 - lane * kOfLane;
  uint32_t own[kOfLane], sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) sum += own[i] = room.counts[top - i];
  uint32_t seen = sum;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAll, seen, step);
    if (lane >= step) seen += before;
  }
  if (seen < left || seen - sum >= left) return;
  seen -= sum;
  uint32_t i = 0;
  while (seen + own[i] < left) seen += own[i++];
  room.bucket = top - i;
  room.above = seen;
}

// How many of values[0, count) reach the value that the `wanted`-th largest has: `*above` are
// larger than it. Returns its order. wanted < count.
__device__ uint32_t Threshold(const float* values, uint32_t count, uint32_t wanted,
                              SelectRoom& room, uint32_t* above) {
  uint32_t prefix = 0, left = wanted;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (uint32_t i = threadIdx.x; i < 256; i += kSelectThreads) room.counts[i] = 0;
    __syncthreads();
    const uint32_t mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t order = OrderedOf(values[i]);
      if ((order & mask) != prefix) continue;
      // Most scores share a few exponents: one of those that meet counts for all.
      const uint32_t bucket = order >> shift & 255;
      const uint32_t same = __match_any_sync(__activemask(), bucket);
      if (threadIdx.x % 32 == __ffs(same) - 1) atomicAdd(&room.counts[bucket], __popc(same));
    }
    __syncthreads();
    if (threadIdx.x < 32) FindBucket(room, left);
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
  constexpr uint32_t kAll = 0xffffffff, kEach = 8;  // Neighbours of a thread at a time.
  uint32_t above = 0;
  const uint32_t threshold = Threshold(values, count, wanted, room, &above);
  uint32_t equal_left = wanted - above;  // Of those equal to it, the first so many.
  uint32_t placed = 0;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // Both counts in one word: larger in the low half, equal in the high.
  const auto scanned = [&](uint32_t counts) {
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(kAll, counts, step);
      if (lane >= step) counts += before;
    }
    return counts;
  };
  for (uint32_t begin = 0; begin < count; begin += kSelectThreads * kEach) {
    const uint32_t first = begin + threadIdx.x * kEach;
    uint32_t orders[kEach], own = 0;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      orders[k] = first + k < count ? OrderedOf(values[first + k]) : 0;
      const bool equal = orders[k] == threshold && first + k < count;
      own += (orders[k] > threshold ? 1u : 0u) + (equal ? 1u << 16 : 0u);
    }
    const uint32_t in_warp = scanned(own);
    if (lane == 31) room.warps[warp] = in_warp;
    __syncthreads();
    const uint32_t of_warps = scanned(room.warps[lane]);
    const uint32_t all = __shfl_sync(kAll, of_warps, 31);
    const uint32_t warps_before = __shfl_sync(kAll, of_warps, warp == 0 ? 0 : warp - 1);
    const uint32_t before = in_warp - own + (warp == 0 ? 0 : warps_before);
    uint32_t larger_before = before & 0xffff, equal_before = before >> 16;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const bool larger = orders[k] > threshold;
      const bool equal = orders[k] == threshold && first + k < count;
      if (larger || (equal && equal_before < equal_left)) {
        put(first + k, placed + larger_before + min(equal_before, equal_left));
      }
      larger_before += larger ? 1 : 0;
      equal_before += equal ? 1 : 0;
    }
    const uint32_t equal_taken = min(all >> 16, equal_left);
    placed += (all & 0xffff) + equal_taken;
    equal_left -= equal_taken;
    __syncthreads();
  }
}

__global__ __launch_bounds__(kSelectThreads) void Select(SelectCall call) {
  WaitForEarlier();
  LetNextBegin();
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
  WaitForEarlier();
  LetNextBegin();
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
  WaitForEarlier();
  LetNextBegin();
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
  WaitForEarlier();
  LetNextBegin();
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
  // Those above the threshold, and of its equals, which are few, the first places.
  __shared__ uint64_t equals[kSelectThreads];
  const uint32_t equal_wanted = call.topk - above;
  if (threadIdx.x == 0) room.total = room.bucket = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint32_t order = static_cast<uint32_t>(ranks[i] >> 32);
    if (count == call.topk || order > threshold) {
      taken[atomicAdd(&room.total, 1)] = 0xffffffffu - static_cast<uint32_t>(ranks[i]);
    } else if (order == threshold) {
      const uint32_t at = atomicAdd(&room.bucket, 1);
      if (at < kSelectThreads) equals[at] = ranks[i];
    }
  }
  __syncthreads();
  const uint32_t equal_count = room.bucket;
  if (equal_count > kSelectThreads) {
    __syncthreads();
    TakeLargest(scores, visible, call.topk, room, put);
    return;
  }
  if (threadIdx.x < equal_count && count != call.topk) {
    uint32_t before = 0;
    for (uint32_t k = 0; k < equal_count; ++k) before += equals[k] > equals[threadIdx.x] ? 1 : 0;
    if (before < equal_wanted) {
      taken[atomicAdd(&room.total, 1)] = 0xffffffffu - static_cast<uint32_t>(equals[threadIdx.x]);
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < call.topk; i += kSelectThreads) {
    const uint32_t entry = taken[i];
    uint32_t place = 0;
    for (uint32_t k = 0; k < call.topk; ++k) place += taken[k] < entry ? 1 : 0;
    selected[place] = static_cast<int32_t>(entry);
  }
}

// Of a row's blocks the best scores; the newest block comes before all others.
__global__ void BlockTops(PoolCall call) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t in_call = blockIdx.y;
  const uint32_t visible = call.step.positions[call.row + in_call] + 1;
  const uint32_t blocks = (visible + call.block - 1) / call.block;
  const float* scores = call.scores + uint64_t{in_call} * call.stride;
  for (uint32_t b = blockIdx.x * blockDim.x + threadIdx.x; b < blocks;
       b += gridDim.x * blockDim.x) {
    float top = INFINITY;
    if (b + 1 < blocks) {
      top = scores[b * call.block];
      for (uint32_t i = 1; i < call.block; ++i) top = fmaxf(top, scores[b * call.block + i]);
    }
    call.tops[uint64_t{in_call} * call.tops_stride + b] = top;
  }
}

// Candidates of a row: the entries of the best blocks.
__global__ __launch_bounds__(kSelectThreads) void Pool(PoolCall call) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ SelectRoom room;
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  const uint32_t visible = call.step.positions[row] + 1;
  const uint32_t blocks = (visible + call.block - 1) / call.block;
  const float* tops = call.tops + uint64_t{in_call} * call.tops_stride;
  uint32_t* candidates = call.candidates + uint64_t{row} * call.blocks_max * call.block;
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

uint64_t SelectRoomBytes(uint32_t rows) {
  return rows * (sizeof(Collected) + kCollectedMax * sizeof(uint64_t));
}

cudaError_t LaunchSelect(const SelectCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  if (call.room != nullptr && call.candidates == nullptr && call.scores != nullptr &&
      call.entries_max >= kSelectManyFrom) {
    auto* places = static_cast<uint64_t*>(call.room);
    auto* collected = reinterpret_cast<Collected*>(places + uint64_t{call.rows} * kCollectedMax);
    cudaError_t error =
        QueueNext(SampleThreshold, {call.rows, kSelectThreads}, stream, call, collected);
    if (error != cudaSuccess) return error;
    const uint32_t blocks = max(1u, 132 * 8 / call.rows);
    error = QueueNext(Collect, {dim3(blocks, call.rows), kCollectThreads}, stream, call, collected,
                      places);
    if (error != cudaSuccess) return error;
    return QueueNext(SelectCollected, {call.rows, kSelectThreads, kCollectedMax * sizeof(float)},
                     stream, call, collected, places);
  }
  return QueueNext(Select, {call.rows, kSelectThreads}, stream, call);
}

cudaError_t LaunchPool(const PoolCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  constexpr uint32_t kThreads = 256, kMultiprocessors = 132;
  const uint64_t blocks = (call.stride / call.block + kThreads) / kThreads;
  const auto across = static_cast<uint32_t>(
      min(blocks, static_cast<uint64_t>(max(1u, 4 * kMultiprocessors / call.rows))));
  const cudaError_t error = QueueNext(BlockTops, {dim3(across, call.rows), kThreads}, stream, call);
  if (error != cudaSuccess) return error;
  return QueueNext(Pool, {call.rows, kSelectThreads}, stream, call);
}

}  // namespace reprise::engine::cuda
