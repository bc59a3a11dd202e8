#include "gpu/cuda/cuda_memory.h"

#include <string>
#include <utility>

#include "gpu/cuda/device.h"
#include "gpu/cuda/hbm_pool.h"

namespace reprise::engine::cuda {
namespace {

class CudaSlots final : public KvSlots {
 public:
  CudaSlots(HbmPool pool, int device) : pool_(std::move(pool)), device_(device) {}

  uint64_t slot_bytes() const override { return pool_.slot_bytes(); }
  uint32_t slots() const override { return pool_.slots(); }
  std::byte* data(uint32_t slot) const override { return pool_.data(slot); }
  uint32_t SlotOf(const std::byte* data) const override {
    return static_cast<uint32_t>(static_cast<uint64_t>(data - pool_.data(0)) / pool_.stride());
  }
  absl::StatusOr<uint64_t> Load(std::span<const SlotCopy> copies) override {
    return pool_.Load(copies);
  }
  absl::StatusOr<uint64_t> Store(std::span<const SlotCopy> copies) override {
    return pool_.Store(copies);
  }
  absl::StatusOr<bool> LoadDone(uint64_t number) override { return pool_.loads().Done(number); }
  absl::StatusOr<bool> StoreDone(uint64_t number) override { return pool_.stores().Done(number); }
  // As a step that writes them: later loads wait for it, should no step come.
  absl::Status Clear(std::span<const uint32_t> slots) override {
    RP_TRY(pool_.BeginStep({}, slots));
    for (const uint32_t slot : slots) {
      RP_CUDA_TRY(cudaMemsetAsync(pool_.data(slot), 0, pool_.slot_bytes(), pool_.steps().stream()));
    }
    return pool_.EndStep({}, slots).status();
  }
  absl::StatusOr<SlotsExport> Export() const override {
    RP_ASSIGN(const cudaIpcMemHandle_t handle, pool_.Export());
    RP_ASSIGN(const DeviceName name, NameOf(device_));
    return SlotsExport{
        .kind = SlotsExport::Kind::kCudaIpc,
        .stride_bytes = pool_.stride(),
        .devices = {{.uuid = name.uuid,
                     .pci_bus_id = name.pci_bus_id,
                     .handle = std::string(handle.reserved, sizeof(handle.reserved))}}};
  }

 private:
  static_assert(sizeof(cudaIpcMemHandle_t) == SlotsExport::kHandleBytesMax);

  HbmPool pool_;
  int device_;
};

}  // namespace

absl::Status CudaMemory::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(device_), "choosing the GPU for a thread");
}

uint64_t CudaMemory::free_bytes() const {
  size_t free = 0, total = 0;
  if (!MakeCurrent().ok() || cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return free;
}

absl::StatusOr<EngineBuffer> CudaMemory::Allocate(uint64_t bytes) {
  RP_TRY(MakeCurrent());
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
  RP_TRY(CudaStatus(error, "allocating " + std::to_string(bytes) + " bytes of device memory"));
  EngineBuffer buffer(
      static_cast<std::byte*>(data), bytes, [](std::byte* memory, void*) { cudaFree(memory); },
      nullptr);
  // The device runs behind the call, and streams of steps do not wait for this one.
  RP_CUDA_TRY(cudaMemset(data, 0, bytes));
  RP_CUDA_TRY(cudaStreamSynchronize(nullptr));
  return buffer;
}

absl::Status CudaMemory::Copy(std::span<const MemoryCopy> copies) {
  for (const MemoryCopy& copy : copies) {
    if (copy.bytes == 0) continue;
    RP_CUDA_TRY(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDefault, compute_));
  }
  return CudaStatus(cudaStreamSynchronize(compute_), "copies");
}

absl::StatusOr<EngineBuffer> CudaMemory::Pin(std::span<std::byte> host) {
  RP_TRY(MakeCurrent());
  RP_CUDA_TRY(cudaHostRegister(host.data(), host.size(), cudaHostRegisterPortable));
  return EngineBuffer(
      host.data(), host.size(), [](std::byte* memory, void*) { cudaHostUnregister(memory); },
      nullptr);
}

absl::StatusOr<std::unique_ptr<KvSlots>> CudaMemory::MakeSlots(uint64_t slot_bytes,
                                                               uint32_t slots) {
  RP_TRY(MakeCurrent());
  RP_ASSIGN(HbmPool pool, HbmPool::Create(slot_bytes, slots, compute_));
  return std::unique_ptr<KvSlots>(std::make_unique<CudaSlots>(std::move(pool), device_));
}

}  // namespace reprise::engine::cuda
