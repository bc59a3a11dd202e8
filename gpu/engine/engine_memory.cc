#include "gpu/engine/engine_memory.h"

#include <cstring>
#include <new>
#include <string>

#include "protocol/base/check.h"

namespace reprise::engine {
namespace {

constexpr std::align_val_t kAlignment{256};

class OrdinaryMemory final : public EngineMemory {
 public:
  bool host() const override { return true; }
  uint64_t free_bytes() const override { return UINT64_MAX; }
  absl::StatusOr<EngineBuffer> Allocate(uint64_t bytes) override {
    void* data = ::operator new(bytes == 0 ? 1 : bytes, kAlignment, std::nothrow);
    if (data == nullptr) {
      return absl::ResourceExhaustedError("the machine has no " + std::to_string(bytes) +
                                          " bytes of memory left");
    }
    std::memset(data, 0, bytes);
    return EngineBuffer(
        static_cast<std::byte*>(data), bytes,
        [](std::byte* memory, void*) { ::operator delete(memory, kAlignment); }, nullptr);
  }
  absl::Status Copy(std::span<const MemoryCopy> copies) override {
    for (const MemoryCopy& copy : copies) {
      if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<EngineBuffer> Pin(std::span<std::byte>) override { return EngineBuffer(); }
  absl::StatusOr<std::unique_ptr<KvSlots>> MakeSlots(uint64_t, uint32_t) override {
    RP_CHECK(false);  // Nothing is copied: blocks are read where the store has them.
  }
};

}  // namespace

EngineMemory& HostMemory() {
  static OrdinaryMemory memory;
  return memory;
}

}  // namespace reprise::engine
