#pragma once

#include <cstdint>

// The largest of many values, by a block of 1,024 threads; of equal ones those that come first.
namespace reprise::engine::cuda {

inline constexpr uint32_t kAll = 0xffffffff;
inline constexpr uint32_t kSelectThreads = 1024, kWarps = kSelectThreads / 32;

// Ordered as the floats are.
__device__ inline uint32_t OrderedOf(float x) {
  const uint32_t bits = __float_as_uint(x);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A thread takes kEach at a time, kVector of them neighbours.
struct Scores {
  static constexpr uint32_t kEach = 8, kVector = 4;
  const float* values;
  uint32_t count;
  __device__ float operator[](uint32_t i) const { return values[i]; }
  // From `i` on, a multiple of four.
  __device__ void Load(uint32_t i, float* to) const {
    const float4 four = *reinterpret_cast<const float4*>(values + i);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  }
};

struct SelectRoom {
  uint4 counts[64];  // Of 256 buckets, those of the largest values first.
  uint32_t bucket, above, size;
  uint32_t warps[2][kWarps];  // By turns, so that one barrier is enough.
};

// Of the warp's threads up to this one.
__device__ inline uint32_t SumUpTo(uint32_t own) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kAll, own, step);
    if (lane >= step) own += before;
  }
  return own;
}

// Of numbers that every warp has one of: the sum of those of earlier warps, and of all.
struct Sums {
  uint32_t before, all;
};
__device__ inline Sums SumsOfWarps(uint32_t own, uint32_t (&room)[kWarps]) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) room[warp] = own;
  __syncthreads();
  const uint32_t sum = SumUpTo(room[lane]);
  return {__shfl_sync(kAll, sum, warp) - own, __shfl_sync(kAll, sum, kWarps - 1)};
}

// By a warp: the bucket in which the `left`-th largest value lies, how many it holds and how many
// lie above it. The counts are 0 again.
__device__ inline void FindBucket(SelectRoom& room, uint32_t left) {
  const uint32_t lane = threadIdx.x % 32;
  const uint4 a = room.counts[2 * lane], b = room.counts[2 * lane + 1];
  room.counts[2 * lane] = room.counts[2 * lane + 1] = {0, 0, 0, 0};
  const uint32_t own[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
  uint32_t sum = 0;
#pragma unroll
  for (const uint32_t count : own) sum += count;
  uint32_t seen = SumUpTo(sum) - sum;
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    if (seen < left && seen + own[i] >= left) {
      room.bucket = 255 - (8 * lane + i);
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
__device__ inline Cut CutOf(const Values& values, uint32_t count, uint32_t wanted,
                            SelectRoom& room) {
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
  if (threadIdx.x < 64) room.counts[threadIdx.x] = {0, 0, 0, 0};
  __syncthreads();
  // The order sought lies in low + [0, last], of which each turn leaves a 256th.
  uint32_t low = __reduce_min_sync(kAll, room.warps[0][lane]);
  uint32_t last = __reduce_max_sync(kAll, room.warps[1][lane]) - low;
  uint32_t shift = last < 256 ? 0 : 24 - __clz(last), left = wanted;
  auto* counts = reinterpret_cast<uint32_t*>(room.counts);
  for (;;) {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < count; i += kSelectThreads) {
      const uint32_t offset = OrderedOf(values[i]) - low;
      // Threads of a warp that meet, as those of equal values do, cost one addition.
      if (offset <= last) atomicAdd(&counts[255 - (offset >> shift)], 1);
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
__device__ inline void TakeLargest(const Values& values, uint32_t count, uint32_t wanted,
                                   SelectRoom& room, Put&& put) {
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

}  // namespace reprise::engine::cuda
