#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "protocol/base/status.h"

namespace reprise::engine::cuda {

// A daemon's HBM pool, mapped into this process: where a local engine reads the slots that a lease
// names (client/client.h, Client::AcquireSlots). What a client was told of a device is what Open
// takes. One mapping serves all leases of a connection.
//
// The memory stays the daemon's. Only leased slots may be looked at, and none written to: CUDA
// cannot map it read-only, and what is written reaches everybody's hits. Whoever reads in a kernel
// waits for the kernel before the lease ends. When the connection ends, what a kernel was reading
// then is worthless, and the mapping is closed before another connection's pool is opened.
class OpenedPool {
 public:
  struct Source {
    std::array<std::byte, 16> uuid{};   // Of the device.
    std::span<const std::byte> handle;  // A cudaIpcMemHandle_t.
    uint32_t slots = 0;
    uint64_t stride_bytes = 0;
  };

  // NOT_FOUND where this process does not see the device. The calling thread's device stays what it
  // was. Not in the process that made the pool.
  static absl::StatusOr<OpenedPool> Open(const Source& source);
  OpenedPool(OpenedPool&& other) noexcept { *this = std::move(other); }
  OpenedPool& operator=(OpenedPool&& other) noexcept;
  ~OpenedPool();

  int device() const { return device_; }  // Its ordinal here.
  // Where the payload of a leased slot begins, in the device's memory; null for a slot that is not
  // of the pool.
  const std::byte* slot(uint32_t slot) const {
    return slot < slots_ ? memory_ + slot * stride_bytes_ : nullptr;
  }

 private:
  OpenedPool() = default;

  std::byte* memory_ = nullptr;
  uint64_t stride_bytes_ = 0;
  uint32_t slots_ = 0;
  int device_ = 0;
};

}  // namespace reprise::engine::cuda
