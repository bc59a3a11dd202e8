#include "storage/block_index.h"

namespace reprise::storage {

BlockIndex::BlockIndex(uint64_t blocks_max)
    : blocks_max_(blocks_max),
      capacity_(blocks_max + blocks_max / 3 + 8),
      table_(std::make_unique<IndexEntry[]>(capacity_)) {}

IndexEntry* BlockIndex::Find(const BlockKey& key) {
  for (uint64_t bucket = Bucket(key);; bucket = Next(bucket)) {
    IndexEntry& entry = table_[bucket];
    if (entry.empty()) return nullptr;
    if (entry.key == key) return &entry;
  }
}

IndexEntry* BlockIndex::Insert(const IndexEntry& entry) {
  RP_CHECK(size_ < blocks_max_);
  RP_CHECK(!entry.empty());
  uint64_t bucket = Bucket(entry.key);
  while (!table_[bucket].empty()) {
    RP_CHECK(table_[bucket].key != entry.key);
    bucket = Next(bucket);
  }
  table_[bucket] = entry;
  ++size_;
  return &table_[bucket];
}

void BlockIndex::Erase(IndexEntry* entry) {
  auto hole = static_cast<uint64_t>(entry - table_.get());
  RP_CHECK(hole < capacity_);
  // Move back every later entry of the run that may not be reached past a hole: those whose own
  // bucket does not lie (cyclically) in (hole, at].
  for (uint64_t at = Next(hole); !table_[at].empty(); at = Next(at)) {
    const uint64_t home = Bucket(table_[at].key);
    const bool reachable = hole <= at ? (hole < home && home <= at) : (hole < home || home <= at);
    if (reachable) continue;
    table_[hole] = table_[at];
    hole = at;
  }
  table_[hole] = IndexEntry{};
  --size_;
}

}  // namespace reprise::storage
