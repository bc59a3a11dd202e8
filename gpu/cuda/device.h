#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/base/status.h"

// Owners of what the CUDA runtime hands out, and its errors as statuses. None of it may outlive the
// process's device; one device a process. Any thread, one at a time for each object.
namespace reprise::engine::cuda {

// OK, or what failed and the runtime's words for it: RESOURCE_EXHAUSTED when memory is short,
// UNAVAILABLE when there is no device, INTERNAL for everything that is a defect.
absl::Status CudaStatus(cudaError_t error, std::string_view what);
#define RP_CUDA_TRY(call) RP_TRY(::reprise::engine::cuda::CudaStatus((call), #call))

struct DeviceFacts {
  std::string name;
  int ordinal = 0;
  int major = 0, minor = 0;  // Compute capability.
  int multiprocessors = 0;
  uint64_t memory_bytes = 0;
  uint64_t free_bytes = 0;
  int l2_bytes = 0;
};
// Makes the device current for this thread. UNAVAILABLE, with the reason, where there is none or it
// is not of compute capability 9.0.
absl::StatusOr<DeviceFacts> UseDevice(int ordinal = 0);

// By what other processes know a device, whatever its ordinal is there.
struct DeviceName {
  std::array<std::byte, 16> uuid{};
  std::string pci_bus_id;  // "0000:1B:00.0"
};
absl::StatusOr<DeviceName> NameOf(int ordinal);
// The ordinal of a device here; NOT_FOUND where this process does not see it.
absl::StatusOr<int> OrdinalOf(const std::array<std::byte, 16>& uuid);

// The calling thread's device may be another while it lives.
class KeepDevice {
 public:
  KeepDevice() { known_ = cudaGetDevice(&device_) == cudaSuccess; }
  KeepDevice(const KeepDevice&) = delete;
  KeepDevice& operator=(const KeepDevice&) = delete;
  ~KeepDevice() {
    if (known_) cudaSetDevice(device_);
  }

 private:
  int device_ = 0;
  bool known_ = false;
};

enum class MemoryKind : uint8_t { kDevice, kPinned };
// The owner of bytes of that kind, aligned to 256.
template <MemoryKind kKind>
class OwnedMemory {
 public:
  OwnedMemory() = default;
  static absl::StatusOr<OwnedMemory> Allocate(uint64_t bytes);
  OwnedMemory(OwnedMemory&& other) noexcept { *this = std::move(other); }
  OwnedMemory& operator=(OwnedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedMemory();

  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};
using DeviceMemory = OwnedMemory<MemoryKind::kDevice>;
// Host memory that the device copies to and from without staging.
using PinnedMemory = OwnedMemory<MemoryKind::kPinned>;

class Stream {
 public:
  Stream() = default;
  static absl::StatusOr<Stream> Create();
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~Stream();

  cudaStream_t get() const { return stream_; }
  // Blocks until everything queued is done, and gives the first error of it.
  absl::Status Wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  static absl::StatusOr<Event> Create(bool timed = false);
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace reprise::engine::cuda
