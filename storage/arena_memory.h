#pragma once

#include "storage/arena.h"
#include "storage/slot_pool.h"

namespace reprise::storage {

// A SlotPool's memory in the shared arena: clients see the same bytes and generations.
class ArenaMemory final : public SlotPool::Memory {
 public:
  explicit ArenaMemory(Arena* arena) : arena_(arena) {}

  Bytes slot(uint32_t slot) override { return arena_->slot(slot); }
  uint32_t generation(uint32_t slot) const override {
    return arena_->generation(slot).load(std::memory_order_relaxed);
  }
  void BumpGeneration(uint32_t slot) override {
    arena_->generation(slot).fetch_add(1, std::memory_order_release);
    // What is written into the slot from here on must not be seen before the new generation.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }

 private:
  Arena* arena_;
};

}  // namespace reprise::storage
