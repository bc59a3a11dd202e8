#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::engine::cuda::bench {

// Reads all bytes once; `sink` is never written. The ceiling for kernels that read.
void ReadAll(const void* from, uint64_t bytes, uint32_t* sink, cudaStream_t stream);
// Random words, with no byte above `byte_max` when that is not 255: any of them is a code of E2M1,
// and with 0x7e one of E4M3.
void FillRandom(void* to, uint64_t bytes, uint32_t seed, uint32_t byte_max, cudaStream_t stream);
// Random bytes in [low, high]: scales.
void FillBytes(void* to, uint64_t bytes, uint32_t seed, uint32_t low, uint32_t high,
               cudaStream_t stream);
// Random bf16 of magnitude up to `scale`.
void FillBf16(void* to, uint64_t count, uint32_t seed, float scale, cudaStream_t stream);

}  // namespace reprise::engine::cuda::bench
