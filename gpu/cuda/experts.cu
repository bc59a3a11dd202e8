#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/linear_slices.cuh"

// The router, and the plan of who goes to which expert (model-facts section 8).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kExpertsMax = 1024;
constexpr uint32_t kChosenMax = 16;

// Larger is better: the score, then the lower expert.
__device__ inline uint64_t RankOf(float score, uint32_t expert) {
  const uint32_t bits = __float_as_uint(score);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - expert);
}

// ---- The router --------------------------------------------------------------------------------

constexpr uint32_t kRouteRows = 4;  // Of a block.
constexpr uint32_t kRowThreads = 128, kThreads = kRouteRows * kRowThreads;
static_assert(kThreads == kSliceGroups * kGroupThreads);

__device__ inline float Affinity(float logit) {
  return sqrtf(logit > 20 ? logit : log1pf(expf(logit)));
}

// By a warp: the best of a row's ranks, in [experts].
__device__ void Choose(const RouteCall& call, uint32_t row, const uint64_t* ranks) {
  constexpr uint32_t kAll = 0xffffffff, kOfLane = kExpertsMax / 32;
  const uint32_t lane = threadIdx.x % 32;
  uint64_t mine[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    mine[i] = i * 32 + lane < call.experts ? ranks[i * 32 + lane] : 0;
  }
  uint32_t chosen = 0;  // Lane k: the k-th best.
  for (uint32_t k = 0; k < call.chosen; ++k) {
    uint64_t best = 0;
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) best = max(best, mine[i]);
    for (int step = 16; step > 0; step /= 2) best = max(best, __shfl_xor_sync(kAll, best, step));
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) mine[i] = mine[i] == best ? 0 : mine[i];
    if (lane == k) chosen = 0xffffffffu - static_cast<uint32_t>(best);
  }
  const bool real = lane < call.chosen;
  const float weight =
      real ? Affinity(__ldcg(call.logits + uint64_t{row} * call.experts + chosen)) : 0.0f;
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

// ---- Who goes where ----------------------------------------------------------------------------

