#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/places.cuh"

// The best of the indexer's scores, and the candidate pool (model-facts sections 5.4 and 5.5). Ties
// go to the lower entry.
//
// Of few values a block takes the best. Of many, blocks on the whole chip first gather what may be
// among them: each finds from the same sample about where the last of the best lies, and lists what
// reaches that in its part of the values, in order. One block then takes the best of the lists. If
// the sample misled, it takes them of all values, slowly.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kAll = 0xffffffff;
constexpr uint32_t kSelectThreads = 1024, kWarps = kSelectThreads / 32;
constexpr uint32_t kSample = 4096, kGatheredMax = 8192;
constexpr uint32_t kFewMax = 2 * kGatheredMax;  // Values that one block holds.
constexpr uint32_t kPartsMax = 132;             // Of a row: a multiprocessor takes one.

// Ordered as the floats are.
__device__ inline uint32_t OrderedOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// ---- Values ------------------------------------------------------------------------------------

struct Scores {
  static constexpr uint32_t kEach = 8;  // Values of a thread at a time.
  const float* values;
  uint32_t count;
  __device__ float operator[](uint32_t i) const { return values[i]; }
};

// The best score of each block of entries but the newest.
struct BlockTops {
  static constexpr uint32_t kEach = 1;
  const float* scores;
  uint32_t block, count;
  __device__ float operator[](uint32_t i) const {
    const float* of_block = scores + uint64_t{i} * block;
    if (block == 8) {
      const float4 a = *reinterpret_cast<const float4*>(of_block);
      const float4 b = *reinterpret_cast<const float4*>(of_block + 4);
      return fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)),
                   fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
    }
    float top = of_block[0];
    for (uint32_t k = 1; k < block; ++k) top = fmaxf(top, of_block[k]);
    return top;
  }
};

__device__ Scores ValuesOf(const SelectCall& call, uint32_t in_call) {
  return {call.scores + uint64_t{in_call} * call.stride,
          call.candidates == nullptr ? Visible(call.step, call.row + in_call, call.ratio)
                                     : call.candidate_counts[in_call]};
}
__device__ uint32_t WantedOf(const SelectCall& call) { return call.topk; }

__device__ BlockTops ValuesOf(const PoolCall& call, uint32_t in_call) {
  // The newest block, which alone may be short, is always in the pool.
  const uint32_t newest = call.step.positions[call.row + in_call] / call.block;
  return {call.scores + uint64_t{in_call} * call.stride, call.block, newest};
}
__device__ uint32_t WantedOf(const PoolCall& call) { return call.blocks_max - 1; }

// ---- The best ----------------------------------------------------------------------------------

struct SelectRoom {
  uint32_t counts[256];
  uint32_t bucket, above, size;
  uint32_t warps[2][kWarps];  // By turns, so that one barrier is enough.
};

// Of numbers that every warp has one of: the sum of those of earlier warps, and of all.
struct Sums {
  uint32_t before, all;
};
__device__ Sums SumsOfWarps(uint32_t own, uint32_t (&room)[kWarps]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) room[warp] = own;
  __syncthreads();
  uint32_t sum = room[lane];
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAll, sum, step);
    if (lane >= step) sum += before;
  }
  return {__shfl_sync(kAll, sum, warp) - own, __shfl_sync(kAll, sum, kWarps - 1)};
}

// By a warp: the highest bucket from which on there are `left` or more, how many it holds and how
// many lie above it. The counts are 0 again.
__device__ void FindBucket(SelectRoom& room, uint32_t left) {
  constexpr uint32_t kOfLane = 8;
  const uint32_t lane = threadIdx.x, top = 255 - lane * kOfLane;
  uint32_t own[kOfLane], sum = 0;
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    sum += own[i] = room.counts[top - i];
    room.counts[top - i] = 0;
  }
  uint32_t seen = sum;
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAll, seen, step);
    if (lane >= step) seen += before;
  }
  if (seen < left || seen - sum >= left) return;
  seen -= sum;
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    if (seen < left && seen + own[i] >= left) {
      room.bucket = top - i;
      room.above = seen;
      room.size = own[i];
    }
    seen += own[i];
  }
}

// The `wanted` largest values are those of a higher order, and of that order the first so many.
struct Cut {
  uint32_t order, equal;
};

