#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "protocol/base/types.h"

namespace reprise::storage {

// A bounded memory of blocks that are gone and why, so that `explain` can tell "evicted" from
// "never stored". Direct-mapped by key: a newer departure overwrites an older one. 16 bytes a row.
enum class Departure : uint8_t {
  kUnknown = 0,      // Not remembered: most likely never stored.
  kEvictedDram = 1,  // Left DRAM and was not admitted to SSD.
  kEvictedSsd = 2,   // Its region was reclaimed.
  kFailedCheck = 3,  // A checksum or hash did not match on load.
  kIoError = 4,      // The device failed on load or write.
  kRemoved = 5,      // By `reprise evict` or with its namespace.
};

class DepartedBlocks {
 public:
  explicit DepartedBlocks(uint32_t rows) : rows_(std::max(1u, rows)) {}

  void Remember(const BlockKey& key, Departure why) { Row(key) = {key.low ^ key.high, why}; }
  Departure Why(const BlockKey& key) const {
    const Entry& row = rows_[key.low % rows_.size()];
    return row.check == (key.low ^ key.high) ? row.why : Departure::kUnknown;
  }

 private:
  struct Entry {
    uint64_t check = 0;
    Departure why = Departure::kUnknown;
  };
  Entry& Row(const BlockKey& key) { return rows_[key.low % rows_.size()]; }

  std::vector<Entry> rows_;
};

}  // namespace reprise::storage
