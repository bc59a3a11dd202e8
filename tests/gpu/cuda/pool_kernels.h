#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace reprise::engine::cuda::test {

inline uint32_t WordOfSlot(uint32_t seed, uint32_t i) { return (seed + i) * 2654435761u ^ i; }

// A step that writes WordOfSlot(seed, i) to all words of a slot, by one block so that it takes
// long; and one that counts words which are others.
void FillSlot(std::byte* slot, uint64_t bytes, uint32_t seed, cudaStream_t stream);
void CheckSlot(const std::byte* slot, uint64_t bytes, uint32_t seed, uint32_t* wrong,
               cudaStream_t stream);

}  // namespace reprise::engine::cuda::test
