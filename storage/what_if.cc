#include "storage/what_if.h"

#include <algorithm>
#include <cmath>

#include "protocol/base/check.h"

namespace reprise::storage {
namespace {

std::vector<uint32_t> SampledSizes(const WhatIf::Options& options) {
  std::vector<uint32_t> sizes;
  for (const uint64_t capacity : options.capacities) {
    const double sampled = std::round(static_cast<double>(capacity) * options.rate);
    sizes.push_back(static_cast<uint32_t>(std::clamp(sampled, 1.0, 1e9)));
  }
  RP_CHECK(std::is_sorted(sizes.begin(), sizes.end()));
  return sizes;
}

}  // namespace

WhatIf::WhatIf(const Options& options)
    : threshold_(options.rate >= 1 ? UINT64_MAX
                                   : static_cast<uint64_t>(std::ldexp(options.rate, 64))),
      sizes_(SampledSizes(options)),
      // One more than the largest pool: what enters does so before the oldest leaves.
      nodes_(sizes_.empty() ? 0 : sizes_.back() + 1),
      links_(nodes_.size()),
      by_age_(&links_),
      oldest_(sizes_.size(), kNoId),
      index_(std::max<size_t>(nodes_.size(), 1)) {
  for (auto id = static_cast<uint32_t>(nodes_.size()); id > 0; --id) free_.push_back(id - 1);
  counts_.hits.resize(sizes_.size());
}

void WhatIf::CountLook(const BlockKey& key) {
  ++counts_.looked;
  const IndexEntry* entry = index_.Find(key);
  if (entry == nullptr) return;
  for (size_t pool = nodes_[entry->dram_slot].pool; pool < sizes_.size(); ++pool) {
    ++counts_.hits[pool];
  }
}

void WhatIf::MoveToFront(const BlockKey& key) {
  if (sizes_.empty()) return;
  const IndexEntry* entry = index_.Find(key);
  if (entry == nullptr) return Insert(key);
  const uint32_t id = entry->dram_slot;
  const uint32_t newer = by_age_.NewerThan(id);
  if (newer == kNoId) return;  // The newest.
  const uint32_t pool = nodes_[id].pool;
  for (uint32_t& oldest : oldest_) {
    if (oldest == id) oldest = newer;
  }
  by_age_.Remove(id);
  by_age_.AddNewest(id);
  nodes_[id].pool = 0;
  Shift(pool);
}

void WhatIf::Insert(const BlockKey& key) {
  const uint32_t id = free_.back();
  free_.pop_back();
  nodes_[id] = {key, 0};
  by_age_.AddNewest(id);
  index_.Insert({.key = key, .dram_slot = id});
  ++size_;
  uint32_t full = 0;
  while (full < sizes_.size() && oldest_[full] != kNoId) ++full;
  Shift(full);
  for (uint32_t pool = full; pool < sizes_.size() && size_ >= sizes_[pool]; ++pool) {
    oldest_[pool] = by_age_.oldest();
  }
}

void WhatIf::Shift(uint32_t pools) {
  for (uint32_t pool = 0; pool < pools; ++pool) {
    const uint32_t id = oldest_[pool];
    oldest_[pool] = by_age_.NewerThan(id);
    // Pools of one size let go of the same block: it is out of all of them.
    nodes_[id].pool = std::max(nodes_[id].pool, pool + 1);
    if (pool + 1 < sizes_.size()) continue;
    by_age_.Remove(id);
    index_.Erase(index_.Find(nodes_[id].key));
    free_.push_back(id);
    --size_;
  }
}

double WhatIfRate(uint64_t blocks) {
  constexpr double kSampled = 2048;
  return std::clamp(kSampled / static_cast<double>(std::max<uint64_t>(blocks, 1)), 1.0 / 4096,
                    1.0 / 16);
}

}  // namespace reprise::storage
