#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"

// What ranks have of the same rows, added by rank, beginning with the first: the same bytes on
// every GPU, and whatever the number of rows.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256;

__device__ inline float2 PairAt(const Bf16Bits* values, uint64_t at) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(values + at));
}

__global__ void SumParts(const float* parts, uint32_t ranks, uint64_t count, Bf16Bits* out) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t at = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 2;
  if (at >= count) return;
  float2 sum = *reinterpret_cast<const float2*>(parts + at);
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const float2 one = *reinterpret_cast<const float2*>(parts + rank * count + at);
    sum.x += one.x;
    sum.y += one.y;
  }
  *reinterpret_cast<__nv_bfloat162*>(out + at) = __floats2bfloat162_rn(sum.x, sum.y);
}

__global__ void JoinParts(const Bf16Bits* parts, uint32_t ranks, uint64_t count, Bf16Bits* out) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t at = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 2;
  if (at >= count) return;
  float2 sum = PairAt(parts, at);
  for (uint32_t rank = 1; rank < ranks; ++rank) {
    const float2 one = PairAt(parts, rank * count + at);
    sum.x += one.x;
    sum.y += one.y;
  }
  *reinterpret_cast<__nv_bfloat162*>(out + at) = __floats2bfloat162_rn(sum.x, sum.y);
}

__global__ void SumExperts(StreamAdd add, uint32_t hidden, float* out) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t d = (blockIdx.x * kThreads + threadIdx.x) * 2;
  if (d >= hidden) return;
  const uint64_t row = blockIdx.y;
  float2 sum = {0, 0};
  for (uint32_t k = 0; k < add.chosen; ++k) {
    const uint32_t slot = add.slot_of[row * add.chosen + k];
    if (slot == kNoSlot) continue;
    const float2 one = PairAt(add.outputs, uint64_t{slot} * hidden + d);
    sum.x += one.x;
    sum.y += one.y;
  }
  if (add.shared != nullptr) {
    const float2 one = PairAt(add.shared, row * hidden + d);
    sum.x += one.x;
    sum.y += one.y;
  }
  *reinterpret_cast<float2*>(out + row * hidden + d) = sum;
}

uint32_t BlocksOf(uint64_t count) {
  return static_cast<uint32_t>((count / 2 + kThreads - 1) / kThreads);
}

}  // namespace

cudaError_t LaunchSumParts(const float* parts, uint32_t ranks, uint64_t count, Bf16Bits* out,
                           cudaStream_t stream) {
  return QueueNext(SumParts, {BlocksOf(count), kThreads}, stream, parts, ranks, count, out);
}
cudaError_t LaunchJoinParts(const Bf16Bits* parts, uint32_t ranks, uint64_t count, Bf16Bits* out,
                            cudaStream_t stream) {
  return QueueNext(JoinParts, {BlocksOf(count), kThreads}, stream, parts, ranks, count, out);
}
cudaError_t LaunchSumExperts(uint32_t hidden, uint32_t rows, const StreamAdd& add, float* out,
                             cudaStream_t stream) {
  const dim3 grid((hidden / 2 + kThreads - 1) / kThreads, rows);
  return QueueNext(SumExperts, {grid, kThreads}, stream, add, hidden, out);
}

}  // namespace reprise::engine::cuda
