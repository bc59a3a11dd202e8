#pragma once

#include <cstdint>
#include <memory>

#include "protocol/base/bytes.h"
#include "protocol/reactor/completion.h"

namespace reprise::storage {

// One transfer. Offset, length and address are multiples of 4 KiB. The caller owns the operation
// and the bytes until `done` runs; result is the byte count (0 for sync and erase) or -errno. A
// short transfer is completed by the device, so a non-negative result is always the whole length.
struct DeviceOp : Completion {
  enum class Kind : uint8_t {
    kRead,
    kWrite,
    kSync,   // All writes completed before this was submitted are durable when it completes.
    kErase,  // [offset, offset + erase_bytes) reads as zeros from now on; the medium may be
             // trimmed.
  };
  Kind kind = Kind::kRead;
  uint64_t offset = 0;
  Bytes bytes;
  uint64_t erase_bytes = 0;
};

// The door to the disk: the only way storage/ touches one. FileDevice (io_uring, O_DIRECT) in the
// daemon, SimDevice in tests/sim; everything above is the same code in both.
class Device {
 public:
  virtual ~Device() = default;
  // Never fails and never completes inside; an error arrives in op->result.
  virtual void Submit(DeviceOp* op) = 0;
  virtual uint64_t size_bytes() const = 0;
};

}  // namespace reprise::storage
