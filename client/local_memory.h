#pragma once

#include <atomic>
#include <cstdint>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"
#include "protocol/wire/messages.h"

namespace reprise {

// The daemon's memory as a local client sees it: the arena's slots and generation table, read-only,
// and this connection's staging slots, read-write. By RDMA the slots alone; empty otherwise.
class LocalMemory {
 public:
  struct Shape {
    uint32_t slot_bytes = 0;
    uint64_t arena_bytes = 0;
    uint32_t arena_slots = 0;
    uint64_t generations_offset = 0;
    uint32_t staging_slots = 0;
  };

  LocalMemory() = default;
  ~LocalMemory();
  LocalMemory(const LocalMemory&) = delete;
  LocalMemory& operator=(const LocalMemory&) = delete;

  // Maps both; the descriptors stay the caller's. Refuses a shape that does not fit the files, so
  // that no later access can fault.
  absl::Status Map(int arena_fd, int staging_fd, const Shape& shape);

  // Staging slots of this process's own, which go to the daemon by RDMA. No arena.
  absl::Status MakeStaging(uint32_t slot_bytes, uint32_t slots);

  bool mapped() const { return !arena_.empty(); }
  Bytes staging_area() const { return staging_; }

  // True when `ref` names a slot that holds what it held when the reference was given.
  bool Current(const wire::SlotRef& ref) const;
  // REQUIRES: ref.slot < arena_slots.
  ConstBytes slot(uint32_t index) const;
  uint32_t arena_slots() const { return shape_.arena_slots; }

  uint32_t staging_slots() const { return shape_.staging_slots; }
  Bytes staging(uint32_t index) const;
  // The staging slot at whose start `bytes` lies, when all of them are in the staging area;
  // wire::kNoSlot otherwise.
  uint32_t StagingSlotOf(ConstBytes bytes) const;

 private:
  Shape shape_;
  ConstBytes arena_;
  Bytes staging_;
};

}  // namespace reprise