// Of values[0, count); 0 < wanted <= count.
template <typename Values>
__device__ Cut CutOf(const Values& values, uint32_t count, uint32_t wanted, SelectRoom& room) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t least = kAll, most = 0;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    const uint32_t order = OrderedOf(values[i]);
    least = min(least, order);
    most = max(most, order);
  }
  least = __reduce_min_sync(kAll, least);
  most = __reduce_max_sync(kAll, most);
  if (lane == 0) room.warps[0][warp] = least, room.warps[1][warp] = most;
  if (threadIdx.x < 256) room.counts[threadIdx.x] = 0;
  __syncthreads();
  // The order sought lies in low + [0, last], of which each turn leaves a 256th.
  uint32_t low = __reduce_min_sync(kAll, room.warps[0][lane]);
  uint32_t last = __reduce_max_sync(kAll, room.warps[1][lane]) - low;
  uint32_t shift = last < 256 ? 0 : 24 - __clz(last), left = wanted;
  for (;;) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t offset = OrderedOf(values[i]) - low;
      if (offset > last) continue;
      // Equal values are common: one of those that meet counts for all.
      const uint32_t bucket = offset >> shift;
      const uint32_t same = __match_any_sync(__activemask(), bucket);
      if (lane == __ffs(same) - 1) atomicAdd(&room.counts[bucket], __popc(same));
    }
    __syncthreads();
    if (warp == 0) FindBucket(room, left);
    __syncthreads();
    low += room.bucket << shift;
    left -= room.above;
    if (shift == 0) return {low, left};
    if (room.size == left) return {low, kAll};
    last = (1u << shift) - 1;
    shift = shift < 8 ? 0 : shift - 8;
  }
}

// Calls put(i, place) for the `wanted` largest of values[0, count), places ascending with i.
// 0 < wanted <= count.
template <typename Values, typename Put>
__device__ void TakeLargest(const Values& values, uint32_t count, uint32_t wanted, SelectRoom& room,
                            Put&& put) {
  constexpr uint32_t kEach = Values::kEach;
  const Cut cut = CutOf(values, count, wanted, room);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
  uint32_t placed = 0, equal_left = cut.equal, turn = 0;
  for (uint32_t begin = 0; begin < count; begin += kSelectThreads * kEach, turn ^= 1) {
    const uint32_t first = begin + warp * 32 * kEach + lane;
    uint32_t larger[kEach], equal[kEach];  // Bits of the warp's threads.
    uint32_t own = 0;  // Both counts: larger in the low half, equal in the high.
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const bool real = first + 32 * k < count;
      const uint32_t order = real ? OrderedOf(values[first + 32 * k]) : 0;
      larger[k] = __ballot_sync(kAll, real && order > cut.order);
      equal[k] = __ballot_sync(kAll, real && order == cut.order);
      own += __popc(larger[k]) + (__popc(equal[k]) << 16);
    }
    const Sums sums = SumsOfWarps(own, room.warps[turn]);
    uint32_t larger_before = sums.before & 0xffff, equal_before = sums.before >> 16;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t equals = equal_before + __popc(equal[k] & below);
      const uint32_t place =
          placed + larger_before + __popc(larger[k] & below) + min(equals, equal_left);
      const uint32_t taken = equals < equal_left ? larger[k] | equal[k] : larger[k];
      if ((taken >> lane & 1) != 0) put(first + 32 * k, place);
      larger_before += __popc(larger[k]);
      equal_before += __popc(equal[k]);
    }
    const uint32_t equal_taken = min(sums.all >> 16, equal_left);
    placed += (sums.all & 0xffff) + equal_taken;
    equal_left -= equal_taken;
  }
}

// ---- The best of many --------------------------------------------------------------------------

struct Listed {
  float value;
  uint32_t place;
};
// Where a row has several parts: of each a list, and how many it would have to hold.
struct Lists {
  Listed* listed;    // [rows][parts][kGatheredMax]
  uint32_t* counts;  // [rows][parts]
  uint32_t parts;
};

// What somewhat more than the `wanted` largest values reach, by a sample.
template <typename Values>
__device__ float SampledReach(const Values& values, uint32_t wanted, SelectRoom& room) {
  __shared__ float sample[kSample];
  const uint32_t many = values.count / kSample;
#pragma unroll
  for (uint32_t i = threadIdx.x; i < kSample; i += kSelectThreads) {
    // One of every so many, anywhere among them: keys may have a period.
    sample[i] = values[i * many + i * 2654435761u % many];
  }
  __syncthreads();
  const float expected = static_cast<float>(wanted) * kSample / static_cast<float>(values.count);
  const uint32_t rank = min(kSample, static_cast<uint32_t>(expected + 4 * sqrtf(expected) + 4));
  const uint32_t order = CutOf(Scores{sample, kSample}, kSample, rank, room).order;
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffff : ~order);
}

