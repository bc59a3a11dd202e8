#include "storage/slot_pool.h"

namespace reprise::storage {

SlotPool::SlotPool(Memory* memory, uint32_t first_slot, uint32_t block_slots, uint32_t window_slots)
    : memory_(memory), first_slot_(first_slot), slots_(block_slots + window_slots) {
  budget_[static_cast<size_t>(Use::kBlock)] = block_slots;
  budget_[static_cast<size_t>(Use::kWindow)] = window_slots;
  for (uint32_t i = total(); i > 0; --i) {
    slots_[i - 1].next_free = free_head_;
    free_head_ = first_slot_ + i - 1;
  }
}

uint32_t SlotPool::Allocate(Use use) {
  const auto index = static_cast<size_t>(use);
  RP_CHECK(use != Use::kFree);
  if (used_[index] == budget_[index]) return kNone;
  const uint32_t slot = free_head_;
  RP_CHECK(slot != kNone);  // The budgets add up to the pool.
  Slot& state = At(slot);
  free_head_ = state.next_free;
  state = {.use = use};
  ++used_[index];
  return slot;
}

void SlotPool::Free(uint32_t slot) {
  Slot& state = At(slot);
  RP_CHECK(state.use != Use::kFree && state.pins == 0);
  --used_[static_cast<size_t>(state.use)];
  memory_->BumpGeneration(slot);
  state = {.next_free = free_head_};
  free_head_ = slot;
}

}  // namespace reprise::storage
