#include "gpu/cuda/opened_pool.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>

#include "gpu/cuda/device.h"

namespace reprise::engine::cuda {

absl::StatusOr<OpenedPool> OpenedPool::Open(const Source& source) {
  cudaIpcMemHandle_t handle;
  if (source.handle.size() != sizeof(handle) || source.stride_bytes == 0) {
    return InvalidArgument("a CUDA IPC handle has " + std::to_string(sizeof(handle)) +
                           " bytes, and a pool a stride; is the pool's kind cuda-ipc?");
  }
  std::memcpy(&handle, source.handle.data(), sizeof(handle));
  OpenedPool pool;
  RP_ASSIGN(pool.device_, OrdinalOf(source.uuid));
  const KeepDevice keep;
  RP_CUDA_TRY(cudaSetDevice(pool.device_));
  void* memory = nullptr;
  RP_TRY(CudaStatus(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
                    "mapping the daemon's HBM pool"));
  pool.memory_ = static_cast<std::byte*>(memory);
  pool.slots_ = source.slots;
  pool.stride_bytes_ = source.stride_bytes;
  return pool;
}

OpenedPool& OpenedPool::operator=(OpenedPool&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(stride_bytes_, other.stride_bytes_);
  std::swap(slots_, other.slots_);
  std::swap(device_, other.device_);
  return *this;
}

OpenedPool::~OpenedPool() {
  if (memory_ == nullptr) return;
  const KeepDevice keep;
  cudaSetDevice(device_);
  cudaIpcCloseMemHandle(memory_);
}

}  // namespace reprise::engine::cuda
