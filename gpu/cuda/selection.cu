#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/largest.cuh"
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

constexpr uint32_t kFewMax = 4096, kGatheredMax = 16384;
constexpr uint32_t kPartsMax = 132;  // Of a row: a multiprocessor takes one.

// ---- Values ------------------------------------------------------------------------------------

// The best score of each block of entries but the newest.
struct BlockTops {
  static constexpr uint32_t kEach = 1, kVector = 1;
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
  __device__ void Load(uint32_t i, float* to) const { *to = (*this)[i]; }
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

// What somewhat more than the `wanted` largest values reach, by a sample: a thread looks at `each`
// values, two or four, anywhere in its 1,024th of all, and the largest counts.
template <typename Values>
__device__ float SampledReach(const Values& values, uint32_t wanted, uint32_t each,
                              SelectRoom& room) {
  __shared__ float largest[kSelectThreads];
  const uint32_t all = each * kSelectThreads, apart = max(1u, values.count / all);
  float own = -INFINITY;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    if (k >= each) break;
    const uint32_t i = threadIdx.x * each + k;
    const auto begin = static_cast<uint32_t>(uint64_t{i} * values.count / all);
    own = fmaxf(own, values[begin + i * 2654435761u % apart]);
  }
  largest[threadIdx.x] = own;
  __syncthreads();
  // So many of the sample are expected to belong to those wanted, and more by chance.
  const float expected = static_cast<float>(wanted) * all / static_cast<float>(values.count);
  float others = fmaxf(0, 1 - (expected + 4 * sqrtf(expected) + 4) / all);
  for (uint32_t k = 1; k < each; k *= 2) others *= others;
  const uint32_t rank =
      min(kSelectThreads, static_cast<uint32_t>(kSelectThreads * (1 - others)) + 1);
  const uint32_t order = CutOf(Scores{largest, kSelectThreads}, kSelectThreads, rank, room).order;
  return __uint_as_float((order >> 31) != 0 ? order & 0x7fffffff : ~order);
}

// Calls put(i, place) for values[begin, end) that may be among the `wanted` largest of all, places
// ascending with i, up to kGatheredMax. Returns how many there are. begin < end. `each`: the
// sample's.
template <typename Values, typename Put>
__device__ uint32_t GatherPart(const Values& values, uint32_t wanted, uint32_t begin, uint32_t end,
                               uint32_t each, SelectRoom& room, Put&& put) {
  constexpr uint32_t kEach = Values::kEach, kVector = Values::kVector;
  constexpr uint32_t kOfWarp = 32 * kEach, kTurn = kWarps * kOfWarp;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t first = begin + warp * kOfWarp + lane * kVector, gathered = 0, turn = 0;
  float next[2][kEach];  // Of this turn and the one after.
  const auto load = [&](uint32_t at, float(&to)[kEach]) {
#pragma unroll
    for (uint32_t v = 0; v < kEach / kVector; ++v, at += 32 * kVector) {
      if (at + kVector <= end) {
        values.Load(at, to + v * kVector);
      } else {
#pragma unroll
        for (uint32_t k = 0; k < kVector; ++k) {
          to[v * kVector + k] = at + k < end ? values[at + k] : NAN;
        }
      }
    }
  };
  load(first, next[0]);  // On their way while the sample is looked at.
  load(first + kTurn, next[1]);
  const float reach = SampledReach(values, wanted, each, room);
  const auto take = [&](float(&own)[kEach]) {
    uint32_t hits = 0;
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) hits |= own[k] >= reach ? 1u << k : 0;
    load(first + 2 * kTurn, own);
    // Of each vector, in 16 bits: how many the warp's threads have up to this one, and in all.
    uint32_t sum = 0, all = 0;
    if (__any_sync(kAll, hits != 0)) {
#pragma unroll
      for (uint32_t v = 0; v < kEach / kVector; ++v) {
        sum += __popc(hits >> v * kVector & ((1u << kVector) - 1)) << 16 * v;
      }
      sum = SumUpTo(sum);
      all = __shfl_sync(kAll, sum, 31);
    }
    const Sums sums = SumsOfWarps((all & 0xffff) + (all >> 16), room.warps[turn]);
    if (hits != 0) {
      uint32_t place = gathered + sums.before;
#pragma unroll
      for (uint32_t v = 0; v < kEach / kVector; ++v) {
        const uint32_t of_vector = hits >> v * kVector & ((1u << kVector) - 1);
        uint32_t to = place + (sum >> 16 * v & 0xffff) - __popc(of_vector);
#pragma unroll
        for (uint32_t k = 0; k < kVector; ++k) {
          if ((of_vector >> k & 1) == 0) continue;
          if (to < kGatheredMax) put(first + v * 32 * kVector + k, to);
          ++to;
        }
        place += all >> 16 * v & 0xffff;
      }
    }
    gathered += sums.all;
    first += kTurn;
    turn ^= 1;
  };
  for (uint32_t at = begin; at < end; at += 2 * kTurn) {
    take(next[0]);
    if (at + kTurn < end) take(next[1]);
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
  // Many blocks that look at the same sample stand in each other's way.
  const uint32_t each = lists.parts > 16 ? 2 : 4;
  const uint32_t count =
      begin < end ? GatherPart(values, WantedOf(call), begin, end, each, room, put) : 0;
  if (threadIdx.x == 0) lists.counts[list] = count;
}

