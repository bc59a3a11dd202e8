#include <cuda_bf16.h>

#include "gpu/cuda/random_fill.h"

namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256, kBlocks = 132 * 8;

__device__ inline uint32_t Mixed(uint64_t i, uint32_t seed) {
  uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 32);
}

__global__ void RandomWords(uint32_t* to, uint64_t count, uint32_t seed, uint32_t byte_max) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    uint32_t word = Mixed(i, seed);
    if (byte_max != 255) {
      for (int b = 0; b < 4; ++b) {
        if ((word >> (8 * b) & 0x7f) > byte_max) word &= ~(1u << (8 * b));
      }
    }
    to[i] = word;
  }
}
__global__ void RandomBytes(uint8_t* to, uint64_t count, uint32_t seed, uint32_t low,
                            uint32_t span) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    to[i] = static_cast<uint8_t>(low + Mixed(i, seed) % span);
  }
}
__global__ void RandomScaleWords(uint32_t* to, uint64_t count, uint32_t seed, uint32_t low,
                                 uint32_t span) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4; ++b) word |= (low + Mixed(4 * i + b, seed) % span) << (8 * b);
    to[i] = word << 7 | word >> 25;
  }
}
__global__ void RandomBf16(__nv_bfloat16* to, uint64_t count, uint32_t seed, float scale) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    to[i] = __float2bfloat16(scale * (static_cast<float>(Mixed(i, seed) >> 8) * 0x1p-23f - 1.0f));
  }
}

__global__ void RandomFloats(float* to, uint64_t count, uint32_t seed, float middle, float scale) {
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += uint64_t{gridDim.x} * kThreads) {
    to[i] = middle + scale * (static_cast<float>(Mixed(i, seed) >> 8) * 0x1p-23f - 1.0f);
  }
}

}  // namespace

void FillRandom(void* to, uint64_t bytes, uint32_t seed, uint32_t byte_max, cudaStream_t stream) {
  RandomWords<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint32_t*>(to), bytes / 4, seed,
                                                byte_max);
}
void FillBytes(void* to, uint64_t bytes, uint32_t seed, uint32_t low, uint32_t high,
               cudaStream_t stream) {
  RandomBytes<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint8_t*>(to), bytes, seed, low,
                                                high - low + 1);
}
void FillScaleWords(void* to, uint64_t bytes, uint32_t seed, uint32_t low, uint32_t high,
                    cudaStream_t stream) {
  RandomScaleWords<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint32_t*>(to), bytes / 4, seed,
                                                     low, high - low + 1);
}
void FillBf16(void* to, uint64_t count, uint32_t seed, float scale, cudaStream_t stream) {
  RandomBf16<<<kBlocks, kThreads, 0, stream>>>(static_cast<__nv_bfloat16*>(to), count, seed, scale);
}

void FillFloat(void* to, uint64_t count, uint32_t seed, float middle, float scale,
               cudaStream_t stream) {
  RandomFloats<<<kBlocks, kThreads, 0, stream>>>(static_cast<float*>(to), count, seed, middle,
                                                 scale);
}

}  // namespace reprise::engine::cuda
