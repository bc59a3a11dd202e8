#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/mixes.cuh"

// The router, and the plan of who goes to which expert (model-facts section 8).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kExpertsMax = 1024;
constexpr uint32_t kChosenMax = 16;
constexpr uint32_t kAll = 0xffffffff;

// Of a float, as a number that is larger when the float is.
__device__ inline uint32_t OrderOf(float score) {
  const uint32_t bits = __float_as_uint(score);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// Adds 1 to a ticket for the block, of which thread 0 calls this after a barrier: what the block
// wrote before is then seen by whoever gets a later ticket, past its processor's own cache.
__device__ inline uint32_t TakeTicket(uint32_t* ticket) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(ticket)
               : "memory");
  return before;
}

// ---- A row's experts ---------------------------------------------------------------------------

__device__ inline float Affinity(float logit) {
  return sqrtf(logit > 20 ? logit : log1pf(expf(logit)));
}

// Of the experts that one of kThreads threads looks at.
template <uint32_t kThreads>
struct Biases {
  __device__ Biases(const RouteCall& call, uint32_t thread) {
#pragma unroll
    for (uint32_t i = 0; i < kExpertsMax / kThreads; ++i) {
      const uint32_t e = i * kThreads + thread;
      if (e >= call.experts) break;
      text[i] = call.bias[e];
      image[i] = call.image_bias[e];
    }
  }
  float text[kExpertsMax / kThreads], image[kExpertsMax / kThreads];
};

// What a row's experts are chosen by.
struct RowScores {
  uint32_t orders[kExpertsMax];  // Of the scores.
  float affinities[kExpertsMax];

  // By kThreads threads.
  template <uint32_t kThreads>
  __device__ void Fill(const RouteCall& call, uint32_t row, uint32_t thread,
                       const Biases<kThreads>& biases) {
    const float* const logits = call.logits + uint64_t{row} * call.experts;
    const bool image = call.image[row] != 0;
#pragma unroll
    for (uint32_t i = 0; i < kExpertsMax / kThreads; ++i) {
      const uint32_t e = i * kThreads + thread;
      if (e >= call.experts) break;
      const float affinity = Affinity(__ldcg(logits + e));
      affinities[e] = affinity;
      orders[e] = OrderOf(affinity + (image ? biases.image[i] : biases.text[i]));
    }
  }
};

// By a warp: the best scores, of equal ones the lower experts. Lane l has experts l, l + 32 and so
// on.
__device__ inline void Choose(const RouteCall& call, uint32_t row, const RowScores& scores) {
  constexpr uint32_t kOfLane = kExpertsMax / 32;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t orders[kOfLane];  // 0: not an expert, or taken.
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    if (i * 32 >= call.experts) break;
    orders[i] = i * 32 + lane < call.experts ? scores.orders[i * 32 + lane] : 0;
  }
  uint32_t chosen = 0;  // Lane k: the k-th best.
  for (uint32_t k = 0; k < call.chosen; ++k) {
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (i * 32 >= call.experts) break;
      largest = max(largest, orders[i]);
    }
    const uint32_t best = __reduce_max_sync(kAll, largest);
    uint32_t first = kExpertsMax;
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (i * 32 >= call.experts) break;
      if (orders[i] == best) first = min(first, i * 32 + lane);
    }
    first = __reduce_min_sync(kAll, first);
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (i * 32 >= call.experts) break;
      if (i * 32 + lane == first) orders[i] = 0;
    }
    if (lane == k) chosen = first;
  }
  const bool real = lane < call.chosen;
  const float weight = real ? scores.affinities[chosen] : 0.0f;
  float sum = 0;
  uint32_t place = 0;  // Ascending by expert.
  for (uint32_t k = 0; k < call.chosen; ++k) {
    sum += __shfl_sync(kAll, weight, k);
    place += __shfl_sync(kAll, chosen, k) < chosen ? 1 : 0;
  }
  if (!real) return;
  call.expert_of[uint64_t{row} * call.chosen + place] = chosen;
  call.weight_of[uint64_t{row} * call.chosen + place] = weight / (sum + 1e-20f) * call.scaling;
}

// A slot of an expert for the i-th choice, or none.
__device__ inline void StoreSlot(const RouteCall& call, uint32_t i, uint32_t slot, float weight) {
  call.slot_of[i] = slot;
  if (slot == kNoSlot) return;
  call.row_of[slot] = i / call.chosen;
  call.slot_weights[slot] = weight;
}

// ---- Many rows ---------------------------------------------------------------------------------

constexpr uint32_t kRouteRows = 4;  // Of a block.
constexpr uint32_t kRowThreads = 128, kThreads = kRouteRows * kRowThreads;