// What one block takes the best of: few values, or the lists of a row.
struct BestRoom {
  SelectRoom select;
  uint32_t starts[kPartsMax + 1];  // Of the lists, one after the other.
};
constexpr uint32_t kBestShared = kGatheredMax * (sizeof(float) + sizeof(uint32_t));

// The lists of row `in_call` in order, as values and their places. Returns how many there are, or
// would be if they fitted.
__device__ uint32_t ReadLists(const Lists& lists, uint32_t in_call, BestRoom& room, float* values,
                              uint32_t* places) {
  const uint32_t parts = lists.parts, own = threadIdx.x;
  const uint32_t sum = SumUpTo(own < parts ? lists.counts[in_call * parts + own] : 0);
  const Sums sums = SumsOfWarps(__shfl_sync(kAll, sum, 31), room.select.warps[0]);
  if (own == 0) room.starts[0] = 0;
  if (own < parts) room.starts[own + 1] = sums.before + sum;
  __syncthreads();
  const uint32_t count = room.starts[parts];
  if (count > kGatheredMax) return count;
  constexpr uint32_t kEach = 4;  // On their way at a time.
  for (uint32_t begin = threadIdx.x; begin < count; begin += kEach * kSelectThreads) {
    Listed listed[kEach];
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = min(begin + k * kSelectThreads, count - 1);
      uint32_t part = 0;
#pragma unroll
      for (uint32_t step = 128; step > 0; step /= 2) {
        if (part + step < parts && room.starts[part + step] <= i) part += step;
      }
      listed[k] =
          lists.listed[(uint64_t{in_call} * parts + part) * kGatheredMax + i - room.starts[part]];
    }
#pragma unroll
    for (uint32_t k = 0; k < kEach; ++k) {
      const uint32_t i = begin + k * kSelectThreads;
      if (i >= count) break;
      values[i] = listed[k].value;
      places[i] = listed[k].place;
    }
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
#pragma unroll
    for (uint32_t i = 0; i < kFewMax; i += kSelectThreads) {
      if (i + threadIdx.x < values.count) few[i + threadIdx.x] = values[i + threadIdx.x];
    }
    __syncthreads();
    TakeLargest(Scores{few, values.count}, values.count, wanted, room.select, put);
    return;
  }
  auto* places = reinterpret_cast<uint32_t*>(few + kGatheredMax);
  uint32_t count = 0;
  if (lists.parts == 1) {
    count = GatherPart(values, wanted, 0, values.count, 4, room.select,
                       [&](uint32_t i, uint32_t place) {
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
  // One block is as fast with four turns, as others would have to be waited for.
  const uint32_t parts = turns <= 4 ? 1 : max(1u, min(turns, kPartsMax / rows));
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
