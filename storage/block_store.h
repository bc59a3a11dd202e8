#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/record/record.h"
#include "protocol/wire/messages.h"
#include "storage/admission_policy.h"
#include "storage/block_index.h"
#include "storage/departed.h"
#include "storage/eviction_policy.h"
#include "storage/region_log.h"
#include "storage/slot_pool.h"
#include "storage/what_if.h"

namespace reprise::storage {

// One shard's blocks over DRAM and SSD: the only owner of where a block is. Publish and evict both
// go through here, so they cannot race.
//
// A block is in the index if and only if it can be read: its bytes are in a DRAM slot, or at an SSD
// location whose write has completed. Immutable once published.
//
//   put:     check header -> copy into a slot -> check payload -> publish (relaxed: done)
//            -> append to the log when admitted or durable (durable: done when synced)
//   acquire: pin the slot; or read from SSD into a slot -> check everything -> publish -> pin
//   evict:   the DRAM policy names an unpinned slot; a block that is not on SSD is appended first
//   when
//            the admission policy wants it, else it is gone
//
// When no slot is free and none can be freed at once, puts and acquires wait in order, bounded by
// `waiting_max`, beyond which they are answered kBusy. Confined to the shard's thread; operations
// complete exactly once, never from inside the call.
class BlockStore final : private RegionLog::Listener {
 public:
  static constexpr uint16_t kAnyNamespace = UINT16_MAX;

  enum class SsdWrite : uint8_t {
    kThrough,  // Append at put, when admitted.
    kDemote,   // Append when evicted from DRAM, when admitted.
  };

  struct Options {
    uint32_t record_bytes = 0;
    std::string dram_eviction = "lru";
    std::string ssd_admission = "all";
    SsdWrite ssd_write = SsdWrite::kThrough;
    // An exact computation may replace a replay-derived block.
    bool replace_replay_derived = true;
    uint32_t loads_max = 64;      // SSD reads in flight.
    uint32_t appends_max = 64;    // SSD writes in flight.
    uint32_t waiting_max = 4096;  // Puts and acquires that wait for a slot.
    uint8_t hot_frequency = 2;    // Hits that make a block outlive its region.
    uint32_t departed_rows = 1u << 16;
    WhatIf::Options what_if;  // Pools of other sizes, for metrics.
    // Quota of a namespace in blocks, in this shard; 0: none. Asked on every put.
    std::function<uint64_t(uint16_t name_space)> quota_blocks;
    // A block that was read from SSD failed its check: for the log, with its identity.
    std::function<void(const BlockKey&, RegionLog::Location)> on_failed_check;
  };

  // `log` may be null: no SSD tier. The log's options need this object as their listener, so it is
  // attached after construction.
  static absl::StatusOr<std::unique_ptr<BlockStore>> Create(const Options& options, SlotPool* slots,
                                                            uint64_t ssd_blocks_max);
  ~BlockStore() override;  // REQUIRES: idle.
  void AttachLog(RegionLog* log) { log_ = log; }
  RegionLog::Listener* listener() { return this; }

  // A block that recovery found on SSD. Later calls for the same key win.
  void Restore(const TrailerEntry& entry, RegionLog::Location location, uint16_t name_space);
  // After the last of them: erases the older copies, so that none comes back when the newer is
  // removed.
  void FinishRestore();

  // ---- Lookup ---------------------------------------------------------------------------------
  enum class Residency : uint8_t { kAbsent = 0, kPending = 1, kDram = 2, kSsd = 3 };
  // Pins nothing, changes nothing. `out` is as long as `keys`. A block of another namespace is
  // absent: who guesses a key must not learn that it is stored.
  void Lookup(std::span<const BlockKey> keys, std::span<Residency> out,
              uint16_t name_space = kAnyNamespace) const;

  // A request asked for these blocks: what pools of other sizes would have had is counted.
  void NoteRequest(std::span<const BlockKey> keys) {
    for (const BlockKey& key : keys) what_if_.Look(key);
  }
  const WhatIf::Counts& what_if() const { return what_if_.counts(); }

