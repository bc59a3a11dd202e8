#include "tests/gpu/cuda/pool_kernels.h"

namespace reprise::engine::cuda::test {
namespace {

__device__ uint32_t WordOf(uint32_t seed, uint32_t i) { return (seed + i) * 2654435761u ^ i; }

__global__ void Fill(uint32_t* words, uint32_t count, uint32_t seed) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) words[i] = WordOf(seed, i);
}
__global__ void Check(const uint32_t* words, uint32_t count, uint32_t seed, uint32_t* wrong) {
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    if (words[i] != WordOf(seed, i)) atomicAdd(wrong, 1);
  }
}

}  // namespace

void FillSlot(std::byte* slot, uint64_t bytes, uint32_t seed, cudaStream_t stream) {
  Fill<<<1, 256, 0, stream>>>(reinterpret_cast<uint32_t*>(slot), static_cast<uint32_t>(bytes / 4),
                              seed);
}
void CheckSlot(const std::byte* slot, uint64_t bytes, uint32_t seed, uint32_t* wrong,
               cudaStream_t stream) {
  Check<<<1, 256, 0, stream>>>(reinterpret_cast<const uint32_t*>(slot),
                               static_cast<uint32_t>(bytes / 4), seed, wrong);
}

}  // namespace reprise::engine::cuda::test
