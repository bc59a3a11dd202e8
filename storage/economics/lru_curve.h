#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "storage/economics/reference.h"

namespace reprise::economics {

// The hit tokens of an LRU cache of every capacity, from one pass over a trace (Mattson's stack
// distances), for ReferencePolicy::kLru.
//
// A block hits when its place in the order of age, counted from 1, is within the capacity. Blocks
// of one request lie there in a row, in order of depth, and a later request that contains one of
// them contains all that are nearer the head: so what is left of a request's blocks is always its
// end, and the place of the first that is used again gives those of all. One look-up for each such
// group, not for each block. 4 bytes a block, and 16 a request.
class LruCurve {
 public:
  void Add(const BlockRequest& request);

  // From this many blocks on, a cache misses nothing but first uses.
  uint64_t capacity_max() const { return differences_.size() - 1; }
  // Of a cache of `capacity` blocks.
  uint64_t HitTokens(uint64_t capacity) const;
  uint64_t input_tokens() const { return input_tokens_; }

 private:
  static constexpr uint32_t kNever = UINT32_MAX;

  // Sums of counts by request, in a Fenwick tree.
  void Change(uint32_t request, int64_t by);
  uint64_t CountFrom(uint32_t request) const;  // Of it and all later ones.
  void AddRequest(uint64_t blocks);

  std::vector<uint32_t> last_request_;  // By block; kNever: not seen.
  std::vector<uint64_t> counts_;        // By request: blocks that were used by it last.
  std::vector<int64_t> tree_ = {0};
  uint64_t total_ = 0;
  uint64_t input_tokens_ = 0;
  // Tokens of hits by place, as differences until somebody asks.
  mutable std::vector<uint64_t> differences_ = std::vector<uint64_t>(2);
  mutable std::vector<uint64_t> hit_tokens_;
  void Sum() const;
};

}  // namespace reprise::economics
