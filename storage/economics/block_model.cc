#include "storage/economics/block_model.h"

#include <algorithm>

#include "protocol/base/check.h"
#include "protocol/base/units.h"

namespace reprise::economics {
namespace {

using storage::EvictionPolicy;

uint32_t SlotsFor(uint64_t bytes, uint32_t record_bytes, uint32_t blocks_max) {
  // More than there are blocks would never be used.
  return static_cast<uint32_t>(std::min<uint64_t>(bytes / record_bytes, blocks_max));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlockModel>> BlockModel::Create(const Options& options,
                                                               uint32_t blocks_max) {
  RP_CHECK(options.record_bytes > 0);
  std::unique_ptr<BlockModel> model(new BlockModel(options, blocks_max));
  RP_ASSIGN(model->eviction_,
            storage::MakeEvictionPolicy(options.dram_eviction, std::max(1u, model->dram_slots_)));
  const uint32_t hbm_slots = SlotsFor(options.hbm_bytes, options.record_bytes, blocks_max);
  if (hbm_slots > 0) {
    RP_ASSIGN(model->hbm_eviction_, storage::MakeEvictionPolicy("lru", hbm_slots));
    model->hbm_slot_.assign(blocks_max, kNowhere);
    model->hbm_blocks_.resize(hbm_slots);
    for (uint32_t slot = hbm_slots; slot > 0; --slot) model->hbm_free_.push_back(slot - 1);
  }
  // As BlockStore::Create: the sketch is as large as both tiers.
  const storage::RegionGeometry cut =
      storage::CutRegion(options.record_bytes, options.region_bytes);
  const uint64_t regions = options.ssd_bytes / options.region_bytes;
  const uint64_t tiers = options.dram_bytes / options.record_bytes + regions * cut.slots;
  RP_ASSIGN(auto admission,
            storage::MakeAdmissionPolicy(options.ssd_admission,
                                         std::clamp<uint64_t>(tiers, 1, uint64_t{UINT32_MAX} - 1)));
  if (options.ssd_admission != "all") model->admission_ = std::move(admission);
  if (options.ssd_bytes == 0) return model;
  if (regions < 3 || cut.slots == 0) {
    return InvalidArgument("an SSD of " + FormatBytes(options.ssd_bytes) + " holds " +
                           std::to_string(regions) + " regions of " +
                           FormatBytes(options.region_bytes) +
                           " and needs 3: give it more, smaller regions, or 0");
  }
  RP_ASSIGN(model->log_, RegionModel::Create({.geometry = cut,
                                              .region_count = static_cast<uint32_t>(regions),
                                              .eviction = options.ssd_eviction,
                                              .reinsert_percent_max = options.reinsert_percent},
                                             model.get()));
  return model;
}

BlockModel::BlockModel(const Options& options, uint32_t blocks_max)
    : options_(options),
      dram_slots_(SlotsFor(options.dram_bytes, options.record_bytes, blocks_max)),
      places_(blocks_max),
      standing_(blocks_max),
      slot_blocks_(dram_slots_, kNowhere) {
  free_.reserve(dram_slots_);
  for (uint32_t slot = dram_slots_; slot > 0; --slot) free_.push_back(slot - 1);
}

BlockModel::Hit BlockModel::Lookup(std::span<const uint32_t> blocks) const {
  Hit hit;
  for (const uint32_t block : blocks) {
    const Place place = places_[block];
    if (InHbm(block)) {
      ++hit.hbm;
    } else if (place.slot != kNowhere) {
      ++hit.dram;
    } else if (place.location != kNowhere) {
      ++hit.ssd;
    } else {
      break;
    }
    ++hit.blocks;
  }
  return hit;
}

// ---- Load --------------------------------------------------------------------------------------

uint32_t BlockModel::Load(std::span<const uint32_t> blocks, uint32_t hit) {
  const std::span<const uint32_t> asked = NotInHbm(blocks.first(hit));
  uint32_t held = hit;
  for (auto end = static_cast<uint32_t>(asked.size()); end > 0;) {
    const uint32_t begin = (end - 1) / options_.lease_blocks * options_.lease_blocks;
    const uint32_t stop = LoadRange(asked, begin, end);
    if (stop < end) {
      held = static_cast<uint32_t>(std::find(blocks.begin(), blocks.end(), asked[stop]) -
                                   blocks.begin());
    }
    end = begin;
  }
  TouchHbm(blocks.first(held));
  return held;
}

std::span<const uint32_t> BlockModel::NotInHbm(std::span<const uint32_t> blocks) {
  if (hbm_slot_.empty()) return blocks;
  asked_.clear();
  for (const uint32_t block : blocks) {
    if (!InHbm(block)) asked_.push_back(block);
  }
  return asked_;
}

// One lease: BlockStore::Acquire. Returns `end`, or where the lease ends early.
uint32_t BlockModel::LoadRange(std::span<const uint32_t> blocks, uint32_t begin, uint32_t end) {
  bool all_in_dram = true;
  for (uint32_t i = begin; i < end; ++i) {
    NoteUse(blocks[i]);
    all_in_dram = all_in_dram && places_[blocks[i]].slot != kNowhere;
  }
  if (all_in_dram) {
    for (uint32_t i = end; i > begin; --i) eviction_->Touch(places_[blocks[i - 1]].slot);
    return end;
  }
  // What the lease holds is set aside while slots for the rest are claimed.
  pinned_.clear();
  loading_.clear();
  uint32_t stop = begin;
  for (; stop < end; ++stop) {
    const uint32_t block = blocks[stop];
    if (places_[block].slot != kNowhere) {
      eviction_->Untrack(places_[block].slot);
      pinned_.push_back(block);
      continue;
    }
    if (places_[block].location == kNowhere) break;  // Evicted for a block before it.
    // Claiming a slot may write, reclaim a region, and take this very block from the SSD.
    const uint32_t slot = Claim();
    if (slot == kNowhere) break;
    if (places_[block].location == kNowhere) {
      free_.push_back(slot);
      break;
    }
    ++counts_.loads;
    log_->Touch(places_[block].location);
    slot_blocks_[slot] = block;
    loading_.push_back(block);
    places_[block].slot = slot;
  }
  for (const uint32_t block : loading_) eviction_->Track(places_[block].slot, KeyFor(block));
  for (uint32_t i = stop; i > begin; --i) eviction_->Touch(places_[blocks[i - 1]].slot);
  for (const uint32_t block : pinned_) eviction_->TrackAgain(places_[block].slot, KeyFor(block));
  return stop;
}

void BlockModel::NoteUse(uint32_t block) {
  if (admission_ != nullptr) admission_->Record(KeyFor(block));
  uint8_t& standing = standing_[block];
  if ((standing & kFrequencyMax) < kFrequencyMax) ++standing;
}

// ---- Put ---------------------------------------------------------------------------------------

void BlockModel::Put(std::span<const uint32_t> blocks, uint32_t from, bool replay_derived) {
  const auto count = static_cast<uint32_t>(blocks.size());
  const auto put = [&](uint32_t i) {
    const uint32_t parent = i == 0 ? kNowhere : blocks[i - 1];
    PutBlock(blocks[i], parent, replay_derived);
    EnterHbm(blocks[i], parent);
  };
  if (eviction_->follows_parent()) {
    for (uint32_t i = from; i < count; ++i) put(i);
    return;
  }
  for (uint32_t begin = from; begin < count; begin += options_.put_blocks) {
    for (uint32_t i = std::min(count, begin + options_.put_blocks); i > begin; --i) put(i - 1);
  }
}

void BlockModel::PutBlock(uint32_t block, uint32_t parent, bool replay_derived) {
  if (admission_ != nullptr) admission_->Record(KeyFor(block));
  Place& place = places_[block];
  if (!place.empty()) {
    const bool better = (standing_[block] & kReplayDerivedBit) != 0 && !replay_derived;
    if (!better || !options_.replace_replay_derived) {
      ++counts_.puts_existing;
      if (options_.durable && log_ != nullptr && place.location == kNowhere) Append(block);
      return;
    }
    ++counts_.replaced;
    Forget(block);
  }
  const uint32_t slot = Claim();
  if (slot == kNowhere) {
    ++counts_.puts_busy;
    return;
  }
  ++counts_.puts_stored;
  place.slot = slot;
  slot_blocks_[slot] = block;
  standing_[block] = replay_derived ? kReplayDerivedBit : 0;
  const uint32_t parent_slot = parent == kNowhere ? kNowhere : places_[parent].slot;
  eviction_->Track(slot, KeyFor(block), parent_slot);
  if (log_ == nullptr) return;
  if (options_.durable) return Append(block);
  if (options_.demote) return;
  if (admission_ == nullptr || admission_->Admit(KeyFor(block))) return Append(block);
  ++counts_.admissions_refused;
}

// BlockStore::ClaimSlot and EvictOne. Blocks that must be written first leave many at a time: their
// writes are all on the way before the first slot is free.
uint32_t BlockModel::Claim() {
  for (uint32_t appends = 0; free_.empty() || appends > 0;) {
    const uint32_t slot = appends == kAppendsMax ? EvictionPolicy::kNoVictim : eviction_->Evict();
    if (slot == EvictionPolicy::kNoVictim) break;
    const uint32_t block = slot_blocks_[slot];
    bool written = false;
    if (places_[block].location == kNowhere && log_ != nullptr && options_.demote) {
      if (admission_ == nullptr || admission_->Admit(KeyFor(block))) {
        Append(block);
        written = true;
        ++appends;
      } else {
        ++counts_.admissions_refused;
      }
    }
    ++counts_.dram_evictions;
    places_[block].slot = kNowhere;
    free_.push_back(slot);
    if (places_[block].empty()) ++counts_.evicted_for_good;
    if (!written) break;
  }
  if (free_.empty()) return kNowhere;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void BlockModel::Append(uint32_t block) {
  const RegionModel::Location location = log_->Append(block);
  places_[block].location = location;
  ++ssd_blocks_;
}

void BlockModel::Forget(uint32_t block) {
  Place& place = places_[block];
  if (place.slot != kNowhere) {
    eviction_->Untrack(place.slot);
    free_.push_back(place.slot);
  }
  if (place.location != kNowhere) --ssd_blocks_;
  place = {};
  standing_[block] = 0;
}

bool BlockModel::IsHot(uint32_t block) {
  const uint8_t frequency = standing_[block] & kFrequencyMax;
  if (frequency < kHotFrequency) return false;
  standing_[block] = static_cast<uint8_t>((standing_[block] & kReplayDerivedBit) | frequency / 2);
  return true;
}

void BlockModel::OnReclaimed(uint32_t block) {
  ++counts_.ssd_evictions;
  --ssd_blocks_;
  places_[block].location = kNowhere;
  if (places_[block].slot != kNowhere) return;
  standing_[block] = 0;
  ++counts_.evicted_for_good;
}

BlockModel::Counts BlockModel::counts() const {
  Counts counts = counts_;
  counts.ssd_bytes_read = counts.loads * options_.record_bytes;
  if (log_ == nullptr) return counts;
  counts.ssd_bytes_written = log_->counts().bytes_written;
  counts.ssd_bytes_read += log_->counts().bytes_read;
  counts.ssd_reclaimed_regions = log_->counts().reclaimed_regions;
  counts.ssd_reinserted = log_->counts().reinserted;
  return counts;
}

// ---- HBM ---------------------------------------------------------------------------------------

void BlockModel::EnterHbm(uint32_t block, uint32_t parent) {
  if (hbm_slot_.empty() || hbm_slot_[block] != kNowhere) return;
  if (hbm_free_.empty()) {
    const uint32_t victim = hbm_eviction_->Evict();
    hbm_slot_[hbm_blocks_[victim]] = kNowhere;
    hbm_free_.push_back(victim);
  }
  const uint32_t slot = hbm_free_.back();
  hbm_free_.pop_back();
  hbm_slot_[block] = slot;
  hbm_blocks_[slot] = block;
  hbm_eviction_->Track(slot, KeyFor(block), parent == kNowhere ? kNowhere : hbm_slot_[parent]);
}

// From the last to the first, so that the head is the newest.
void BlockModel::TouchHbm(std::span<const uint32_t> blocks) {
  if (hbm_slot_.empty()) return;
  for (size_t i = blocks.size(); i > 0; --i) {
    const uint32_t block = blocks[i - 1];
    if (hbm_slot_[block] != kNowhere) {
      hbm_eviction_->Touch(hbm_slot_[block]);
    } else {
      EnterHbm(block, kNowhere);
    }
  }
}

}  // namespace reprise::economics