// Calls put(i, place) for values[begin, end) that may be among the `wanted` largest of all, places
// ascending with i, up to kGatheredMax. Returns how many there are. begin < end.
template <typename Values, typename Put>
__device__ uint32_t GatherPart(const Values& values, uint32_t wanted, uint32_t begin, uint32_t end,
                               SelectRoom& room, Put&& put) {
  constexpr uint32_t kEach = Values::kEach, kTurn = kSelectThreads * kEach;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, below = (1u << lane) - 1;
  uint32_t first = begin + warp * 32 * kEach + lane, gathered = 0, turn = 0;
  float next[kEach];
  const auto load = [&](uint32_t at) {
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      next[k] = at + 32 * k < end ? values[at + 32 * k] : -INFINITY;
    }
  };
  load(first);  // On its way while the sample is looked at.
  const float reach = SampledReach(values, wanted, room);
  for (uint32_t at = begin; at < end; at += kTurn, turn ^= 1) {
    uint32_t hits[kEach], count = 0;  // Bits of the warp's threads.
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      hits[k] = __ballot_sync(kAll, first + 32 * k < end && next[k] >= reach);
      count += __popc(hits[k]);
    }
    load(first + kTurn);
    const Sums sums = SumsOfWarps(count, room.warps[turn]);
    uint32_t before = gathered + sums.before;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t place = before + __popc(hits[k] & below);
      if ((hits[k] >> lane & 1) != 0 && place < kGatheredMax) put(first + 32 * k, place);
      before += __popc(hits[k]);
    }
    gathered += sums.all;
    first += kTurn;
  }
  return gathered;
}

template <typename Call>
__global__ __launch_bounds__(kSelectThreads) void Gather(Call call, Lists lists) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ SelectRoom room;
  const auto values = ValuesOf(call, blockIdx.y);
  if (values.count <= kFewMax) return;
  constexpr uint32_t kTurn = kSelectThreads * decltype(values)::kEach;
  const uint32_t turns = (values.count + kTurn - 1) / kTurn;
  const uint32_t of_part = (turns + lists.parts - 1) / lists.parts * kTurn;
  const uint32_t begin = blockIdx.x * of_part, end = min(values.count, begin + of_part);
  const uint32_t list = blockIdx.y * lists.parts + blockIdx.x;
  Listed* const listed = lists.listed + uint64_t{list} * kGatheredMax;
  const auto put = [&](uint32_t i, uint32_t place) { listed[place] = {values[i], i}; };
  const uint32_t count =
      begin < end ? GatherPart(values, WantedOf(call), begin, end, room, put) : 0;
  if (threadIdx.x == 0) lists.counts[list] = count;
}

// What one block takes the best of: few values, or the lists of a row.
struct BestRoom {
  SelectRoom select;
  uint32_t starts[kPartsMax + 1];  // Of the lists, one after the other.
};
constexpr uint32_t kBestShared = kFewMax * sizeof(float);

// The lists of row `in_call` in order, as values and their places. Returns how many there are, or
// would be if they fitted.
__device__ uint32_t ReadLists(const Lists& lists, uint32_t in_call, BestRoom& room, float* values,
                              uint32_t* places) {
  const uint32_t parts = lists.parts, lane = threadIdx.x;
  if (threadIdx.x < 32) {
    uint32_t before = 0;
    for (uint32_t part = lane; part - lane < parts; part += 32) {
      uint32_t sum = part < parts ? lists.counts[in_call * parts + part] : 0;
      for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t earlier = __shfl_up_sync(kAll, sum, step);
        if (lane >= step) sum += earlier;
      }
      if (part < parts) room.starts[part + 1] = before + sum;
      before += __shfl_sync(kAll, sum, 31);
    }
    if (lane == 0) room.starts[0] = 0;
  }
  __syncthreads();
  const uint32_t count = room.starts[parts];
  if (count > kGatheredMax) return count;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
    uint32_t part = 0;
#pragma unroll
    for (uint32_t step = 128; step > 0; step /= 2) {
      if (part + step < parts && room.starts[part + step] <= i) part += step;
    }
    const Listed one =
        lists.listed[(uint64_t{in_call} * parts + part) * kGatheredMax + i - room.starts[part]];
    values[i] = one.value;
    places[i] = one.place;
  }
  __syncthreads();
  return count;
}

// Calls put(i, place) for the `wanted` largest values of row `in_call`, places ascending with i.
// 0 < wanted < values.count.
template <typename Values, typename Put>
__device__ void TakeBest(const Values& values, uint32_t wanted, const Lists& lists,
                         uint32_t in_call, Put&& put) {
  extern __shared__ float few[];  // Values, or those of the lists and then their places.
  __shared__ BestRoom room;
  if (values.count <= kFewMax) {
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < values.count; i += kSelectThreads) few[i] = values[i];
    __syncthreads();
    TakeLargest(Scores{few, values.count}, values.count, wanted, room.select, put);
    return;
  }
  auto* places = reinterpret_cast<uint32_t*>(few + kGatheredMax);
  uint32_t count = 0;
  if (lists.parts == 1) {
    count =
        GatherPart(values, wanted, 0, values.count, room.select, [&](uint32_t i, uint32_t place) {
          few[place] = values[i];
          places[place] = i;
        });
    __syncthreads();
  } else {
    count = ReadLists(lists, in_call, room, few, places);
  }
  if (count < wanted || count > kGatheredMax) {
    TakeLargest(values, values.count, wanted, room.select, put);
    return;
  }
  TakeLargest(Scores{few, count}, count, wanted, room.select,
              [&](uint32_t i, uint32_t place) { put(places[i], place); });
}

