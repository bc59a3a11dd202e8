#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "storage/admission_policy.h"
#include "storage/economics/region_model.h"
#include "storage/eviction_policy.h"

namespace reprise::economics {

// One machine's blocks over HBM, DRAM and SSD without their bytes: storage/block_store.h, with the
// same policy objects asked in the same order, every write and read done at once, one shard and one
// client. Blocks are numbers below `blocks_max`, and a number names its whole prefix. One thread.
//
// HBM is an engine's own pool in front: what is computed or loaded enters it, least recently used
// leaves, and what it holds is not asked of the store.
class BlockModel final : private RegionModel::Owner {
 public:
  struct Options {
    uint32_t record_bytes = 0;
    uint64_t hbm_bytes = 0;
    uint64_t dram_bytes = 0;
    std::string dram_eviction = "lru";
    uint64_t ssd_bytes = 0;  // 0: no SSD.
    uint64_t region_bytes = 64_MiB;
    bool demote = false;  // To SSD when evicted from DRAM, not when put.
    std::string ssd_admission = "all";
    std::string ssd_eviction = "fifo";
    uint32_t reinsert_percent = 10;
    bool durable = false;  // Puts ask for SSD whatever the admission policy says.
    bool replace_replay_derived = true;
    uint32_t lease_blocks = 256;  // Loaded at a time, the end of the prefix first.
    uint32_t put_blocks = 64;     // Put at a time.
  };

  static absl::StatusOr<std::unique_ptr<BlockModel>> Create(const Options& options,
                                                            uint32_t blocks_max);

  // The leading blocks that are held, by where each would come from. Changes nothing.
  struct Hit {
    uint32_t blocks = 0;
    uint32_t hbm = 0, dram = 0, ssd = 0;
  };
  Hit Lookup(std::span<const uint32_t> blocks) const;

  // Uses the leading `hit` blocks: SSD's are read into DRAM. Fewer than asked when DRAM is too
  // small for a lease.
  uint32_t Load(std::span<const uint32_t> blocks, uint32_t hit);

  // Stores blocks [from, end), which were computed; `replay_derived` as the record's flag.
  void Put(std::span<const uint32_t> blocks, uint32_t from, bool replay_derived);

  struct Counts {
    uint64_t puts_stored = 0, puts_existing = 0, puts_busy = 0, replaced = 0;
    uint64_t dram_evictions = 0, ssd_evictions = 0, admissions_refused = 0;
    uint64_t loads = 0;             // Records read from SSD.
    uint64_t evicted_for_good = 0;  // Blocks that were in no tier any more.
    uint64_t ssd_bytes_written = 0, ssd_bytes_read = 0;
    uint64_t ssd_reclaimed_regions = 0, ssd_reinserted = 0;
  };
  Counts counts() const;
  uint32_t dram_blocks() const { return dram_slots_ - static_cast<uint32_t>(free_.size()); }
  uint32_t ssd_blocks() const { return ssd_blocks_; }
  uint64_t dram_slots() const { return dram_slots_; }

 private:
  static constexpr uint32_t kNowhere = UINT32_MAX;
  static constexpr uint8_t kFrequencyMax = 15;
  static constexpr uint8_t kHotFrequency = 2;
  static constexpr uint8_t kReplayDerivedBit = 0x80;
  static constexpr uint32_t kAppendsMax = 64;  // Evicted at once when all must be written first.

  struct Place {
    uint32_t slot = kNowhere;      // In DRAM.
    uint32_t location = kNowhere;  // On SSD.
    bool empty() const { return slot == kNowhere && location == kNowhere; }
  };

  BlockModel(const Options& options, uint32_t blocks_max);

  // RegionModel::Owner
  bool IsLive(uint32_t block, RegionModel::Location location) const override {
    return places_[block].location == location;
  }
  bool IsHot(uint32_t block) override;
  void OnReclaimed(uint32_t block) override;
  void OnMoved(uint32_t block, RegionModel::Location to) override { places_[block].location = to; }

  bool InHbm(uint32_t block) const { return !hbm_slot_.empty() && hbm_slot_[block] != kNowhere; }
  void EnterHbm(uint32_t block, uint32_t parent);
  void TouchHbm(std::span<const uint32_t> blocks);
  std::span<const uint32_t> NotInHbm(std::span<const uint32_t> blocks);
  uint32_t LoadRange(std::span<const uint32_t> blocks, uint32_t begin, uint32_t end);
  void PutBlock(uint32_t block, uint32_t parent, bool replay_derived);
  uint32_t Claim();  // kNowhere: everything is pinned.
  void DropDram(uint32_t block);
  void Forget(uint32_t block);
  void Append(uint32_t block);
  void NoteUse(uint32_t block);
  // Policies hash keys; a block's is its number.
  static BlockKey KeyFor(uint32_t block) { return {.low = block, .high = 1}; }

  Options options_;
  uint32_t dram_slots_ = 0;
  std::unique_ptr<storage::EvictionPolicy> eviction_;
  std::unique_ptr<storage::AdmissionPolicy> admission_;  // Null: everything enters.
  std::unique_ptr<RegionModel> log_;                     // Null: no SSD.
  std::vector<Place> places_;                            // By block.
  std::vector<uint8_t> standing_;  // By block: hits, as IndexEntry counts them, and its flag.
  std::vector<uint32_t> slot_blocks_;
  std::vector<uint32_t> free_;  // DRAM slots.
  uint32_t ssd_blocks_ = 0;

  std::unique_ptr<storage::EvictionPolicy> hbm_eviction_;
  std::vector<uint32_t> hbm_slot_;    // By block; empty: no HBM.
  std::vector<uint32_t> hbm_blocks_;  // By slot.
  std::vector<uint32_t> hbm_free_;

  std::vector<uint32_t> asked_, loading_, pinned_;  // Of the request in work.
  Counts counts_;
};

}  // namespace reprise::economics
