#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "storage/economics/block_numbers.h"

// Hit rates by definition, in the trace's own blocks: what every other figure is compared with.
//
//  1. Requests in order. A lookup's hit is the longest prefix of the request's blocks that are all
//     resident before it. Hit tokens: blocks x block size, at most the input.
//  2. Then all blocks of the request become resident. Outputs are never stored.
//  3. Nothing must be left to compute: a prompt may hit whole.
namespace reprise::economics {

struct BlockRequest {
  Nanos time_ns = 0;
  uint64_t input_tokens = 0;
  uint32_t block_tokens = 0;
  std::span<const uint32_t> blocks;  // Numbers of the blocks that count, from the prompt's start.

  uint64_t HitTokens(uint64_t hit_blocks) const {
    const uint64_t tokens = hit_blocks * block_tokens;
    return tokens < input_tokens ? tokens : input_tokens;
  }
};

struct Tally {
  uint64_t requests = 0, input_tokens = 0, hit_tokens = 0, hit_requests = 0;

  double hit_rate() const {
    return input_tokens == 0 ? 0
                             : static_cast<double>(hit_tokens) / static_cast<double>(input_tokens);
  }
  void Add(const BlockRequest& request, uint64_t hit_blocks) {
    ++requests;
    input_tokens += request.input_tokens;
    hit_tokens += request.HitTokens(hit_blocks);
    hit_requests += hit_blocks > 0 ? 1 : 0;
  }
};

// A cache of some blocks. Requests are given once, in order.
class ReferenceCache {
 public:
  virtual ~ReferenceCache() = default;
  // Leading blocks that were resident; afterwards all of them are, as far as the policy keeps them.
  virtual uint64_t Serve(std::span<const uint32_t> blocks) = 0;
  virtual uint64_t resident() const = 0;
};

enum class ReferencePolicy : uint8_t {
  // A request is one event: its blocks are touched from the last to the first, so that a chain's
  // head is newer than its tail, and then the oldest leave.
  kLru,
  // Touched from the first to the last, and the oldest leaves at each insertion.
  kLruNaive,
  // As kLru, but a resident block keeps its place.
  kFifo,
  // With the future known: the blocks whose next use is nearest stay, of equals those nearer the
  // head; blocks that are never used again are not kept.
  kBelady,
};
absl::StatusOr<ReferencePolicy> ParseReferencePolicy(std::string_view name);

// `capacity_blocks` 0: without end, whatever the policy. kBelady needs the future: BeladyRun.
std::unique_ptr<ReferenceCache> MakeReferenceCache(ReferencePolicy policy,
                                                   uint64_t capacity_blocks);

// The optimum over a whole trace, which it keeps in memory: 8 bytes a block reference.
class BeladyRun {
 public:
  void Add(std::span<const uint32_t> blocks);
  // The hit blocks of each request.
  std::vector<uint32_t> Run(uint64_t capacity_blocks) const;

 private:
  std::vector<uint32_t> references_;  // Of all requests, one after the other.
  std::vector<uint64_t> begins_ = {0};
  uint32_t blocks_ = 0;
};

// How long ago blocks that hit (without a limit of space) were used last: by any request that
// contains them. The hit rate of a cache that forgets after a time follows exactly.
class ReuseIntervals {
 public:
  // Intervals up to each of `bounds_ns`, ascending, are counted; and all.
  explicit ReuseIntervals(std::vector<Nanos> bounds_ns);
  void Add(const BlockRequest& request);

  const std::vector<Nanos>& bounds() const { return bounds_; }
  uint64_t reused_tokens() const { return reused_tokens_; }
  // Tokens of hits within each bound.
  const std::vector<uint64_t>& tokens_within() const { return tokens_within_; }
  // Requests that hit, and of them those whose last hit block was used within each bound.
  uint64_t tips() const { return tips_; }
  const std::vector<uint64_t>& tips_within() const { return tips_within_; }

 private:
  std::vector<Nanos> bounds_;
  std::vector<Nanos> last_use_;  // By block; kNever: not seen.
  std::vector<uint64_t> tokens_within_, tips_within_;
  uint64_t reused_tokens_ = 0, tips_ = 0;
};

// Windows, with global KV without limit: a checkpoint lies at the end (the last block that counts)
// of every earlier prompt, its age counts from the last request that ended there. Hits of up to 128
// tokens are not adopted. An adopted hit whose last block has no live checkpoint is replayed.
class WindowReference {
 public:
  explicit WindowReference(Nanos ttl_ns) : ttl_ns_(ttl_ns) {}
  void Add(const BlockRequest& request);

  struct Figures {
    uint64_t adopted_hits = 0, found = 0, replays = 0, replay_tokens = 0;
    uint64_t forks = 0;                 // Replays at blocks where no earlier prompt ended.
    uint64_t found_every_position = 0;  // If windows were kept for every block.
    uint64_t live_checkpoints_peak = 0;
  };
  const Figures& figures() const { return figures_; }

 private:
  static constexpr uint32_t kWindow = 128;

  void Expire(Nanos now_ns);

  Nanos ttl_ns_;
  std::vector<Nanos> last_use_, last_end_;  // By block; kNever: not seen.
  std::queue<std::pair<Nanos, uint32_t>> ends_;
  uint64_t live_ = 0;
  Figures figures_;
};

}  // namespace reprise::economics