__global__ __launch_bounds__(kSelectThreads) void SelectBest(SelectCall call, Lists lists) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  int32_t* selected = call.selected + uint64_t{row} * call.topk;
  const uint32_t visible = Visible(call.step, row, call.ratio);
  // Without scores when all that is visible is taken.
  const uint32_t* candidates = call.candidates == nullptr || visible <= call.topk
                                   ? nullptr
                                   : call.candidates + uint64_t{in_call} * call.stride;
  const Scores values = ValuesOf(call, in_call);
  const uint32_t count = candidates == nullptr ? visible : values.count;
  const auto put = [&](uint32_t i, uint32_t place) {
    selected[place] = static_cast<int32_t>(candidates == nullptr ? i : candidates[i]);
  };
  if (count > call.topk) {
    TakeBest(values, call.topk, lists, in_call, put);
    return;
  }
  for (uint32_t i = threadIdx.x; i < call.topk; i += kSelectThreads) {
    if (i < count) {
      put(i, i);
    } else {
      selected[i] = -1;
    }
  }
}

// Candidates of a row: the entries of the best blocks.
__global__ __launch_bounds__(kSelectThreads) void PoolBest(PoolCall call, Lists lists) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t in_call = blockIdx.x, row = call.row + in_call;
  const BlockTops tops = ValuesOf(call, in_call);
  const uint32_t visible = call.step.positions[row] + 1;
  const uint32_t taken = min(tops.count + 1, call.blocks_max);
  const uint32_t entries = (taken - 1) * call.block + visible - tops.count * call.block;
  uint32_t* candidates = call.candidates + uint64_t{row} * call.blocks_max * call.block;
  if (threadIdx.x == 0) call.candidate_counts[row] = entries;
  // First the first entry of each block, where it belongs.
  const auto put = [&](uint32_t b, uint32_t place) {
    candidates[place * call.block] = b * call.block;
  };
  if (taken == tops.count + 1) {
    for (uint32_t b = threadIdx.x; b < tops.count; b += kSelectThreads) put(b, b);
  } else if (taken > 1) {
    TakeBest(tops, taken - 1, lists, in_call, put);
  }
  if (threadIdx.x == 0) put(tops.count, taken - 1);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < entries; i += kSelectThreads) {
    const uint32_t of_block = i % call.block;
    if (of_block != 0) candidates[i] = candidates[i - of_block] + of_block;
  }
}

// Lists in `room` for `rows` rows of up to `count` values, as many parts as are of use.
template <typename Values>
Lists ListsIn(void* room, uint32_t rows, uint64_t count) {
  constexpr uint64_t kTurn = kSelectThreads * Values::kEach;
  const auto turns = static_cast<uint32_t>((count + kTurn - 1) / kTurn);
  const uint32_t parts = count <= kFewMax ? 1 : max(1u, min(turns, kPartsMax / rows));
  auto* listed = static_cast<Listed*>(room);
  return {listed, reinterpret_cast<uint32_t*>(listed + kPartsMax * kGatheredMax), parts};
}

// `best` takes the best of each row of up to `count` values, after others gathered for it.
template <typename Values, typename Call>
cudaError_t QueueBest(void (*best)(Call, Lists), const Call& call, uint64_t count,
                      cudaStream_t stream) {
  const Lists lists = ListsIn<Values>(call.room, call.rows, count);
  if (lists.parts > 1) {
    const cudaError_t error = QueueNext(
        Gather<Call>, {dim3(lists.parts, call.rows), kSelectThreads}, stream, call, lists);
    if (error != cudaSuccess) return error;
  }
  return QueueNext(best, {call.rows, kSelectThreads, kBestShared}, stream, call, lists);
}

}  // namespace

uint64_t SelectRoomBytes() {
  return kPartsMax * (kGatheredMax * sizeof(Listed) + sizeof(uint32_t));
}

cudaError_t LaunchSelect(const SelectCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  const cudaError_t ready = AllowShared<SelectBest>(kBestShared);
  if (ready != cudaSuccess) return ready;
  return QueueBest<Scores>(SelectBest, call, call.entries_max, stream);
}

cudaError_t LaunchPool(const PoolCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  const cudaError_t ready = AllowShared<PoolBest>(kBestShared);
  if (ready != cudaSuccess) return ready;
  return QueueBest<BlockTops>(PoolBest, call, call.entries_max / call.block, stream);
}

}  // namespace reprise::engine::cuda
