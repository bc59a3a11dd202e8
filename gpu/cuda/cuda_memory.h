#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "gpu/engine/engine_memory.h"

namespace reprise::engine::cuda {

// A GPU's memory as what segments lend. Copies run on the engine's stream, slots are an HbmPool.
class CudaMemory final : public EngineMemory {
 public:
  // `compute`: the stream that steps run on; must outlive it.
  CudaMemory(int device, cudaStream_t compute) : device_(device), compute_(compute) {}
  // The calling thread's work goes to this device from now on.
  absl::Status MakeCurrent() const;

  bool host() const override { return false; }
  uint64_t free_bytes() const override;
  absl::StatusOr<EngineBuffer> Allocate(uint64_t bytes) override;
  absl::Status Copy(std::span<const MemoryCopy> copies) override;
  absl::StatusOr<EngineBuffer> Pin(std::span<std::byte> host) override;
  absl::StatusOr<std::unique_ptr<KvSlots>> MakeSlots(uint64_t slot_bytes, uint32_t slots) override;

 private:
  int device_;
  cudaStream_t compute_;
};

}  // namespace reprise::engine::cuda
