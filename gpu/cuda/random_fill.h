#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

// Random values in device memory: weights and records to measure with. The same for the same seed.
namespace reprise::engine::cuda {

// Bytes, none above `byte_max` but for its sign bit when that is not 255: all are codes of E2M1,
// and with 0x7e of E4M3.
void FillRandom(void* to, uint64_t bytes, uint32_t seed, uint32_t byte_max, cudaStream_t stream);
// Bytes from low to high: scales.
void FillBytes(void* to, uint64_t bytes, uint32_t seed, uint32_t low, uint32_t high,
               cudaStream_t stream);
// The same as the scales of packed weights (linear_layout.h), by their ScaleByte.
void FillScaleWords(void* to, uint64_t bytes, uint32_t seed, uint32_t low, uint32_t high,
                    cudaStream_t stream);
// bf16 and float of magnitude up to `scale`, about `middle`.
void FillBf16(void* to, uint64_t count, uint32_t seed, float scale, cudaStream_t stream);
void FillFloat(void* to, uint64_t count, uint32_t seed, float middle, float scale,
               cudaStream_t stream);

}  // namespace reprise::engine::cuda