// Who goes where, by a block, of this rank's experts. Which slot of an expert a row gets does not
// matter: every slot is computed by itself.
struct PlanRoom {
  uint32_t counts[kExpertsMax], firsts[kExpertsMax];  // By expert: its slots, and its next one.
  uint2 of_warp[kThreads / 32];                       // Slots and tiles.
};

// The tiles of every expert, and its first slot.
__device__ inline void PlanTiles(const RouteCall& call, PlanRoom& room) {
  constexpr uint32_t kEach = kExpertsMax / kThreads;  // Neighbours of a thread.
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto tiles_of = [&](uint32_t count) {
    return (count + call.tile_rows - 1) / call.tile_rows;
  };
  uint32_t counts[kEach];
  uint2 own = {0, 0};
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t e = threadIdx.x * kEach + i;
    counts[i] = e < call.own ? room.counts[e] : 0;
    own.x += counts[i];
    own.y += tiles_of(counts[i]);
  }
  uint2 upto = own;
#pragma unroll
  for (uint32_t step = 1; step < 32; step *= 2) {
    const uint32_t slots = __shfl_up_sync(kAll, upto.x, step);
    const uint32_t tiles = __shfl_up_sync(kAll, upto.y, step);
    if (lane >= step) {
      upto.x += slots;
      upto.y += tiles;
    }
  }
  if (lane == 31) room.of_warp[warp] = upto;
  __syncthreads();
  uint2 next = {upto.x - own.x, upto.y - own.y};
  for (uint32_t w = 0; w < warp; ++w) {
    next.x += room.of_warp[w].x;
    next.y += room.of_warp[w].y;
  }
  if (threadIdx.x == kThreads - 1) *call.tile_count = next.y + own.y;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t e = threadIdx.x * kEach + i;
    if (e >= call.own) break;
    room.firsts[e] = next.x;
    for (uint32_t at = 0; at < counts[i]; at += call.tile_rows) {
      call.tiles[next.y++] = {e, next.x + at, min(call.tile_rows, counts[i] - at)};
    }
    next.x += counts[i];
  }
}

__device__ inline void Plan(const RouteCall& call, PlanRoom& room) {
  const uint32_t slots = call.rows * call.chosen;
  const auto own_of = [&](uint32_t i) { return __ldcg(call.expert_of + i) - call.own_first; };
  for (uint32_t e = threadIdx.x; e < call.own; e += kThreads) room.counts[e] = 0;
  __syncthreads();
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < slots; i += kThreads) {
    const uint32_t own = own_of(i);
    if (own < call.own) atomicAdd(&room.counts[own], 1);
  }
  __syncthreads();
  PlanTiles(call, room);
  __syncthreads();
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < slots; i += kThreads) {
    const uint32_t own = own_of(i);
    const float weight = __ldcg(call.weight_of + i);
    StoreSlot(call, i, own < call.own ? atomicAdd(&room.firsts[own], 1) : kNoSlot, weight);
  }
}

// A block takes four rows; the last one then plans for all.
__global__ __launch_bounds__(kThreads) void Route(const __grid_constant__ RouteCall call) {
  __shared__ union {
    RowScores scores[kRouteRows];
    PlanRoom plan;
  } room;
  __shared__ uint32_t ticket;
  const uint32_t in_block = threadIdx.x / kRowThreads, thread = threadIdx.x % kRowThreads;
  const Biases<kRowThreads> biases(call, thread);
  WaitForEarlier();
  LetNextBegin();
  const uint32_t row = blockIdx.x * kRouteRows + in_block;
  if (row < call.rows) room.scores[in_block].Fill(call, row, thread, biases);
  __syncthreads();
  if (row < call.rows && thread < 32) Choose(call, row, room.scores[in_block]);
  __syncthreads();
  if (threadIdx.x == 0) ticket = TakeTicket(call.ticket);
  __syncthreads();
  if (ticket + 1 < gridDim.x) return;
  if (threadIdx.x == 0) *call.ticket = 0;
  Plan(call, room.plan);
}

// ---- Few rows ----------------------------------------------------------------------------------

constexpr uint32_t kFewRows = 8;
static_assert(kThreads == kSliceGroups * kGroupThreads);

struct FewRoom {
  RowScores scores[kRouteRows];
  uint32_t experts[kFewRows * kChosenMax];  // By choice: this rank's, or one that is nobody's.
  uint8_t first[kFewRows * kChosenMax];     // Whether no earlier choice is of the same expert.
  uint32_t ticket;
};

