#include <algorithm>
#include <cerrno>
#include <cstring>

#include "protocol/base/checksum.h"
#include "storage/block_store.h"
#include "storage/block_store_ops.h"
#include "storage/format_check.h"

namespace reprise::storage {
namespace {

RecordHeader HeaderOf(ConstBytes tail) { return LoadLe<RecordHeader>(tail.data()); }

Outcome OutcomeOf(int32_t io_result) {
  if (io_result == 0) return Outcome::kOk;
  return io_result == -ENOSPC ? Outcome::kBusy : Outcome::kIo;
}

}  // namespace

// ---- Put --------------------------------------------------------------------------------------

void BlockStore::Put(PutOp* op) {
  op->stored = false;
  op->waiting = false;
  if (const Outcome outcome = CheckPut(op); outcome != Outcome::kOk) {
    ++counts_.puts_invalid;
    Finish(op, outcome);
    return;
  }
  admission_->Record(op->key);
  what_if_.Use(op->key);
  if (!Advance(op)) {
    if (waiting_count_ >= options_.waiting_max) {
      ++counts_.puts_busy;
      Finish(op, Outcome::kBusy);
    } else {
      Enqueue(&waiting_puts_, op);
    }
  }
}

// The record is the client's memory, which may change under our hands: everything is decided on a
// copy of its tail, and the payload is checked after it was copied.
Outcome BlockStore::CheckPut(PutOp* op) {
  if (op->record.size() != options_.record_bytes) return Outcome::kInvalid;
  const ConstBytes tail = op->record.last(kRecordTailBytes);
  std::memcpy(op->tail.data(), tail.data(), kRecordTailBytes);
  const RecordHeader header = HeaderOf(op->tail);
  if (header.magic == kRecordMagic && header.name_space != op->name_space) {
    return Outcome::kWrongNamespace;
  }
  if (const Outcome outcome = VerifyHeader(op->tail, options_.record_bytes);
      outcome != Outcome::kOk) {
    return outcome;
  }
  if (KeyOf(header.block_hash) != op->key) return Outcome::kInvalid;
  const bool durable = op->durability == wire::Durability::kDurable;
  return durable && log_ == nullptr ? Outcome::kUnsupported : Outcome::kOk;
}

bool BlockStore::Advance(PutOp* op) {
  if (IndexEntry* entry = index_.Find(op->key); entry != nullptr) return PutExisting(op, entry);
  if (op->stored) {  // Published by this operation, and removed again before it was durable.
    Finish(op, Outcome::kBusy);
    return true;
  }
  const uint64_t quota = options_.quota_blocks ? options_.quota_blocks(op->name_space_index) : 0;
  if (quota != 0 && namespace_blocks(op->name_space_index) >= quota) {
    ++counts_.puts_rejected;
    Finish(op, Outcome::kRejected);
    return true;
  }
  uint32_t slot = kNowhere;
  switch (ClaimSlot(&slot)) {
    case Claim::kWait:
      return false;
    case Claim::kNever:
      ++counts_.puts_busy;
      Finish(op, Outcome::kBusy);
      return true;
    case Claim::kGot:
      break;
  }
  return StoreRecord(op, slot);
}

bool BlockStore::StoreRecord(PutOp* op, uint32_t slot) {
  const RecordHeader header = HeaderOf(op->tail);
  const Bytes record = slots_->bytes(slot).first(options_.record_bytes);
  const Bytes body = record.first(record.size() - kRecordTailBytes);
  std::memcpy(record.data() + body.size(), op->tail.data(), kRecordTailBytes);
  if (CopyCrc32c(op->record.first(body.size()), body) != header.payload_crc) {
    slots_->Free(slot);
    ++counts_.puts_invalid;
    Finish(op, Outcome::kCorrupt);
    return true;
  }
  IndexEntry* entry =
      index_.Insert({.key = op->key,
                     .dram_slot = slot,
                     .block_index = header.block_index,
                     .name_space = op->name_space_index,
                     .flags = static_cast<uint8_t>(header.flags & kRecordFlagsKnown)});
  ++NamespaceBlocks(op->name_space_index);
  slots_->set_key(slot, op->key);
  eviction_->Track(Local(slot), op->key, ParentOf(header));
  ++counts_.puts_stored;
  op->stored = true;

  if (op->durability == wire::Durability::kDurable) return MakeDurable(op, entry);
  if (log_ != nullptr && options_.ssd_write == SsdWrite::kThrough) {
    if (admission_->Admit(op->key)) {
      QueueAppend(entry);
    } else {
      ++counts_.admissions_refused;
    }
  }
  Finish(op, Outcome::kOk);
  return true;
}

uint32_t BlockStore::ParentOf(const RecordHeader& header) const {
  if (header.block_index == 0) return EvictionPolicy::kNoParent;
  const IndexEntry* parent = index_.Find(KeyOf(header.parent_hash));
  const bool here = parent != nullptr && parent->dram_slot != kNowhere;
  return here ? Local(parent->dram_slot) : EvictionPolicy::kNoParent;
}

bool BlockStore::PutExisting(PutOp* op, IndexEntry* entry) {
  const bool better =
      (entry->flags & kReplayDerived) != 0 && (HeaderOf(op->tail).flags & kReplayDerived) == 0;
  const bool at_rest = (entry->flags & (kEntryLoading | kEntryAppending)) == 0;
  // Checked here too, so that a damaged record does not cost the good one.
  if (better && at_rest && !op->stored && options_.replace_replay_derived &&
      Crc32c(RecordBody(op->record)) == HeaderOf(op->tail).payload_crc) {
    ++counts_.replaced;
    Forget(entry, Departure::kRemoved);
    return Advance(op);
  }
  if (op->durability == wire::Durability::kDurable) return MakeDurable(op, entry);
  ++counts_.puts_existing;
  Finish(op, Outcome::kExists);
  return true;
}

// Ends `op` when its block is on SSD and synced; false when it must wait for a write to be free, or
// for the one that is already under way.
bool BlockStore::MakeDurable(PutOp* op, IndexEntry* entry) {
  if ((entry->flags & kEntryAppending) != 0) return false;
  if (entry->ssd_location == kNowhere) return StartAppend(entry, op, /*drop_after=*/false);
  op->sync.put = op;
  op->sync.store = this;
  op->sync.done = [](Completion* self, int32_t io_result) {
    auto* sync = static_cast<PutOp::Sync*>(self);
    --sync->store->syncs_in_flight_;
    PutOp* put = sync->put;
    const Outcome good = put->stored ? Outcome::kOk : Outcome::kExists;
    if (io_result == 0 && !put->stored) ++sync->store->counts_.puts_existing;
    sync->store->Finish(put, io_result == 0 ? good : Outcome::kIo);
  };
  ++syncs_in_flight_;
  log_->Sync(&op->sync);
  return true;
}

void BlockStore::Finish(PutOp* op, Outcome outcome) {
  op->outcome = outcome;
  Complete(op);
}

void BlockStore::Cancel(PutOp* op) {
  if (op->waiting && RemoveWaiting(&waiting_puts_, op)) Finish(op, Outcome::kTimeout);
}

// ---- Appends ----------------------------------------------------------------------------------

bool BlockStore::StartAppend(IndexEntry* entry, PutOp* waiter, bool drop_after) {
  if (free_appends_.empty()) return false;
  RP_CHECK(entry->dram_slot != kNowhere && entry->ssd_location == kNowhere);
  Append* append = free_appends_.back();
  free_appends_.pop_back();
  entry->flags |= kEntryAppending;
  PinSlot(entry->dram_slot);
  append->slot = entry->dram_slot;
  append->waiter = waiter;
  append->drop_after = drop_after;
  append->record = slots_->bytes(append->slot).first(options_.record_bytes);
  append->entry = EntryOf(LoadRecordHeader(append->record));
  append->durable = waiter != nullptr;
  log_->Append(append);
  return true;
}

void BlockStore::FinishAppend(Append* append, int32_t result) {
  const BlockKey key = append->entry.key;
  IndexEntry* entry = index_.Find(key);
  const bool current =
      entry != nullptr && entry->dram_slot == append->slot && (entry->flags & kEntryAppending) != 0;
  if (current) {
    entry->flags &= static_cast<uint8_t>(~(kEntryAppending | kEntryAppendQueued));
    if (result == 0) {
      entry->ssd_location = append->location;
      ++ssd_blocks_;
    }
  } else if (result == 0) {
    EraseOnSsd(append->location);  // Removed while it was written.
  }
  if (append->leftover != RegionLog::kNoLocation) EraseOnSsd(append->leftover);
  const uint32_t slot = append->slot;
  UnpinSlot(slot);
  if (current && append->drop_after && slots_->pins(slot) == 0) {
    ++counts_.dram_evictions;
    if (result == 0) {
      DropDram(entry);
    } else {
      Forget(entry, Departure::kIoError);
    }
  }
  if (append->waiter != nullptr) {
    const Outcome good = append->waiter->stored ? Outcome::kOk : Outcome::kExists;
    Finish(append->waiter, result == 0 ? good : OutcomeOf(result));
  }
  append->waiter = nullptr;
  append->slot = kNowhere;
  free_appends_.push_back(append);
  progress_ = true;
}

void BlockStore::QueueAppend(IndexEntry* entry) {
  entry->flags |= kEntryAppendQueued;
  if (append_queue_size_ == append_queue_.size())
    return;  // Full of stale rows: written when evicted.
  append_queue_[(append_queue_head_ + append_queue_size_++) % append_queue_.size()] = entry->key;
}

void BlockStore::DrainAppendQueue() {
  while (append_queue_size_ > 0 && !free_appends_.empty()) {
    const BlockKey key = append_queue_[append_queue_head_];
    append_queue_head_ = (append_queue_head_ + 1) % append_queue_.size();
    --append_queue_size_;
    IndexEntry* entry = index_.Find(key);
    const bool due = entry != nullptr && (entry->flags & kEntryAppendQueued) != 0 &&
                     (entry->flags & kEntryAppending) == 0 && entry->ssd_location == kNowhere;
    if (due) StartAppend(entry, nullptr, /*drop_after=*/false);
  }
}

void BlockStore::EraseOnSsd(RegionLog::Location location) {
  if (log_ == nullptr) return;
  struct OwnedErase : RegionLog::EraseOp {
    BlockStore* store = nullptr;
  };
  auto* erase = new OwnedErase;  // Rare: an administrator's removal or a failed check.
  erase->location = location;
  erase->store = this;
  erase->done = [](Completion* self, int32_t io_result) {
    auto* op = static_cast<OwnedErase*>(self);
    --op->store->erases_in_flight_;
    if (io_result < 0) op->store->TellWaitErased(io_result);
    delete op;
  };
  ++erases_in_flight_;
  log_->Erase(erase);
}

// ---- Administration ---------------------------------------------------------------------------

uint64_t BlockStore::Remove(std::span<const BlockKey> keys, uint16_t name_space) {
  uint64_t removed = 0;
  for (const BlockKey& key : keys) {
    IndexEntry* entry = FindIn(key, name_space);
    if (entry == nullptr) {
      GiveUpLoads(key, name_space);  // Its region was reclaimed while it is read.
    } else {
      Forget(entry, Departure::kRemoved);
      ++removed;
    }
  }
  return removed;
}

void BlockStore::WaitErased(Completion* op) {
  op->result = 0;
  waiting_erased_.Push(op);
}

void BlockStore::CancelWaitErased(Completion* op) {
  FifoList<Completion> others;
  while (Completion* item = waiting_erased_.Pop()) {
    if (item == op) item->result = -ETIMEDOUT;
    (item == op ? done_ : others).Push(item);
  }
  waiting_erased_ = others;
}

void BlockStore::TellWaitErased(int32_t io_result) {
  for (Completion* op = waiting_erased_.front(); op != nullptr; op = op->next) {
    op->result = io_result;
  }
}

bool BlockStore::NothingToErase() const {
  if (erases_in_flight_ > 0 || (log_ != nullptr && log_->OwesErase())) return false;
  return std::none_of(appends_.begin(), appends_.end(), [this](const auto& append) {
    if (append->slot == kNowhere) return false;  // Free.
    const IndexEntry* entry = index_.Find(append->entry.key);
    return entry == nullptr || entry->dram_slot != append->slot;
  });
}

uint64_t BlockStore::RemoveNamespace(uint16_t name_space) {
  for (Load* load : active_loads_) {
    if (load->name_space == name_space) load->removed = true;
  }
  return Remove(Keys(name_space, /*any_namespace=*/false));
}

std::vector<BlockKey> BlockStore::Keys(uint16_t name_space, bool any_namespace) const {
  std::vector<BlockKey> keys;
  index_.ForEach([&](const IndexEntry& entry) {
    if (any_namespace || entry.name_space == name_space) keys.push_back(entry.key);
  });
  return keys;
}

}  // namespace reprise::storage
