#pragma once

#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gpu/engine/engine.h"
#include "protocol/base/types.h"
#include "server/connection.h"

namespace reprise::server {

// The HBM tier, for an engine whose memory is not the host's: slots for the blocks of sequences,
// found again by their keys.
//
//   free        nobody's, holds nothing
//   pinned      somebody uses it: its block is being computed, loaded or attended to
//   cached      nobody uses it and it has a key: the next sequence with this prefix pins it
//
// A slot has a key from when its block was taken from the store, or offered to it. The store says
// what is a hit; the tier spares the copy. Of the cached ones the least recently used leaves first;
// one that the store did not take is stored out before. What may be pinned at once is reserved
// before, so Take never fails. Requests of the engine reserve, and loans to local engines
// (slot_leases.h), which may have a part of the slots only. The engine's thread.
class HbmTier {
 public:
  struct Counters {
    uint64_t loads = 0;  // Blocks that were copied here,
    uint64_t loaded_bytes = 0;
    uint64_t evictions = 0;   // Blocks that left for others;
    uint64_t stored_out = 0;  // of these, those that the store did not have.
  };
  // A block that the store did not take: what is left of its record.
  struct Unstored {
    Connection::OpenNamespace name_space;
    std::vector<std::byte> tail;  // kRecordTailBytes, sealed.
  };
  // Copies the payload at `data` out, and puts the record. Blocks only for the copy.
  using StoreOut = std::function<void(const std::byte* data, Unstored record)>;

  explicit HbmTier(std::unique_ptr<engine::KvSlots> slots);
  // For this engine; null when it takes host memory. `bytes` of slots; 0: what its memory has left,
  // less windows for so many sequences and a twentieth. Errors name engine.hbm_bytes.
  static absl::StatusOr<std::unique_ptr<HbmTier>> For(const engine::Engine& engine, uint64_t bytes,
                                                      uint32_t sequences_max);
  // Slots that may be lent out of `bytes`, leaving requests some. Errors name
  // engine.hbm_lease_bytes.
  absl::StatusOr<uint32_t> SlotsToLend(uint64_t bytes) const;
  ~HbmTier();
  HbmTier(const HbmTier&) = delete;
  HbmTier& operator=(const HbmTier&) = delete;

  void set_store_out(StoreOut store_out) { store_out_ = std::move(store_out); }
  uint64_t slot_bytes() const { return slots_->slot_bytes(); }
  uint32_t slots() const { return slots_->slots(); }  // Any thread.
  absl::StatusOr<engine::SlotsExport> Export() const { return slots_->Export(); }
  uint32_t reserved() const { return reserved_; }
  uint32_t pinned() const { return pinned_; }
  uint32_t with_key() const { return static_cast<uint32_t>(by_key_.size()); }
  const Counters& counters() const { return counters_; }

  bool Reserve(uint32_t slots) {
    if (slots > this->slots() - reserved_) return false;
    reserved_ += slots;
    return true;
  }
  void Unreserve(uint32_t slots) { reserved_ -= slots; }

  // ---- Slots. All are told by their address in the engine's memory.
  // Pins the block of this key; null when it is not here. `exact_only`: nor when it derives from a
  // replay.
  std::byte* Pin(const BlockKey& key, bool exact_only);
  bool Has(const BlockKey& key) const { return by_key_.contains(key); }
  // A slot for a block that is not here, pinned. REQUIRES: reserved.
  std::byte* Take();
  // Gives a pinned slot its key. Where another slot has it, that one keeps it, unless it derives
  // from a replay and this one does not.
  void Name(std::byte* data, const BlockKey& key, bool replay_derived,
            std::optional<Unstored> unstored = std::nullopt);
  void Unpin(std::byte* data);  // Once for each Pin and Take.
  // The store does not have it (any more). A block that it did not take stays.
  void Forget(const BlockKey& key);
  bool replay_derived(const std::byte* data) const {
    return entries_[slots_->SlotOf(data)].replay_derived;
  }
  uint32_t SlotOf(const std::byte* data) const { return slots_->SlotOf(data); }
  // Another one, from Take on, for other bytes.
  uint32_t generation(const std::byte* data) const {
    return entries_[slots_->SlotOf(data)].generation;
  }

  // ---- Copies, which run beside the engine's steps.
  struct Copy {
    std::byte* data = nullptr;  // A pinned slot.
    std::byte* host = nullptr;  // slot_bytes(); quiet until `then` was called.
  };
  // `then` is called by Poll. Who pins a slot that is being loaded waits for AfterLoads.
  using Then = std::function<void(const absl::Status&)>;
  void Load(std::span<const Copy> copies, Then then);
  void Store(std::span<const Copy> copies, Then then);
  // When all loads are done that were queued so far for these slots; at once when they are.
  void AfterLoads(std::span<std::byte* const> slots, Then then);
  absl::Status Clear(std::span<std::byte* const> slots);
  // Calls those whose copies are done.
  void Poll();
  bool copying() const { return !loads_.empty() || !stores_.empty(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct KeyHash {
    size_t operator()(const BlockKey& key) const { return key.low; }
  };
  struct Entry {
    uint32_t pins = 0;
    uint32_t generation = 0;
    bool has_key = false;
    bool replay_derived = false;
    BlockKey key;
    uint64_t load = 0;                      // The last load into it.
    uint32_t newer = kNone, older = kNone;  // Cached: its neighbours by use.
    std::unique_ptr<Unstored> unstored;
  };
  struct Waiting {
    uint64_t number;
    Then then;
  };

  uint32_t Evict();
  void Link(uint32_t slot);
  void Unlink(uint32_t slot);
  void DropKey(uint32_t slot);
  std::vector<engine::SlotCopy> CopiesOf(std::span<const Copy> copies) const;
  void PollQueue(std::deque<Waiting>* queue, bool loads);

  std::unique_ptr<engine::KvSlots> slots_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_;
  absl::flat_hash_map<BlockKey, uint32_t, KeyHash> by_key_;
  uint32_t newest_ = kNone, oldest_ = kNone;
  uint32_t reserved_ = 0, pinned_ = 0;
  std::deque<Waiting> loads_, stores_;  // In the order of their numbers.
  StoreOut store_out_;
  Counters counters_;
};

}  // namespace reprise::server
