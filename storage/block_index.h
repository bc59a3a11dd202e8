#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/base/types.h"

namespace reprise::storage {

inline constexpr uint32_t kNowhere = UINT32_MAX;

// What a shard knows of one block: 32 bytes.
struct IndexEntry {
  BlockKey key;
  uint32_t dram_slot = kNowhere;     // Arena slot.
  uint32_t ssd_location = kNowhere;  // Region * slots per region + slot, in the shard's file.
  uint32_t block_index = 0;          // Position in its chain.
  uint16_t name_space = 0;           // Index in the NamespaceTable.
  uint8_t flags = 0;                 // RecordFlag bits 0..1, EntryFlag.
  uint8_t frequency = 0;  // Saturating hits since it was last aged; hot blocks outlive regions.

  bool empty() const { return dram_slot == kNowhere && ssd_location == kNowhere; }
};
static_assert(sizeof(IndexEntry) == 32);

enum EntryFlag : uint8_t {
  kEntryAppendQueued = 1u << 5,  // Waits for its turn to be written to SSD.
  kEntryAppending = 1u << 6,     // On its way to SSD.
  kEntryLoading = 1u << 7,       // On its way from SSD.
};

// Open addressing with linear probing over a fixed table; deletion shifts back, so there are no
// tombstones and no decay. Keys are prefixes of SHA-256, so their low bits are the hash.
//
// Sized once for `blocks_max` at a load of 3/4: 42.7 bytes a block. Pointers are valid until the
// next Insert or Erase. Confined to the shard's thread.
class BlockIndex {
 public:
  explicit BlockIndex(uint64_t blocks_max);

  IndexEntry* Find(const BlockKey& key);
  const IndexEntry* Find(const BlockKey& key) const {
    return const_cast<BlockIndex*>(this)->Find(key);
  }
  // Starts the fetch of the cache line where Find(key) will look first.
  void Prefetch(const BlockKey& key) const { __builtin_prefetch(&table_[Bucket(key)]); }
  // REQUIRES: not present, size() < blocks_max(), `entry` not empty.
  IndexEntry* Insert(const IndexEntry& entry);
  // REQUIRES: `entry` came from Find or Insert and nothing was changed since.
  void Erase(IndexEntry* entry);

  uint64_t size() const { return size_; }
  uint64_t blocks_max() const { return blocks_max_; }
  uint64_t bytes() const { return capacity_ * sizeof(IndexEntry); }

  // Every entry, in table order. `visit(const IndexEntry&)`; must not insert or erase.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint64_t i = 0; i < capacity_; ++i) {
      if (!table_[i].empty()) visit(table_[i]);
    }
  }

 private:
  uint64_t Bucket(const BlockKey& key) const {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(key.low) * capacity_) >> 64);
  }
  uint64_t Next(uint64_t bucket) const { return bucket + 1 == capacity_ ? 0 : bucket + 1; }

  uint64_t blocks_max_;
  uint64_t capacity_;
  uint64_t size_ = 0;
  std::unique_ptr<IndexEntry[]> table_;
};

}  // namespace reprise::storage
