#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::engine::cuda::bench {

// Reads all bytes once; `sink` is never written. The ceiling for kernels that read.
void ReadAll(const void* from, uint64_t bytes, uint32_t* sink, cudaStream_t stream);

// Occupies the stream for about so many clock cycles, while the host queues what follows.
void KeepBusy(uint32_t cycles, cudaStream_t stream);

}  // namespace reprise::engine::cuda::bench
