#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/linear_slices.cuh"
#include "gpu/cuda/mixes.cuh"
#include "protocol/base/bytes.h"

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

constexpr uint32_t kRowThreads = 128;

// By kRowThreads threads a row's experts are chosen. kExperts: at least as many as there are, so
// that all of a thread's are looked at together.
template <uint32_t kExperts>
class RowChoice {
 public:
  // Of a row: what its experts are chosen by.
  struct Room {
    uint32_t orders[kExperts];  // Of the scores.
    float affinities[kExperts];
  };

  __device__ RowChoice(const RouteCall& call, uint32_t thread) : call_(call), thread_(thread) {
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t e = min(i * kRowThreads + thread, call.experts - 1);
      text_[i] = call.bias[e];
      image_[i] = call.image_bias[e];
    }
  }

  __device__ void Fill(uint32_t row, Room& room) const {
    const float* const logits = call_.logits + uint64_t{row} * call_.experts;
    const bool image = call_.image[row] != 0;
    float own[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      own[i] = __ldcg(logits + min(i * kRowThreads + thread_, call_.experts - 1));
    }
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
      const uint32_t e = i * kRowThreads + thread_;
      const float affinity = Affinity(own[i]);
      const uint32_t order = OrderOf(affinity + (image ? image_[i] : text_[i]));
      room.affinities[e] = affinity;
      room.orders[e] = e < call_.experts ? order : 0;
    }
  }

  // By a warp, when all are filled: the best scores, of equal ones the lower experts. Lane l has
  // experts l, l + 32 and so on.
  __device__ void Choose(uint32_t row, const Room& room) const {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t orders[kOfLane];  // 0: not an expert, or taken.
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) orders[i] = room.orders[i * 32 + lane];
    uint32_t chosen = 0;  // Lane k: the k-th best.
    for (uint32_t k = 0; k < call_.chosen; ++k) {
      const uint32_t best = TakeBest(orders);
      if (lane == k) chosen = best;
    }
    Store(row, chosen, lane < call_.chosen ? room.affinities[chosen] : 0.0f);
  }

 private:
  static constexpr uint32_t kEach = kExperts / kRowThreads, kOfLane = kExperts / 32;

  // The lowest of the experts with the best score.
  __device__ static uint32_t TakeBest(uint32_t (&orders)[kOfLane]) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t largest = orders[0];
#pragma unroll
    for (uint32_t i = 1; i < kOfLane; ++i) largest = max(largest, orders[i]);
    const uint32_t best = __reduce_max_sync(kAll, largest);
    uint32_t first = kExperts;
#pragma unroll
    for (uint32_t i = kOfLane; i-- > 0;) {
      if (orders[i] == best) first = i * 32 + lane;
    }
    first = __reduce_min_sync(kAll, first);
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (i * 32 + lane == first) orders[i] = 0;
    }
    return first;
  }

  // Choices, ascending by expert; lane k has the k-th.
  __device__ void Store(uint32_t row, uint32_t chosen, float affinity) const {
    float sum = 0;
    uint32_t place = 0;
#pragma unroll 4
    for (uint32_t k = 0; k < call_.chosen; ++k) {
      sum += __shfl_sync(kAll, affinity, k);
      place += __shfl_sync(kAll, chosen, k) < chosen ? 1 : 0;
    }
    if (threadIdx.x % 32 >= call_.chosen) return;
    const uint64_t at = uint64_t{row} * call_.chosen + place;
    call_.expert_of[at] = chosen;
    call_.weight_of[at] = affinity / (sum + 1e-20f) * call_.scaling;
  }

  const RouteCall& call_;
  uint32_t thread_;
  float text_[kEach], image_[kEach];
};

// A slot of an expert for the i-th choice, or none.
__device__ inline void StoreSlot(const RouteCall& call, uint32_t i, uint32_t slot, float weight) {
  call.slot_of[i] = slot;
  if (slot == kNoSlot) return;
  call.row_of[slot] = i / call.chosen;
  call.slot_weights[slot] = weight;
}

// ---- Many rows ---------------------------------------------------------------------------------

