#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "gpu/engine/kv_slots.h"
#include "protocol/base/status.h"

// The kind of memory that sequences lend to an engine: ordinary memory for the CPU, a GPU's for
// CUDA.
namespace reprise::engine {

// Owns memory that an engine handed out, or holds host memory pinned; must not outlive the engine.
// Any thread, one at a time.
class EngineBuffer {
 public:
  using Free = void (*)(std::byte* data, void* owner);

  EngineBuffer() = default;
  EngineBuffer(std::byte* data, uint64_t bytes, Free free, void* owner)
      : data_(data), bytes_(bytes), free_(free), owner_(owner) {}
  EngineBuffer(EngineBuffer&& other) noexcept { *this = std::move(other); }
  EngineBuffer& operator=(EngineBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
    std::swap(owner_, other.owner_);
    return *this;
  }
  ~EngineBuffer() {
    if (data_ != nullptr) free_(data_, owner_);
  }

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  bool empty() const { return data_ == nullptr; }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  Free free_ = nullptr;
  void* owner_ = nullptr;
};

// Between host and engine memory, or within either.
struct MemoryCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t bytes = 0;
};

// One engine's memory. Any thread, one at a time, and not beside the engine's calls; but Allocate
// and the end of a buffer on any thread at any time.
class EngineMemory {
 public:
  virtual ~EngineMemory() = default;

  // Ordinary memory: the engine takes any, and the caller may read and write what it lent between
  // calls. If not, segments lend what Allocate or MakeSlots gave, and nothing else touches it but
  // copies.
  virtual bool host() const = 0;
  // What Allocate has left; UINT64_MAX: it is not counted.
  virtual uint64_t free_bytes() const = 0;
  // Aligned to 256, zeroed. RESOURCE_EXHAUSTED when there is not so much.
  virtual absl::StatusOr<EngineBuffer> Allocate(uint64_t bytes) = 0;
  // Blocks until all are done. No copy's target may overlap anything of another.
  virtual absl::Status Copy(std::span<const MemoryCopy> copies) = 0;
  // Host memory that much will be copied to and from: makes copies faster, and lets those of slots
  // run beside steps. Pinned as long as the result lives, which must go first.
  virtual absl::StatusOr<EngineBuffer> Pin(std::span<std::byte> host) = 0;
  // REQUIRES: not host().
  virtual absl::StatusOr<std::unique_ptr<KvSlots>> MakeSlots(uint64_t slot_bytes,
                                                             uint32_t slots) = 0;
};

// Of every engine that runs on the CPU.
EngineMemory& HostMemory();

}  // namespace reprise::engine