  // ---- Acquire
  // ----------------------------------------------------------------------------------- Pins the
  // blocks named by `keys` in DRAM, reading from SSD what is not there. Stops at the first key that
  // fails; everything before and after it that was granted stays granted: the caller releases what
  // it does not use. The arrays are the caller's and live until done.
  struct AcquireOp : Completion {
    std::span<const BlockKey> keys;
    uint16_t name_space = kAnyNamespace;  // Keys of another are not found.
    std::span<uint32_t> slots;            // Out: pinned slot, or kNowhere.
    std::span<Outcome> outcomes;          // Out: kOk or why not; keys not tried say kNotFound.
    uint32_t from_ssd = 0;                // Out.
   private:
    friend class BlockStore;
    uint32_t next_key = 0;
    uint32_t pending = 0;  // Loads that will grant or refuse a key.
    bool stopped = false;
    bool waiting = false;  // In the queue.
    bool completed = false;
  };
  void Acquire(AcquireOp* op);
  // The deadline passed or the client left: completes soon; what is still being read is given up.
  void Cancel(AcquireOp* op);
  // Unpins a slot that an AcquireOp granted.
  void Release(uint32_t slot);

  // ---- Put ------------------------------------------------------------------------------------
  struct PutOp : Completion {
    ConstBytes record;   // record_bytes long, unchanged until done. Untrusted.
    Hash256 name_space;  // What the connection opened; the record must say the same.
    uint16_t name_space_index = 0;
    BlockKey key;  // What the caller routed by; the record must say the same.
    wire::Durability durability = wire::Durability::kRelaxed;
    Outcome outcome = Outcome::kOk;  // Out: kOk (stored), kExists, or why not.
   private:
    friend class BlockStore;
    struct Sync : RegionLog::SyncOp {
      PutOp* put = nullptr;
      BlockStore* store = nullptr;
    };
    // The record's tail as it was when it was checked: the client may still write to `record`.
    std::array<std::byte, kRecordTailBytes> tail;
    bool waiting = false;
    bool stored = false;  // This operation published the block; what is left is durability.
    Sync sync;
  };
  void Put(PutOp* op);
  // Blocks of one chain are best put from its head on when this store has all of them; from its
  // tail on otherwise. Without its head a tail cannot be hit: it should leave first.
  bool puts_head_first() const { return eviction_->follows_parent(); }
  void Cancel(PutOp* op);  // Completes soon with kTimeout if it was still waiting for a slot.

  // ---- Administration
  // ---------------------------------------------------------------------------- Removes blocks
  // now: later lookups miss, leases in use stay valid, SSD tails are zeroed. Returns how many were
  // there.
  uint64_t Remove(std::span<const BlockKey> keys, uint16_t name_space = kAnyNamespace);
  uint64_t RemoveNamespace(uint16_t name_space);
  // Done when no crash can bring back what was removed before: it may lie in writes under way and
  // in a region that is being reclaimed, too. result: 0, or -errno when an erase failed. May take
  // for ever on a failing device.
  void WaitErased(Completion* op);
  void CancelWaitErased(Completion* op);  // Completes soon with -ETIMEDOUT, if it still waited.
  std::vector<BlockKey> Keys(uint16_t name_space, bool any_namespace) const;
  Departure WhyAbsent(const BlockKey& key) const { return departed_.Why(key); }
  const IndexEntry* Find(const BlockKey& key) const { return index_.Find(key); }

  // Retries what waits, starts demotions, polls the log. Once per turn of the shard's loop.
  void Poll();
  // Waits for nothing: true when no operation is queued or in flight.
  bool idle() const;

  struct Stats {
    uint64_t blocks = 0, index_bytes = 0;
    uint32_t dram_blocks = 0, dram_slots = 0, dram_pinned = 0;
    uint64_t ssd_blocks = 0;
    uint64_t puts_stored = 0, puts_existing = 0, puts_rejected = 0, puts_busy = 0, puts_invalid = 0;
    uint64_t acquired_dram = 0, acquired_ssd = 0, acquire_misses = 0, acquire_busy = 0;
    uint64_t loads = 0, load_errors = 0, failed_checks = 0;
    uint64_t dram_evictions = 0, ssd_evictions = 0, admissions_refused = 0, replaced = 0;
    uint32_t loads_in_flight = 0, appends_in_flight = 0, waiting = 0;
  };
  Stats stats() const;
  uint64_t namespace_blocks(uint16_t name_space) const;
  const BlockIndex& index() const { return index_; }

 private:
  struct Load;
  struct Append;

  BlockStore(const Options& options, SlotPool* slots, uint64_t blocks_max,
             std::unique_ptr<EvictionPolicy> eviction, std::unique_ptr<AdmissionPolicy> admission);

  // RegionLog::Listener
  bool IsLive(const BlockKey& key, RegionLog::Location location) override;
  bool IsHot(const BlockKey& key) override;
  void OnReclaimed(const BlockKey& key, RegionLog::Location location) override;
  void OnMoved(const BlockKey& key, RegionLog::Location from, RegionLog::Location to) override;
  void OnRegionLost(RegionLog::Location first, uint32_t count) override;