constexpr uint32_t kRouteRows = 4;  // Of a block.
constexpr uint32_t kThreads = kRouteRows * kRowThreads;

// Which of a block's rows a thread is at, and whether its warp is the one that chooses: warps of
// different rows on different schedulers.
struct RoutePlace {
  __device__ RoutePlace()
      : row(threadIdx.x / kRowThreads), chooses(threadIdx.x % kRowThreads / 32 == row) {}
  uint32_t row;
  bool chooses;
};
static_assert(kRouteRows <= kRowThreads / 32);

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
    const uint32_t step = TileStep(count, call.tile_rows);
    return (count + step - 1) / step;
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
  const uint2 of_lane = lane < warp ? room.of_warp[lane] : uint2{0, 0};
  uint2 next = {upto.x - own.x + __reduce_add_sync(kAll, of_lane.x),
                upto.y - own.y + __reduce_add_sync(kAll, of_lane.y)};
  if (threadIdx.x == kThreads - 1) *call.tile_count = next.y + own.y;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t e = threadIdx.x * kEach + i;
    if (e >= call.own) break;
    room.firsts[e] = next.x;
    const uint32_t step = TileStep(counts[i], call.tile_rows);
    for (uint32_t at = 0; at < counts[i]; at += step) {
      call.tiles[next.y++] = {e, next.x + at, min(step, counts[i] - at)};
    }
    next.x += counts[i];
  }
}

// counts are 0. A thread's first choices stay in registers.
__device__ inline void Plan(const RouteCall& call, PlanRoom& room) {
  constexpr uint32_t kHeld = 2;
  const uint32_t slots = call.rows * call.chosen;
  const auto own_of = [&](uint32_t i) { return __ldcg(call.expert_of + i) - call.own_first; };
  const auto count = [&](uint32_t own) {
    if (own < call.own) atomicAdd(&room.counts[own], 1);
  };
  const auto place = [&](uint32_t i, uint32_t own, float weight) {
    StoreSlot(call, i, own < call.own ? atomicAdd(&room.firsts[own], 1) : kNoSlot, weight);
  };
  uint32_t held[kHeld];
  float weights[kHeld];
#pragma unroll
  for (uint32_t h = 0; h < kHeld; ++h) {
    const uint32_t i = h * kThreads + threadIdx.x;
    held[h] = i < slots ? own_of(i) : kNoSlot;
    weights[h] = i < slots ? __ldcg(call.weight_of + i) : 0.0f;
  }
#pragma unroll
  for (const uint32_t own : held) count(own);
#pragma unroll 4
  for (uint32_t i = kHeld * kThreads + threadIdx.x; i < slots; i += kThreads) count(own_of(i));
  __syncthreads();
  PlanTiles(call, room);
  __syncthreads();
#pragma unroll
  for (uint32_t h = 0; h < kHeld; ++h) {
    const uint32_t i = h * kThreads + threadIdx.x;
    if (i < slots) place(i, held[h], weights[h]);
  }
#pragma unroll 4
  for (uint32_t i = kHeld * kThreads + threadIdx.x; i < slots; i += kThreads) {
    place(i, own_of(i), __ldcg(call.weight_of + i));
  }
}

// A block takes four rows; the last one then plans for all. Blocks before them make mixes, whose
// sums are known before the product with the gate ends.
template <uint32_t kExperts>
__global__ __launch_bounds__(kThreads) void Route(const __grid_constant__ RouteCall call) {
  using Choice = RowChoice<kExperts>;
  __shared__ typename Choice::Room rooms[kRouteRows];
  __shared__ PlanRoom plan;
  __shared__ uint32_t ticket;
  const uint32_t mixes = MixesBlocks(call.mixes.rows);
  if (blockIdx.x < mixes) {
    FinishMixes(call.mixes, MixLane(call.mixes.weights), blockIdx.x);
    return FollowEarlier();
  }
  const RoutePlace place;
  const Choice choice(call, threadIdx.x % kRowThreads);
  for (uint32_t e = threadIdx.x; e < call.own; e += kThreads) plan.counts[e] = 0;
  FollowEarlier();
  const uint32_t row = (blockIdx.x - mixes) * kRouteRows + place.row;
  if (row < call.rows) choice.Fill(row, rooms[place.row]);
  __syncthreads();
  if (row < call.rows && place.chooses) choice.Choose(row, rooms[place.row]);
  __syncthreads();
  if (threadIdx.x == 0) ticket = TakeTicket(call.ticket);
  __syncthreads();
  if (ticket + 1 < gridDim.x - mixes) return;
  if (threadIdx.x == 0) *call.ticket = 0;
  Plan(call, plan);
}

