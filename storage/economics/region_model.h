#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "protocol/base/status.h"
#include "storage/eviction_policy.h"
#include "storage/format.h"

namespace reprise::economics {

// The SSD log of one shard without its bytes: storage/region_log.h, with every write and every
// reclaim done at once. Blocks are numbers. One thread.
class RegionModel {
 public:
  using Location = uint32_t;  // Region * slots + slot.
  static constexpr Location kNowhere = UINT32_MAX;

  // What RegionLog::Listener is asked and told.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual bool IsLive(uint32_t block, Location location) const = 0;
    virtual bool IsHot(uint32_t block) = 0;
    virtual void OnReclaimed(uint32_t block) = 0;
    virtual void OnMoved(uint32_t block, Location to) = 0;
  };

  struct Options {
    storage::RegionGeometry geometry;
    uint32_t region_count = 0;
    std::string eviction = "fifo";
    uint32_t reinsert_percent_max = 10;
    uint32_t free_regions_min = 2;
  };

  static absl::StatusOr<std::unique_ptr<RegionModel>> Create(const Options& options, Owner* owner);

  Location Append(uint32_t block);
  void Touch(Location location);  // A read.

  struct Counts {
    uint64_t bytes_written = 0, bytes_read = 0;  // Without the reads of Touch.
    uint64_t appended = 0, reclaimed_regions = 0, reinserted = 0;
  };
  const Counts& counts() const { return counts_; }

 private:
  static constexpr uint32_t kNoRegion = UINT32_MAX;

  RegionModel(const Options& options, Owner* owner,
              std::unique_ptr<storage::EvictionPolicy> policy);

  void Open();
  Location Write(uint32_t block);  // Into the open region, which is sealed when full.
  void Reclaim();
  uint32_t Victim();

  Options options_;
  Owner* owner_;
  std::unique_ptr<storage::EvictionPolicy> policy_;  // Null: fifo.
  std::vector<std::vector<uint32_t>> regions_;       // The block in each slot that was written.
  std::deque<uint32_t> free_;
  std::deque<uint32_t> sealed_;  // Oldest first; for fifo.
  std::vector<uint64_t> sequence_;
  uint64_t next_sequence_ = 1;
  uint32_t open_ = kNoRegion;
  Counts counts_;
};

}  // namespace reprise::economics
