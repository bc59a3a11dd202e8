#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "protocol/base/status.h"

namespace reprise::engine {

// A copy between a slot and host memory.
struct SlotCopy {
  uint32_t slot = 0;
  std::byte* host = nullptr;
  uint32_t offset = 0;  // Within the slot.
  uint32_t bytes = 0;   // 0: the slot.
};

// What another process on this machine needs to map slots: slot i lies at i * stride_bytes from
// where a device's handle leads, with the same bytes on every device.
struct SlotsExport {
  // Numbers are those of the protocol (control.proto, SlotPoolReply).
  enum class Kind : uint8_t {
    kCudaIpc = 1,   // The 64 bytes of a cudaIpcMemHandle_t.
    kHostTest = 2,  // An engine of tests: "PATH@OFFSET" of a file.
  };
  struct Device {
    std::array<std::byte, 16> uuid{};
    std::string pci_bus_id;  // "0000:1b:00.0"
    std::string handle;      // At most kHandleBytesMax bytes, not text.
  };
  static constexpr size_t kHandleBytesMax = 64;

  Kind kind = Kind::kCudaIpc;
  uint64_t stride_bytes = 0;
  std::vector<Device> devices;
};

// Slots of equal size in engine memory, and copies between them and host memory that run beside the
// engine's calls. Who uses which slot is for others to decide. One thread: the engine's.
//
// Copies of one direction are done in the order in which they were queued: number n is done when
// all before it are; numbers begin at 1, and 0 is always done. A load must not be queued for a slot
// that a call is reading. The host memory of a store may be read once it is done, that of a load
// written to. An error of a copy is one of the device: the engine cannot go on.
class KvSlots {
 public:
  virtual ~KvSlots() = default;

  virtual uint64_t slot_bytes() const = 0;
  virtual uint32_t slots() const = 0;
  virtual std::byte* data(uint32_t slot) const = 0;  // Aligned to 256.
  // Of an address that data() gave.
  virtual uint32_t SlotOf(const std::byte* data) const = 0;

  virtual absl::StatusOr<uint64_t> Load(std::span<const SlotCopy> copies) = 0;
  virtual absl::StatusOr<uint64_t> Store(std::span<const SlotCopy> copies) = 0;
  virtual absl::StatusOr<bool> LoadDone(uint64_t number) = 0;
  virtual absl::StatusOr<bool> StoreDone(uint64_t number) = 0;
  // Zeroed before the engine's next call or copy. REQUIRES: nothing is queued for them.
  virtual absl::Status Clear(std::span<const uint32_t> slots) = 0;
  // What is mapped elsewhere ends with these slots; whoever maps it can write to it.
  virtual absl::StatusOr<SlotsExport> Export() const = 0;
};

}  // namespace reprise::engine
