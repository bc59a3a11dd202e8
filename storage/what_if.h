#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "storage/block_index.h"
#include "storage/id_list.h"
#include "storage/key_hash.h"

namespace reprise::storage {

// What least-recently-used pools of other sizes would hold, from a sample of the blocks: a block
// belongs to the sample when the hash of its key is below `rate`, and sizes scale by it (SHARDS,
// Waldspurger et al., FAST 2015).
//
// A pool holds what a smaller one holds. So there is one list by age for all of them, with a marker
// at the end of each pool; a use moves a block to the front and shifts the markers before it by
// one: O(pools), no allocation after construction. Some 60 bytes for each sampled block of the
// largest pool. Confined to one thread.
class WhatIf {
 public:
  struct Options {
    double rate = 1;                   // (0, 1].
    std::vector<uint64_t> capacities;  // Of whole pools in blocks, ascending. Empty: nothing.
  };
  explicit WhatIf(const Options& options);

  bool Sampled(const BlockKey& key) const { return HashOf(key) <= threshold_; }
  // A request asked whether it is there.
  void Look(const BlockKey& key) {
    if (Sampled(key)) CountLook(key);
  }
  // It was read or put: every pool has it now.
  void Use(const BlockKey& key) {
    if (Sampled(key)) MoveToFront(key);
  }

  // Of sampled blocks that were looked for, how many each pool would have held.
  struct Counts {
    uint64_t looked = 0;
    std::vector<uint64_t> hits;  // By capacity.
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Node {
    BlockKey key;
    uint32_t pool = 0;  // The smallest that holds it.
  };

  void CountLook(const BlockKey& key);
  void MoveToFront(const BlockKey& key);
  void Insert(const BlockKey& key);
  // After something entered at the front: the pools [0, pools) let go of their oldest.
  void Shift(uint32_t pools);

  uint64_t threshold_;
  std::vector<uint32_t> sizes_;  // Of the pools, in sampled blocks.
  std::vector<Node> nodes_;
  std::vector<IdLinks> links_;
  IdList by_age_;
  std::vector<uint32_t> oldest_;  // Of each pool; kNoId: it is not full.
  std::vector<uint32_t> free_;
  uint32_t size_ = 0;
  BlockIndex index_;  // dram_slot is the node.
  Counts counts_;
};

// The sampling rate for a pool of `blocks`: some two thousand sampled blocks, one in 16 at most.
double WhatIfRate(uint64_t blocks);

}  // namespace reprise::storage
