#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear.h"

// The router, the plan of who goes to which expert, and the sum of what comes back (model-facts
// section 8).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kExpertsMax = 1024;
constexpr uint32_t kChosenMax = 16;
constexpr uint32_t kPlanThreads = 1024;

// Larger is better: the score, then the lower expert.
__device__ inline uint64_t RankOf(float score, uint32_t expert) {
  const uint32_t bits = __float_as_uint(score);
  const uint32_t ordered = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | (0xffffffffu - expert);
}

// A warp a row.
__global__ void Route(RouteCall call) {
  const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= call.rows) return;
  const float* logits = call.logits + uint64_t{row} * call.experts;
  const float* bias = call.image[row] != 0 ? call.image_bias : call.bias;
  constexpr uint32_t kOfLane = kExpertsMax / 32;
  float affinity[kOfLane];
  uint64_t ranks[kOfLane];
#pragma unroll
  for (uint32_t i = 0; i < kOfLane; ++i) {
    const uint32_t expert = i * 32 + lane;
    affinity[i] = 0;
    ranks[i] = 0;
    if (expert >= call.experts) continue;
    const double x = logits[expert];
    affinity[i] = static_cast<float>(sqrt(x > 20 ? x : log1p(exp(x))));
    ranks[i] = RankOf(affinity[i] + bias[expert], expert);
  }
  uint32_t chosen[kChosenMax];
  float weight[kChosenMax];
  float sum = 0;
  for (uint32_t k = 0; k < call.chosen; ++k) {
    uint64_t best = 0;
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) best = max(best, ranks[i]);
    for (int step = 16; step > 0; step /= 2) {
      best = max(best, __shfl_xor_sync(0xffffffff, best, step));
    }
    const uint32_t expert = 0xffffffffu - static_cast<uint32_t>(best);
    float mine = 0;
#pragma unroll
    for (uint32_t i = 0; i < kOfLane; ++i) {
      if (ranks[i] != best) continue;
      mine = affinity[i];
      ranks[i] = 0;
    }
    chosen[k] = expert;
    weight[k] = __shfl_sync(0xffffffff, mine, expert % 32);
    sum += weight[k];
  }
  if (lane != 0) return;
  for (uint32_t k = 0; k < call.chosen; ++k) {
    uint32_t place = 0;  // Ascending by expert.
    for (uint32_t i = 0; i < call.chosen; ++i) place += chosen[i] < chosen[k] ? 1 : 0;
    call.expert_of[uint64_t{row} * call.chosen + place] = chosen[k];
    call.weight_of[uint64_t{row} * call.chosen + place] = weight[k] / (sum + 1e-20f) * call.scaling;
  }
}

// One block. Which slot of an expert a row gets does not matter: every slot is computed by itself.
__global__ __launch_bounds__(kPlanThreads) void Plan(PlanCall call) {
  __shared__ uint32_t counts[kExpertsMax], firsts[kExpertsMax], tile_firsts[kExpertsMax];
  const uint32_t slots = call.rows * call.chosen;
  for (uint32_t e = threadIdx.x; e < call.experts; e += kPlanThreads) counts[e] = 0;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < slots; i += kPlanThreads)
    atomicAdd(&counts[call.expert_of[i]], 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t first = 0, tile = 0;
    for (uint32_t e = 0; e < call.experts; ++e) {
      firsts[e] = first;
      tile_firsts[e] = tile;
      first += counts[e];
      tile += (counts[e] + call.tile_rows - 1) / call.tile_rows;
    }
    *call.tile_count = tile;
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < call.experts; e += kPlanThreads) {
    for (uint32_t at = 0, tile = tile_firsts[e]; at < counts[e]; at += call.tile_rows, ++tile) {
      call.tiles[tile] = {e, firsts[e] + at, min(call.tile_rows, counts[e] - at)};
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < slots; i += kPlanThreads) {
    const uint32_t slot = atomicAdd(&firsts[call.expert_of[i]], 1);
    call.slot_of[i] = slot;
    call.row_of[slot] = i / call.chosen;
    call.slot_weights[slot] = call.weight_of[i];
  }
}

__global__ void Combine(uint32_t chosen, uint32_t hidden, const uint32_t* slot_of,
                        const Bf16Bits* outputs, const Bf16Bits* shared, Bf16Bits* h) {
  const uint64_t row = blockIdx.y;
  const uint32_t d = blockIdx.x * blockDim.x + threadIdx.x;
  if (d >= hidden) return;
  float sum = 0;
  for (uint32_t k = 0; k < chosen; ++k) {
    const uint64_t slot = slot_of[row * chosen + k];
    sum += ToFloat(reinterpret_cast<const Bf16*>(outputs)[slot * hidden + d]);
  }
  sum += ToFloat(reinterpret_cast<const Bf16*>(shared)[row * hidden + d]);
  reinterpret_cast<Bf16*>(h)[row * hidden + d] = ToBf16(sum);
}

}  // namespace

cudaError_t LaunchRoute(const RouteCall& call, cudaStream_t stream) {
  if (call.experts > kExpertsMax || call.chosen > kChosenMax) return cudaErrorInvalidValue;
  Route<<<(call.rows + 3) / 4, 128, 0, stream>>>(call);
  return cudaGetLastError();
}
cudaError_t LaunchPlan(const PlanCall& call, cudaStream_t stream) {
  Plan<<<1, kPlanThreads, 0, stream>>>(call);
  return cudaGetLastError();
}
cudaError_t LaunchCombine(uint32_t rows, uint32_t chosen, uint32_t hidden, const uint32_t* slot_of,
                          const Bf16Bits* outputs, const Bf16Bits* shared, Bf16Bits* h,
                          cudaStream_t stream) {
  Combine<<<dim3((hidden + 255) / 256, rows), 256, 0, stream>>>(chosen, hidden, slot_of, outputs,
                                                                shared, h);
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