// By a block, of this rank's experts. Which slot of an expert a row gets does not matter: every
// slot is computed by itself.
__device__ void Plan(const RouteCall& call, uint32_t* counts, uint32_t* firsts) {
  const uint32_t slots = call.rows * call.chosen;
  const auto own_of = [&](uint32_t i) { return __ldcg(call.expert_of + i) - call.own_first; };
  for (uint32_t e = threadIdx.x; e < call.own; e += kThreads) counts[e] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < slots; i += kThreads) {
    const uint32_t own = own_of(i);
    if (own < call.own) atomicAdd(&counts[own], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    // Each lane takes so many neighbours; what comes before them is known from the others' sums.
    constexpr uint32_t kAll = 0xffffffff;
    const uint32_t lane = threadIdx.x, each = (call.own + 31) / 32;
    const uint32_t begin = min(lane * each, call.own), end = min(begin + each, call.own);
    const auto tiles_of = [&](uint32_t e) {
      return (counts[e] + call.tile_rows - 1) / call.tile_rows;
    };
    uint32_t first = 0, tile = 0;
    for (uint32_t e = begin; e < end; ++e) {
      first += counts[e];
      tile += tiles_of(e);
    }
    const uint32_t own_first = first, own_tile = tile;
    for (uint32_t step = 1; step < 32; step *= 2) {
      const uint32_t before = __shfl_up_sync(kAll, first, step);
      const uint32_t tiles_before = __shfl_up_sync(kAll, tile, step);
      if (lane >= step) {
        first += before;
        tile += tiles_before;
      }
    }
    if (lane == 31) *call.tile_count = tile;
    first -= own_first;
    tile -= own_tile;
    for (uint32_t e = begin; e < end; ++e) {
      firsts[e] = first;
      for (uint32_t at = 0; at < counts[e]; at += call.tile_rows) {
        call.tiles[tile++] = {e, first + at, min(call.tile_rows, counts[e] - at)};
      }
      first += counts[e];
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < slots; i += kThreads) {
    const uint32_t own = own_of(i);
    const uint32_t slot = own < call.own ? atomicAdd(&firsts[own], 1) : kNoSlot;
    call.slot_of[i] = slot;
    if (slot == kNoSlot) continue;
    call.row_of[slot] = i / call.chosen;
    call.slot_weights[slot] = __ldcg(call.weight_of + i);
  }
}

// ---- Kernels -----------------------------------------------------------------------------------

struct RouteRoom {
  uint64_t ranks[kRouteRows][kExpertsMax];
  uint32_t ticket;
};

// Rows first to first + 3.
__device__ void RouteFour(const RouteCall& call, uint32_t first, RouteRoom& room) {
  const uint32_t in_block = threadIdx.x / kRowThreads, row = first + in_block;
  if (row < call.rows) {
    const float* logits = call.logits + uint64_t{row} * call.experts;
    const float* bias = call.image[row] != 0 ? call.image_bias : call.bias;
    for (uint32_t e = threadIdx.x % kRowThreads; e < call.experts; e += kRowThreads) {
      room.ranks[in_block][e] = RankOf(Affinity(__ldcg(logits + e)) + bias[e], e);
    }
  }
  __syncthreads();
  if (row < call.rows && threadIdx.x % kRowThreads < 32) Choose(call, row, room.ranks[in_block]);
  __threadfence();
  __syncthreads();
}
// Whether all blocks of the launch have been here, this one last.
__device__ bool IsLast(const RouteCall& call, RouteRoom& room) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) room.ticket = atomicAdd(call.ticket, 1);
  __syncthreads();
  if (room.ticket + 1 < gridDim.x * gridDim.y) return false;
  __threadfence();
  if (threadIdx.x == 0) *call.ticket = 0;
  return true;
}
__device__ void PlanInRoom(const RouteCall& call, RouteRoom& room) {
  uint32_t* const counts = reinterpret_cast<uint32_t*>(room.ranks);
  Plan(call, counts, counts + kExpertsMax);
}

// A block takes four rows; the last one then plans for all.
__global__ __launch_bounds__(kThreads) void Route(RouteCall call) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ RouteRoom room;
  RouteFour(call, blockIdx.x * kRouteRows, room);
  if (IsLast(call, room)) PlanInRoom(call, room);
}

// Of few rows: the last block of their product with the gate does all the rest.
constexpr uint32_t kFewRows = 8;
__global__ __launch_bounds__(kThreads) void GateAndRoute(LinearCall gate, RouteCall call) {
  __shared__ RouteRoom room;
  MultiplySlicedFewRows<WeightFormat::kBf16, kFewRows>(gate);
  if (!IsLast(call, room)) return;
  for (uint32_t row = 0; row < call.rows; row += kRouteRows) RouteFour(call, row, room);
  PlanInRoom(call, room);
}

}  // namespace

cudaError_t LaunchRoute(const LinearCall& gate, const RouteCall& call, cudaStream_t stream) {
  if (call.experts > kExpertsMax || call.chosen > kChosenMax) return cudaErrorInvalidValue;
  const DeviceLinear& matrix = gate.matrix;
  if (call.rows <= kFewRows && matrix.format == WeightFormat::kBf16 && matrix.slices > 1) {
    const uint32_t cluster = matrix.slices / kSliceGroups;
    return Queue<GateAndRoute>(dim3(matrix.output_tiles * cluster), kThreads,
                               SliceSharedBytes<kFewRows>(matrix.slices), cluster, stream, gate,
                               call);
  }
  const cudaError_t error = LaunchLinear(gate, stream);
  if (error != cudaSuccess) return error;
  return QueueNext(Route, {(call.rows + kRouteRows - 1) / kRouteRows, kThreads}, stream, call);
}

}  // namespace reprise::engine::cuda
