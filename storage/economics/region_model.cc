#include "storage/economics/region_model.h"

#include <algorithm>

#include "protocol/base/check.h"

namespace reprise::economics {

absl::StatusOr<std::unique_ptr<RegionModel>> RegionModel::Create(const Options& options,
                                                                 Owner* owner) {
  std::unique_ptr<storage::EvictionPolicy> policy;
  if (options.eviction != "fifo") {
    RP_ASSIGN(policy, storage::MakeEvictionPolicy(options.eviction, options.region_count));
  }
  return std::unique_ptr<RegionModel>(new RegionModel(options, owner, std::move(policy)));
}

RegionModel::RegionModel(const Options& options, Owner* owner,
                         std::unique_ptr<storage::EvictionPolicy> policy)
    : options_(options),
      owner_(owner),
      policy_(std::move(policy)),
      regions_(options.region_count),
      sequence_(options.region_count) {
  for (uint32_t region = 0; region < options.region_count; ++region) free_.push_back(region);
}

// A region for new blocks is opened only while another stays free for what reclaim re-inserts, and
// opening one starts the reclaim that makes up for it (RegionLog::Impl::UserTrailer,
// StartReclaimIfDue).
RegionModel::Location RegionModel::Append(uint32_t block) {
  // Re-insertion may open one.
  while (open_ == kNoRegion && free_.size() < 2) Reclaim();
  if (open_ == kNoRegion) Open();
  ++counts_.appended;
  const Location location = Write(block);
  const auto count = static_cast<uint32_t>(regions_.size());
  const uint32_t target = std::clamp(options_.free_regions_min, 1u, std::max(1u, count / 4));
  while (free_.size() < target &&
         (policy_ == nullptr ? !sealed_.empty() : policy_->tracked() > 0)) {
    Reclaim();
  }
  return location;
}

void RegionModel::Touch(Location location) {
  const uint32_t region = location / options_.geometry.slots;
  // The open region is not tracked yet.
  if (policy_ != nullptr && region != open_) policy_->Touch(region);
}

void RegionModel::Open() {
  RP_CHECK(!free_.empty());
  open_ = free_.front();
  free_.pop_front();
  sequence_[open_] = next_sequence_++;
  regions_[open_].clear();
  counts_.bytes_written += kPageBytes;
}

RegionModel::Location RegionModel::Write(uint32_t block) {
  std::vector<uint32_t>& slots = regions_[open_];
  const Location location = open_ * options_.geometry.slots + static_cast<uint32_t>(slots.size());
  slots.push_back(block);
  counts_.bytes_written += options_.geometry.record_bytes;
  if (slots.size() == options_.geometry.slots) {
    counts_.bytes_written += options_.geometry.entries_bytes() + kPageBytes;
    if (policy_ != nullptr) {
      policy_->Track(open_, {.low = sequence_[open_], .high = open_});
    } else {
      sealed_.push_back(open_);
    }
    open_ = kNoRegion;
  }
  return location;
}

uint32_t RegionModel::Victim() {
  if (policy_ != nullptr) return policy_->Evict();
  RP_CHECK(!sealed_.empty());
  const uint32_t region = sealed_.front();
  sealed_.pop_front();
  return region;
}

void RegionModel::Reclaim() {
  const uint32_t region = Victim();
  RP_CHECK(region < regions_.size());
  counts_.bytes_read += options_.geometry.entries_bytes();
  uint32_t budget = options_.geometry.slots * options_.reinsert_percent_max / 100;
  const bool rounds_to_none = budget == 0 && options_.reinsert_percent_max > 0;
  if (rounds_to_none && options_.geometry.slots > 1) budget = 1;
  for (uint32_t slot = 0; slot < regions_[region].size(); ++slot) {
    const uint32_t block = regions_[region][slot];
    if (!owner_->IsLive(block, region * options_.geometry.slots + slot)) continue;
    if (budget > 0 && (open_ != kNoRegion || !free_.empty()) && owner_->IsHot(block)) {
      --budget;
      if (open_ == kNoRegion) Open();
      counts_.bytes_read += options_.geometry.record_bytes;
      ++counts_.reinserted;
      owner_->OnMoved(block, Write(block));
    } else {
      owner_->OnReclaimed(block);
    }
  }
  regions_[region].clear();
  ++counts_.reclaimed_regions;
  free_.push_back(region);
}

}  // namespace reprise::economics