  // Null when there is none in that namespace.
  IndexEntry* FindIn(const BlockKey& key, uint16_t name_space);
  bool IsWaiting(const BlockKey& key, uint16_t name_space) const;  // A put of it waits for a slot.

  enum class Claim : uint8_t {
    kGot,
    kWait,   // A write or a load in flight will free something.
    kNever,  // Everything is pinned: only a client can free a slot.
  };
  Claim ClaimSlot(uint32_t* slot);
  enum class Eviction : uint8_t { kFreed, kStarted, kBlocked, kNone };
  Eviction EvictOne();

  // Each advances an operation as far as it gets now; false when it must wait for progress.
  bool Advance(AcquireOp* op);
  bool Advance(PutOp* op);
  template <typename Op>
  void Enqueue(FifoList<Op>* queue, Op* op);
  template <typename Op>
  void Retry(FifoList<Op>* queue);
  template <typename Op>
  bool RemoveWaiting(FifoList<Op>* queue, Op* op);

  enum class KeyStep : uint8_t { kNext, kWait, kStop };
  KeyStep AcquireKey(AcquireOp* op, uint32_t i);
  KeyStep AcquireFromSsd(AcquireOp* op, uint32_t i, IndexEntry* entry);
  void Grant(AcquireOp* op, uint32_t i, uint32_t slot);
  void CompleteIfDone(AcquireOp* op);
  Load* FindLoad(const BlockKey& key);
  void FinishLoad(Load* load, int32_t result);
  void PublishLoad(Load* load);

  Outcome CheckPut(PutOp* op);
  bool PutExisting(PutOp* op, IndexEntry* entry);
  bool StoreRecord(PutOp* op, uint32_t slot);  // As Advance.
  // The DRAM slot of the block before it, for the eviction policy.
  uint32_t ParentOf(const RecordHeader& header) const;
  bool MakeDurable(PutOp* op, IndexEntry* entry);
  void Finish(PutOp* op, Outcome outcome);

  bool StartAppend(IndexEntry* entry, PutOp* waiter, bool drop_after);
  void FinishAppend(Append* append, int32_t result);
  void QueueAppend(IndexEntry* entry);
  void DrainAppendQueue();

  void PinSlot(uint32_t slot);
  void UnpinSlot(uint32_t slot);
  void DropDram(IndexEntry* entry);  // The slot is freed, or orphaned while pinned.
  // Erases the entry, and zeroes the tail on SSD: nothing is left that a recovery could find.
  void Forget(IndexEntry* entry, Departure why);
  void GiveUpLoads(const BlockKey& key,
                   uint16_t name_space = kAnyNamespace);  // What is being read must not come back.
  bool NothingToErase() const;
  void TellWaitErased(int32_t io_result);
  void EraseOnSsd(RegionLog::Location location);
  void Complete(Completion* op) { done_.Push(op); }
  uint32_t Local(uint32_t slot) const { return slot - slots_->first_slot(); }
  uint64_t& NamespaceBlocks(uint16_t name_space);

  Options options_;
  SlotPool* slots_;
  RegionLog* log_ = nullptr;
  BlockIndex index_;
  std::unique_ptr<EvictionPolicy> eviction_;
  std::unique_ptr<AdmissionPolicy> admission_;
  DepartedBlocks departed_;
  WhatIf what_if_;
  std::vector<uint64_t> namespace_blocks_;

  std::vector<std::unique_ptr<Load>> loads_;
  std::vector<Load*> free_loads_;
  std::vector<Load*> active_loads_;
  std::vector<std::unique_ptr<Append>> appends_;
  std::vector<Append*> free_appends_;
  // Blocks to be appended when a write is free, oldest first: a ring as large as the DRAM tier.
  std::vector<BlockKey> append_queue_;
  size_t append_queue_head_ = 0;
  size_t append_queue_size_ = 0;

  FifoList<AcquireOp> waiting_acquires_;
  FifoList<PutOp> waiting_puts_;
  uint32_t waiting_count_ = 0;
  uint64_t ssd_blocks_ = 0;                      // Entries with a place on SSD.
  std::vector<RegionLog::Location> superseded_;  // Found by recovery, and found again later.
  FifoList<Completion> waiting_erased_;
  uint32_t erases_in_flight_ = 0;
  uint32_t syncs_in_flight_ = 0;
  bool progress_ = false;      // Something was freed since the last Retry.
  FifoList<Completion> done_;  // Completed, to be called from Poll.
  Stats counts_;
};

}  // namespace reprise::storage
