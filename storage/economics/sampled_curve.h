#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "storage/economics/block_numbers.h"
#include "storage/economics/lru_curve.h"

namespace reprise::economics {

// LruCurve of a sample of the blocks (SHARDS, Waldspurger et al., FAST 2015): a block counts when
// the hash of its id is below `rate`, and places in the order of age scale by it. What hits is told
// block by block, because an LRU cache that is touched tail first never keeps a block without its
// parents.
//
// The sample is dealt into groups that know nothing of each other: their spread is the error
// estimate. Memory: that of LruCurve and BlockNumbers, times the rate; and 16 bytes a request and
// group. One thread.
class SampledCurve {
 public:
  static constexpr uint32_t kGroups = 8;
  explicit SampledCurve(double rate);  // (0, 1].

  // The ids of a request's complete blocks.
  void Add(std::span<const uint64_t> ids, uint32_t block_tokens);

  struct Estimate {
    double hit_tokens = 0;
    double standard_error = 0;  // Of hit_tokens.
  };
  // Of a cache of `capacity` blocks.
  Estimate HitTokens(uint64_t capacity) const;
  // From about this many blocks on nothing is gained.
  uint64_t capacity_max() const;
  uint64_t block_tokens_seen() const { return tokens_; }
  uint64_t sampled_blocks() const;

 private:
  struct Group {
    BlockNumbers numbers;
    LruCurve curve;
    std::vector<uint64_t> ids;  // Of the request in work.
    uint64_t tokens = 0;        // Of all its requests.
  };

  double rate_;
  std::vector<Group> groups_;
  uint64_t tokens_ = 0;
};

}  // namespace reprise::economics
