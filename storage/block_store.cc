#include "storage/block_store.h"

#include <algorithm>

#include "storage/block_store_ops.h"

namespace reprise::storage {
namespace {

constexpr uint32_t kPrefetchAhead = 8;
constexpr uint8_t kFrequencyMax = 15;

bool IsOf(uint16_t name_space, uint16_t asked) {
  return asked == BlockStore::kAnyNamespace || name_space == asked;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockStore>> BlockStore::Create(const Options& options,
                                                               SlotPool* slots,
                                                               uint64_t ssd_blocks_max) {
  RP_ASSIGN(auto eviction, MakeEvictionPolicy(options.dram_eviction, slots->total()));
  const uint64_t blocks_max = slots->block_slots() + ssd_blocks_max;
  RP_ASSIGN(auto admission,
            MakeAdmissionPolicy(options.ssd_admission, std::max<uint64_t>(1, blocks_max)));
  return std::unique_ptr<BlockStore>(
      new BlockStore(options, slots, blocks_max, std::move(eviction), std::move(admission)));
}

BlockStore::BlockStore(const Options& options, SlotPool* slots, uint64_t blocks_max,
                       std::unique_ptr<EvictionPolicy> eviction,
                       std::unique_ptr<AdmissionPolicy> admission)
    : options_(options),
      slots_(slots),
      index_(blocks_max),
      eviction_(std::move(eviction)),
      admission_(std::move(admission)),
      departed_(options.departed_rows),
      what_if_(options.what_if),
      append_queue_(slots->block_slots()) {
  for (uint32_t i = 0; i < options_.loads_max; ++i) {
    loads_.push_back(std::make_unique<Load>(this));
    free_loads_.push_back(loads_.back().get());
  }
  for (uint32_t i = 0; i < options_.appends_max; ++i) {
    appends_.push_back(std::make_unique<Append>(this));
    free_appends_.push_back(appends_.back().get());
  }
  active_loads_.reserve(options_.loads_max);
}

BlockStore::~BlockStore() { RP_CHECK(idle()); }

void BlockStore::Restore(const TrailerEntry& entry, RegionLog::Location location,
                         uint16_t name_space) {
  if (IndexEntry* known = index_.Find(entry.key); known != nullptr) {
    superseded_.push_back(known->ssd_location);
    known->ssd_location = location;
    known->flags = static_cast<uint8_t>(entry.flags & kRecordFlagsKnown);
    return;
  }
  ++ssd_blocks_;
  index_.Insert({.key = entry.key,
                 .ssd_location = location,
                 .block_index = entry.block_index,
                 .name_space = name_space,
                 .flags = static_cast<uint8_t>(entry.flags & kRecordFlagsKnown)});
  ++NamespaceBlocks(name_space);
}

void BlockStore::FinishRestore() {
  for (const RegionLog::Location location : superseded_) EraseOnSsd(location);
  superseded_.clear();
}

// ---- Lookup -----------------------------------------------------------------------------------

void BlockStore::Lookup(std::span<const BlockKey> keys, std::span<Residency> out,
                        uint16_t name_space) const {
  RP_CHECK(keys.size() == out.size());
  const size_t warm = std::min<size_t>(keys.size(), kPrefetchAhead);
  for (size_t i = 0; i < warm; ++i) index_.Prefetch(keys[i]);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kPrefetchAhead < keys.size()) index_.Prefetch(keys[i + kPrefetchAhead]);
    const IndexEntry* entry = index_.Find(keys[i]);
    if (entry == nullptr || !IsOf(entry->name_space, name_space)) {
      out[i] = IsWaiting(keys[i], name_space) ? Residency::kPending : Residency::kAbsent;
    } else {
      out[i] = entry->dram_slot != kNowhere ? Residency::kDram : Residency::kSsd;
    }
  }
}

IndexEntry* BlockStore::FindIn(const BlockKey& key, uint16_t name_space) {
  IndexEntry* entry = index_.Find(key);
  return entry != nullptr && IsOf(entry->name_space, name_space) ? entry : nullptr;
}

bool BlockStore::IsWaiting(const BlockKey& key, uint16_t name_space) const {
  for (const PutOp* op = waiting_puts_.front(); op != nullptr;
       op = static_cast<const PutOp*>(op->next)) {
    if (op->key == key && IsOf(op->name_space_index, name_space)) return true;
  }
  return false;
}

// ---- Acquire ----------------------------------------------------------------------------------

void BlockStore::Acquire(AcquireOp* op) {
  RP_CHECK(op->keys.size() == op->slots.size() && op->keys.size() == op->outcomes.size());
  std::fill(op->slots.begin(), op->slots.end(), kNowhere);
  std::fill(op->outcomes.begin(), op->outcomes.end(), Outcome::kNotFound);
  op->from_ssd = 0;
  op->next_key = 0;
  op->pending = 0;
  op->stopped = false;
  op->waiting = false;
  op->completed = false;
  if (Advance(op)) return;
  if (waiting_count_ < options_.waiting_max) return Enqueue(&waiting_acquires_, op);
  ++counts_.acquire_busy;
  op->outcomes[op->next_key] = Outcome::kBusy;
  op->stopped = true;
  CompleteIfDone(op);
}

bool BlockStore::Advance(AcquireOp* op) {
  while (!op->stopped && op->next_key < op->keys.size()) {
    if (op->next_key + kPrefetchAhead < op->keys.size()) {
      index_.Prefetch(op->keys[op->next_key + kPrefetchAhead]);
    }
    switch (AcquireKey(op, op->next_key)) {
      case KeyStep::kNext:
        ++op->next_key;
        break;
      case KeyStep::kStop:
        op->stopped = true;
        break;
      case KeyStep::kWait:
        return false;
    }
  }
  CompleteIfDone(op);
  return true;
}

BlockStore::KeyStep BlockStore::AcquireKey(AcquireOp* op, uint32_t i) {
  IndexEntry* entry = FindIn(op->keys[i], op->name_space);
  if (entry == nullptr) {
    ++counts_.acquire_misses;
    return KeyStep::kStop;
  }
  if (entry->dram_slot == kNowhere) return AcquireFromSsd(op, i, entry);
  admission_->Record(entry->key);
  if (entry->frequency < kFrequencyMax) ++entry->frequency;
  Grant(op, i, entry->dram_slot);
  ++counts_.acquired_dram;
  return KeyStep::kNext;
}

BlockStore::KeyStep BlockStore::AcquireFromSsd(AcquireOp* op, uint32_t i, IndexEntry* entry) {
  if ((entry->flags & kEntryLoading) != 0) {
    FindLoad(entry->key)->waiters.push_back({op, i});
    ++op->pending;
    return KeyStep::kNext;
  }
  if (free_loads_.empty()) return KeyStep::kWait;
  uint32_t slot = kNowhere;
  const BlockKey key = entry->key;
  if (const Claim claim = ClaimSlot(&slot); claim != Claim::kGot) {
    if (claim == Claim::kWait) return KeyStep::kWait;
    op->outcomes[i] = Outcome::kBusy;
    ++counts_.acquire_busy;
    return KeyStep::kStop;
  }
  entry = index_.Find(key);  // Eviction may have moved it; it cannot have erased it.
  RP_CHECK(entry != nullptr && entry->ssd_location != kNowhere);
  admission_->Record(key);
  if (entry->frequency < kFrequencyMax) ++entry->frequency;
  entry->flags |= kEntryLoading;

  Load* load = free_loads_.back();
  free_loads_.pop_back();
  active_loads_.push_back(load);
  load->Begin(*entry, slot, slots_->bytes(slot).first(options_.record_bytes));
  load->waiters.push_back({op, i});
  ++op->pending;
  ++counts_.loads;
  log_->Touch(entry->ssd_location);
  log_->Read(load);
  return KeyStep::kNext;
}

void BlockStore::Grant(AcquireOp* op, uint32_t i, uint32_t slot) {
  PinSlot(slot);
  op->slots[i] = slot;
  op->outcomes[i] = Outcome::kOk;
}

void BlockStore::CompleteIfDone(AcquireOp* op) {
  const bool exhausted = op->stopped || op->next_key == op->keys.size();
  if (op->completed || op->waiting || op->pending > 0 || !exhausted) return;
  op->completed = true;
  // Last to first, so that a prefix's head is used later than its tail and outlives it: without the
  // head the tail cannot be hit.
  for (size_t i = op->slots.size(); i > 0; --i) {
    if (op->slots[i - 1] == kNowhere) continue;
    eviction_->Touch(Local(op->slots[i - 1]));
    what_if_.Use(op->keys[i - 1]);
  }
  Complete(op);
}

void BlockStore::Cancel(AcquireOp* op) {
  if (op->completed) return;
  if (op->waiting) RP_CHECK(RemoveWaiting(&waiting_acquires_, op));
  if (op->next_key < op->keys.size() && !op->stopped) {
    op->outcomes[op->next_key] = Outcome::kTimeout;
    op->stopped = true;
  }
  for (Load* load : active_loads_) {
    std::erase_if(load->waiters, [op](const Load::Waiter& waiter) {
      if (waiter.op != op) return false;
      op->outcomes[waiter.key] = Outcome::kTimeout;
      --op->pending;
      return true;
    });
  }
  op->stopped = true;
  CompleteIfDone(op);
}

void BlockStore::Release(uint32_t slot) { UnpinSlot(slot); }

// ---- Loads ------------------------------------------------------------------------------------

BlockStore::Load* BlockStore::FindLoad(const BlockKey& key) {
  for (Load* load : active_loads_) {
    if (load->key == key) return load;
  }
  RP_CHECK(false);
  return nullptr;
}

void BlockStore::FinishLoad(Load* load, int32_t result) {
  Outcome outcome = Outcome::kIo;
  if (result == 0) outcome = VerifyRecord(load->record, load->key);
  // Its tail may have been zeroed under the read: that says nothing about the disk.
  if (load->removed) outcome = Outcome::kNotFound;
  std::erase(active_loads_, load);
  progress_ = true;

  if (outcome == Outcome::kOk) {
    PublishLoad(load);
  } else {
    if (outcome == Outcome::kIo) {
      ++counts_.load_errors;
    } else if (outcome != Outcome::kNotFound) {
      ++counts_.failed_checks;
      outcome = Outcome::kCorrupt;
      if (options_.on_failed_check) options_.on_failed_check(load->key, load->location);
    }
    IndexEntry* entry = index_.Find(load->key);
    if (!load->removed && entry != nullptr && (entry->flags & kEntryLoading) != 0) {
      entry->flags &= static_cast<uint8_t>(~kEntryLoading);
      if (entry->ssd_location == load->location) {
        Forget(entry, outcome == Outcome::kIo ? Departure::kIoError : Departure::kFailedCheck);
      }
    }
    slots_->Free(load->slot);
    for (const Load::Waiter& waiter : load->waiters) waiter.op->outcomes[waiter.key] = outcome;
  }

  for (const Load::Waiter& waiter : load->waiters) {
    --waiter.op->pending;
    if (outcome != Outcome::kOk) waiter.op->stopped = true;
  }
  // A waiter that stops may still be in the queue: leave it there, Retry completes it.
  for (const Load::Waiter& waiter : load->waiters) CompleteIfDone(waiter.op);
  load->waiters.clear();
  free_loads_.push_back(load);
}

void BlockStore::PublishLoad(Load* load) {
  IndexEntry* entry = index_.Find(load->key);
  if (entry == nullptr) {  // Its region was reclaimed meanwhile; the bytes are good.
    entry = index_.Insert({.key = load->key,
                           .dram_slot = load->slot,
                           .block_index = load->block_index,
                           .name_space = load->name_space,
                           .flags = load->flags});
    ++NamespaceBlocks(load->name_space);
  }
  entry->flags &= static_cast<uint8_t>(~kEntryLoading);
  if (entry->dram_slot != kNowhere && entry->dram_slot != load->slot) {
    slots_->Free(load->slot);  // Reclaimed, and put or read again meanwhile: one copy is enough.
  } else {
    entry->dram_slot = load->slot;
    slots_->set_key(load->slot, load->key);
    eviction_->Track(Local(load->slot), load->key);
  }
  for (const Load::Waiter& waiter : load->waiters) {
    Grant(waiter.op, waiter.key, entry->dram_slot);
    ++waiter.op->from_ssd;
    ++counts_.acquired_ssd;
  }
}

// ---- Slots ------------------------------------------------------------------------------------

BlockStore::Claim BlockStore::ClaimSlot(uint32_t* slot) {
  for (;;) {
    *slot = slots_->Allocate(SlotPool::Use::kBlock);
    if (*slot != SlotPool::kNone) return Claim::kGot;
    switch (EvictOne()) {
      case Eviction::kFreed:
      case Eviction::kStarted:
        break;
      case Eviction::kBlocked:
        return Claim::kWait;
      case Eviction::kNone:
        return free_appends_.size() < appends_.size() ? Claim::kWait : Claim::kNever;
    }
  }
}

BlockStore::Eviction BlockStore::EvictOne() {
  const uint32_t id = eviction_->Evict();
  if (id == EvictionPolicy::kNoVictim) return Eviction::kNone;
  const uint32_t slot = slots_->first_slot() + id;
  const BlockKey key = slots_->key(slot);
  IndexEntry* entry = index_.Find(key);
  RP_CHECK(entry != nullptr && entry->dram_slot == slot);

  if (entry->ssd_location == kNowhere && log_ != nullptr) {
    const bool queued = (entry->flags & kEntryAppendQueued) != 0;
    const bool wanted =
        queued || (options_.ssd_write == SsdWrite::kDemote && admission_->Admit(key));
    if (wanted) {
      eviction_->Restore(id);  // StartAppend pins it, which sets it aside.
      return StartAppend(entry, nullptr, /*drop_after=*/true) ? Eviction::kStarted
                                                              : Eviction::kBlocked;
    }
    if (options_.ssd_write == SsdWrite::kDemote) ++counts_.admissions_refused;
  }
  ++counts_.dram_evictions;
  entry->dram_slot = kNowhere;
  slots_->Free(slot);
  if (entry->ssd_location == kNowhere) {
    departed_.Remember(key, Departure::kEvictedDram);
    --NamespaceBlocks(entry->name_space);
    index_.Erase(entry);
  }
  return Eviction::kFreed;
}

void BlockStore::PinSlot(uint32_t slot) {
  if (slots_->pins(slot) == 0) eviction_->Untrack(Local(slot));
  slots_->Pin(slot);
}

void BlockStore::UnpinSlot(uint32_t slot) {
  if (slots_->Unpin(slot) > 0) return;
  progress_ = true;
  if (slots_->orphan(slot)) {
    slots_->Free(slot);
  } else {
    eviction_->TrackAgain(Local(slot), slots_->key(slot));
  }
}

void BlockStore::DropDram(IndexEntry* entry) {
  const uint32_t slot = entry->dram_slot;
  if (slot == kNowhere) return;
  entry->dram_slot = kNowhere;
  if (slots_->pins(slot) > 0) {
    slots_->set_orphan(slot);
  } else {
    eviction_->Untrack(Local(slot));
    slots_->Free(slot);
  }
  progress_ = true;
}

void BlockStore::Forget(IndexEntry* entry, Departure why) {
  GiveUpLoads(entry->key);
  departed_.Remember(entry->key, why);
  --NamespaceBlocks(entry->name_space);
  const RegionLog::Location location = entry->ssd_location;
  if (location != kNowhere) --ssd_blocks_;
  DropDram(entry);
  index_.Erase(entry);
  if (location != kNowhere) EraseOnSsd(location);
}

void BlockStore::GiveUpLoads(const BlockKey& key, uint16_t name_space) {
  for (Load* load : active_loads_) {
    if (load->key == key && IsOf(load->name_space, name_space)) load->removed = true;
  }
}

// ---- RegionLog::Listener ----------------------------------------------------------------------

bool BlockStore::IsLive(const BlockKey& key, RegionLog::Location location) {
  const IndexEntry* entry = index_.Find(key);
  return entry != nullptr && entry->ssd_location == location;
}

bool BlockStore::IsHot(const BlockKey& key) {
  IndexEntry* entry = index_.Find(key);
  if (entry == nullptr || entry->frequency < options_.hot_frequency) return false;
  entry->frequency /= 2;  // It has to earn the next stay.
  return true;
}

void BlockStore::OnReclaimed(const BlockKey& key, RegionLog::Location location) {
  IndexEntry* entry = index_.Find(key);
  if (entry == nullptr || entry->ssd_location != location) return;
  ++counts_.ssd_evictions;
  --ssd_blocks_;
  if (entry->dram_slot != kNowhere) {
    entry->ssd_location = kNowhere;
    return;
  }
  departed_.Remember(key, Departure::kEvictedSsd);
  --NamespaceBlocks(entry->name_space);
  index_.Erase(entry);
}

void BlockStore::OnMoved(const BlockKey& key, RegionLog::Location from, RegionLog::Location to) {
  IndexEntry* entry = index_.Find(key);
  if (entry != nullptr && entry->ssd_location == from) {
    entry->ssd_location = to;
  } else {
    EraseOnSsd(to);  // It was removed while it moved.
  }
}

void BlockStore::OnRegionLost(RegionLog::Location first, uint32_t count) {
  std::vector<IndexEntry> lost;
  index_.ForEach([&](const IndexEntry& entry) {
    if (entry.ssd_location != kNowhere && entry.ssd_location - first < count) lost.push_back(entry);
  });
  for (const IndexEntry& entry : lost) OnReclaimed(entry.key, entry.ssd_location);
}

// ---- Turn of the loop -------------------------------------------------------------------------

void BlockStore::Poll() {
  do {
    if (progress_) {
      progress_ = false;
      Retry(&waiting_acquires_);
      Retry(&waiting_puts_);
    }
    DrainAppendQueue();
    if (!waiting_erased_.empty() && NothingToErase()) {
      while (Completion* op = waiting_erased_.Pop()) done_.Push(op);
    }
    if (log_ != nullptr) log_->Poll();
    FifoList<Completion> batch;
    std::swap(batch, done_);
    while (Completion* op = batch.Pop()) op->done(op, 0);
  } while (!done_.empty() || (progress_ && waiting_count_ > 0));
}

bool BlockStore::idle() const {
  return active_loads_.empty() && free_appends_.size() == appends_.size() && waiting_count_ == 0 &&
         done_.empty() && erases_in_flight_ == 0 && syncs_in_flight_ == 0 &&
         append_queue_size_ == 0 && waiting_erased_.empty();
}

BlockStore::Stats BlockStore::stats() const {
  Stats stats = counts_;
  stats.blocks = index_.size();
  stats.index_bytes = index_.bytes();
  stats.dram_slots = slots_->block_slots();
  stats.dram_blocks = slots_->used(SlotPool::Use::kBlock);
  stats.dram_pinned = slots_->pinned();
  stats.ssd_blocks = ssd_blocks_;
  stats.loads_in_flight = static_cast<uint32_t>(active_loads_.size());
  stats.appends_in_flight = static_cast<uint32_t>(appends_.size() - free_appends_.size());
  stats.waiting = waiting_count_;
  return stats;
}

uint64_t& BlockStore::NamespaceBlocks(uint16_t name_space) {
  if (name_space >= namespace_blocks_.size()) namespace_blocks_.resize(name_space + 1u);
  return namespace_blocks_[name_space];
}

uint64_t BlockStore::namespace_blocks(uint16_t name_space) const {
  return name_space < namespace_blocks_.size() ? namespace_blocks_[name_space] : 0;
}

}  // namespace reprise::storage
