#pragma once

#include <vector>

#include "storage/block_store.h"

// The two operations that a BlockStore keeps in flight against its log. Included by block_store*.cc
// only.
namespace reprise::storage {

// A block on its way from SSD into a DRAM slot, and who waits for it.
struct BlockStore::Load : RegionLog::ReadOp {
  struct Waiter {
    AcquireOp* op;
    uint32_t key;  // Index into op->keys.
  };

  explicit Load(BlockStore* owner) : store(owner) {
    done = [](Completion* self, int32_t io_result) {
      auto* load = static_cast<Load*>(self);
      load->store->FinishLoad(load, io_result);
    };
    waiters.reserve(4);
  }

  void Begin(const IndexEntry& entry, uint32_t into_slot, Bytes into) {
    key = entry.key;
    location = entry.ssd_location;
    record = into;
    slot = into_slot;
    block_index = entry.block_index;
    name_space = entry.name_space;
    flags = entry.flags & kRecordFlagsKnown;
    removed = false;
  }

  BlockStore* store;
  BlockKey key;
  uint32_t slot = kNowhere;
  uint32_t block_index = 0;
  uint16_t name_space = 0;
  uint8_t flags = 0;
  bool removed = false;  // By an administrator, while it was read: must not come back.
  std::vector<Waiter> waiters;
};

// A block on its way from its DRAM slot, which stays pinned, to SSD.
struct BlockStore::Append : RegionLog::AppendOp {
  explicit Append(BlockStore* owner) : store(owner) {
    done = [](Completion* self, int32_t io_result) {
      auto* append = static_cast<Append*>(self);
      append->store->FinishAppend(append, io_result);
    };
  }

  BlockStore* store;
  uint32_t slot = kNowhere;
  PutOp* waiter = nullptr;  // A durable put that ends when this does.
  bool drop_after = false;  // Leaves DRAM once it is on SSD.
};

template <typename Op>
void BlockStore::Enqueue(FifoList<Op>* queue, Op* op) {
  op->waiting = true;
  ++waiting_count_;
  queue->Push(op);
}

// In order: who came first is served first, and nobody overtakes.
template <typename Op>
void BlockStore::Retry(FifoList<Op>* queue) {
  while (Op* op = queue->Pop()) {
    op->waiting = false;
    if (!Advance(op)) {
      op->waiting = true;
      queue->PushFront(op);
      return;
    }
    --waiting_count_;
  }
}

template <typename Op>
bool BlockStore::RemoveWaiting(FifoList<Op>* queue, Op* op) {
  FifoList<Op> others;
  bool found = false;
  while (Op* item = queue->Pop()) {
    if (item == op) {
      found = true;
    } else {
      others.Push(item);
    }
  }
  *queue = others;
  if (found) {
    op->waiting = false;
    --waiting_count_;
  }
  return found;
}

}  // namespace reprise::storage