// By a warp, when all choices are made: an expert's rows are one tile.
__device__ inline void PlanFew(const RouteCall& call, FewRoom& room) {
  const uint32_t lane = threadIdx.x % 32, slots = call.rows * call.chosen;
  for (uint32_t i = lane; i < slots; i += 32) {
    const uint32_t own = __ldcg(call.expert_of + i) - call.own_first;
    room.experts[i] = own < call.own ? own : kExpertsMax;
  }
  __syncwarp();
  uint32_t tiles = 0;
  for (uint32_t i = lane; i < slots; i += 32) {
    const uint32_t expert = room.experts[i];
    bool first = expert < kExpertsMax;
    for (uint32_t k = 0; k < i; ++k) first = first && room.experts[k] != expert;
    room.first[i] = first ? 1 : 0;
    tiles += first ? 1 : 0;
  }
  tiles = __reduce_add_sync(kAll, tiles);
  if (lane == 0) *call.tile_count = tiles;
  __syncwarp();
  for (uint32_t i = lane; i < slots; i += 32) {
    const uint32_t expert = room.experts[i];
    if (expert == kExpertsMax) {
      StoreSlot(call, i, kNoSlot, 0);
      continue;
    }
    uint32_t lower = 0, same = 0, same_before = 0, tile = 0;
    for (uint32_t k = 0; k < slots; ++k) {
      const uint32_t other = room.experts[k];
      lower += other < expert ? 1 : 0;
      tile += other < expert ? room.first[k] : 0;
      same += other == expert ? 1 : 0;
      same_before += other == expert && k < i ? 1 : 0;
    }
    StoreSlot(call, i, lower + same_before, __ldcg(call.weight_of + i));
    if (same_before == 0) call.tiles[tile] = {expert, lower, same};
  }
}

// The last block of their product with the gate does all the rest; blocks beyond those of the
// product make mixes.
__global__ __launch_bounds__(kThreads) void GateAndRoute(const __grid_constant__ LinearCall gate,
                                                         const __grid_constant__ RouteCall call) {
  __shared__ FewRoom room;
  const uint32_t blocks = gate.matrix.output_tiles * ClusterBlocks();
  if (blockIdx.x >= blocks) {
    const MixLane weights(call.mixes.weights);
    FollowEarlier();
    const uint32_t row = blockIdx.x - blocks;
    if (row < call.mixes.rows) FinishMixes(call.mixes, weights, row);
    return;
  }
  const uint32_t in_four = threadIdx.x / kRowThreads, thread = threadIdx.x % kRowThreads;
  const Biases<kRowThreads> biases(call, thread);
  MultiplySlicedFewRows<WeightFormat::kBf16, kFewRows>(gate);
  __syncthreads();
  if (threadIdx.x == 0) room.ticket = TakeTicket(call.ticket);
  __syncthreads();
  if (room.ticket + 1 < blocks) return;
  if (threadIdx.x == 0) *call.ticket = 0;
  for (uint32_t first = 0; first < call.rows; first += kRouteRows) {
    const uint32_t row = first + in_four;
    if (row < call.rows) room.scores[in_four].Fill(call, row, thread, biases);
    __syncthreads();
    if (row < call.rows && thread < 32) Choose(call, row, room.scores[in_four]);
    __syncthreads();
  }
  if (threadIdx.x < 32) PlanFew(call, room);
}

bool FitsFew(const LinearCall& gate, const RouteCall& call) {
  return call.rows <= kFewRows && call.tile_rows >= call.rows &&
         gate.matrix.format == WeightFormat::kBf16 && gate.matrix.slices >= kSliceGroups;
}

}  // namespace

cudaError_t LaunchRoute(const LinearCall& gate, const RouteCall& call, cudaStream_t stream) {
  if (call.experts > kExpertsMax || call.chosen > kChosenMax) return cudaErrorInvalidValue;
  if (FitsFew(gate, call)) {
    const uint32_t cluster = gate.matrix.slices / kSliceGroups;
    const uint32_t more = (call.mixes.rows + cluster - 1) / cluster;
    return Queue<GateAndRoute>((gate.matrix.output_tiles + more) * cluster, kThreads,
                               SliceSharedBytes<kFewRows>(gate.matrix.slices), cluster, stream,
                               gate, call);
  }
  cudaError_t error = LaunchLinear(gate, stream);
  if (error != cudaSuccess) return error;
  if (call.mixes.rows > 0) {
    error = LaunchMixes(call.mixes, stream);
    if (error != cudaSuccess) return error;
  }
  return QueueNext(Route, {(call.rows + kRouteRows - 1) / kRouteRows, kThreads}, stream, call);
}

}  // namespace reprise::engine::cuda
