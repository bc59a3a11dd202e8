#pragma once

#include <cstdint>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"
#include "protocol/base/types.h"

namespace reprise::storage {

// A shard's share of the arena's slots: who uses each, how often it is pinned, and its generation.
//
// Blocks and windows draw from the same slots, each within a budget of its own; the budgets add up
// to the pool, so neither can starve the other. A slot's generation rises when the slot is freed,
// before any new byte is written to it: a reader that compares generations after copying cannot be
// fooled.
//
// Memory is abstract (`Memory`), so that the simulation needs no memfd. Confined to the shard's
// thread.
class SlotPool {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  enum class Use : uint8_t { kFree = 0, kBlock = 1, kWindow = 2 };

  // Where slot contents and generations live. Slots are numbered over the whole arena.
  class Memory {
   public:
    virtual ~Memory() = default;
    virtual Bytes slot(uint32_t slot) = 0;
    virtual uint32_t generation(uint32_t slot) const = 0;
    virtual void BumpGeneration(uint32_t slot) = 0;
  };

  SlotPool(Memory* memory, uint32_t first_slot, uint32_t block_slots, uint32_t window_slots);

  // kNone when the use's budget is spent. The slot starts unpinned, with whatever bytes it last
  // held.
  uint32_t Allocate(Use use);
  // REQUIRES: pins(slot) == 0.
  void Free(uint32_t slot);

  void Pin(uint32_t slot) {
    if (At(slot).pins++ == 0) ++pinned_;
  }
  // Returns the pins that are left.
  uint32_t Unpin(uint32_t slot) {
    RP_CHECK(At(slot).pins > 0);
    const uint32_t left = --At(slot).pins;
    if (left == 0) --pinned_;
    return left;
  }
  uint32_t pins(uint32_t slot) const { return At(slot).pins; }

  // The block in a slot; set by the owner. kBlock slots only.
  const BlockKey& key(uint32_t slot) const { return At(slot).key; }
  void set_key(uint32_t slot, const BlockKey& key) { At(slot).key = key; }
  // An orphan has left the index but is still pinned: its last Unpin must free it.
  bool orphan(uint32_t slot) const { return At(slot).orphan; }
  void set_orphan(uint32_t slot) { At(slot).orphan = true; }

  Bytes bytes(uint32_t slot) const { return memory_->slot(slot); }
  uint32_t generation(uint32_t slot) const { return memory_->generation(slot); }
  Use use(uint32_t slot) const { return At(slot).use; }

  uint32_t first_slot() const { return first_slot_; }
  uint32_t block_slots() const { return budget_[1]; }
  uint32_t window_slots() const { return budget_[2]; }
  uint32_t used(Use use) const { return used_[static_cast<size_t>(use)]; }
  uint32_t total() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t pinned() const { return pinned_; }  // Slots with at least one pin.

 private:
  struct Slot {
    BlockKey key;
    uint32_t pins = 0;
    uint32_t next_free = kNone;
    Use use = Use::kFree;
    bool orphan = false;
  };

  Slot& At(uint32_t slot) {
    RP_CHECK(slot - first_slot_ < slots_.size());
    return slots_[slot - first_slot_];
  }
  const Slot& At(uint32_t slot) const { return const_cast<SlotPool*>(this)->At(slot); }

  Memory* memory_;
  uint32_t first_slot_;
  std::vector<Slot> slots_;
  uint32_t free_head_ = kNone;
  uint32_t budget_[3] = {};  // By Use.
  uint32_t used_[3] = {};
  uint32_t pinned_ = 0;
};

}  // namespace reprise::storage