// ---- Few rows ----------------------------------------------------------------------------------

constexpr uint32_t kFewRows = 8;
static_assert(kThreads == kSliceGroups * kGroupThreads);

struct FewRoom {
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
template <uint32_t kExperts>
__global__ __launch_bounds__(kThreads) void GateAndRoute(const __grid_constant__ LinearCall gate,
                                                         const __grid_constant__ RouteCall call) {
  using Choice = RowChoice<kExperts>;
  __shared__ typename Choice::Room rooms[kRouteRows];
  __shared__ FewRoom room;
  const uint32_t blocks = gate.matrix.output_tiles * ClusterBlocks();
  if (blockIdx.x >= blocks) {
    const MixLane weights(call.mixes.weights);
    FollowEarlier();
    const uint32_t block = blockIdx.x - blocks;
    if (block < MixesBlocks(call.mixes.rows)) FinishMixes(call.mixes, weights, block);
    return;
  }
  const RoutePlace place;
  const Choice choice(call, threadIdx.x % kRowThreads);
  MultiplySlicedFewRows<WeightFormat::kBf16, kFewRows>(gate);
  __syncthreads();
  if (threadIdx.x == 0) room.ticket = TakeTicket(call.ticket);
  __syncthreads();
  if (room.ticket + 1 < blocks) return;
  if (threadIdx.x == 0) *call.ticket = 0;
  for (uint32_t first = 0; first < call.rows; first += kRouteRows) {
    const uint32_t row = first + place.row;
    if (row < call.rows) choice.Fill(row, rooms[place.row]);
    __syncthreads();
    if (row < call.rows && place.chooses) choice.Choose(row, rooms[place.row]);
    __syncthreads();
  }
  if (threadIdx.x < 32) PlanFew(call, room);
}

bool FitsFew(const LinearCall& gate, const RouteCall& call) {
  return call.rows <= kFewRows && call.tile_rows >= call.rows &&
         gate.matrix.format == WeightFormat::kBf16 && gate.matrix.slices >= kSliceGroups;
}

template <uint32_t kExperts>
cudaError_t Launch(const LinearCall& gate, const RouteCall& call, cudaStream_t stream) {
  const uint32_t mixes = MixesBlocks(call.mixes.rows);
  if (FitsFew(gate, call)) {
    const uint32_t cluster = gate.matrix.slices / kSliceGroups;
    return Queue<GateAndRoute<kExperts>>(
        static_cast<uint32_t>(gate.matrix.output_tiles + DivideUp(mixes, cluster)) * cluster,
        kThreads, SliceSharedBytes<kFewRows>(gate.matrix.slices), cluster, stream, gate, call);
  }
  const cudaError_t error = LaunchLinear(gate, stream);
  if (error != cudaSuccess) return error;
  const auto blocks = static_cast<uint32_t>(DivideUp(call.rows, kRouteRows)) + mixes;
  return QueueNext(Route<kExperts>, {blocks, kThreads}, stream, call);
}

}  // namespace

cudaError_t LaunchRoute(const LinearCall& gate, const RouteCall& call, cudaStream_t stream) {
  if (call.experts > kExpertsMax || call.chosen > kChosenMax) return cudaErrorInvalidValue;
  if (call.experts <= 128) return Launch<128>(gate, call, stream);
  if (call.experts <= 384) return Launch<384>(gate, call, stream);
  return Launch<kExpertsMax>(gate, call, stream);
}

}  // namespace reprise::engine::cuda
