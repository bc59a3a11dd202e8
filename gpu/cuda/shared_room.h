#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

namespace reprise::engine::cuda {

// Allows a kernel so much dynamic shared memory on the current device, once for each.
template <auto kKernel>
cudaError_t AllowShared(uint32_t bytes) {
  static std::atomic<uint64_t> allowed = 0;  // By device.
  int device = 0;
  const cudaError_t found = cudaGetDevice(&device);
  if (found != cudaSuccess) return found;
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((allowed.load(std::memory_order_acquire) & bit) != 0) return cudaSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_release);
  return error;
}

}  // namespace reprise::engine::cuda
