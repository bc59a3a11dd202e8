#pragma once

#include <cstdint>
#include <vector>

#include "storage/slot_pool.h"

namespace reprise::storage {

// Slots in a vector: the memory of a SlotPool in tests.
class VectorMemory final : public SlotPool::Memory {
 public:
  VectorMemory(uint32_t first_slot, uint32_t slot_count, uint32_t slot_bytes)
      : first_slot_(first_slot),
        slot_bytes_(slot_bytes),
        bytes_(uint64_t{slot_count} * slot_bytes),
        generations_(slot_count) {}

  Bytes slot(uint32_t slot) override {
    return Bytes(bytes_).subspan(uint64_t{slot - first_slot_} * slot_bytes_, slot_bytes_);
  }
  uint32_t generation(uint32_t slot) const override { return generations_.at(slot - first_slot_); }
  void BumpGeneration(uint32_t slot) override { ++generations_.at(slot - first_slot_); }

 private:
  uint32_t first_slot_;
  uint32_t slot_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> generations_;
};

}  // namespace reprise::storage
