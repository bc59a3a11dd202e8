#pragma once

#include <cstdint>
#include <vector>

#include "storage/economics/block_trace.h"

namespace reprise::economics {

// When what was used is used again, in caches without limits: what a TTL does follows from it
// exactly, because a parent is always at least as recent as its child.
class ReuseStudy {
 public:
  explicit ReuseStudy(const BlockTrace& trace);

  // Intervals of up to `upto_ns`, and longer than the bin before: equal ratios from one second on.
  // The last bin has no end.
  struct Bin {
    Nanos upto_ns = 0;
    uint64_t tokens = 0;     // Of hits, by when a request contained their blocks last.
    uint64_t tips = 0;       // Of hits, by their last block.
    uint64_t snapshots = 0;  // Adopted hits with a snapshot at their end, by its last use.
  };
  const std::vector<Bin>& bins() const { return bins_; }
  uint64_t reused_tokens() const { return reused_tokens_; }
  uint64_t hits() const { return hits_; }
  uint64_t distinct_tokens() const { return distinct_tokens_; }

  // Tokens that were used within the last `within_ns`, on average over the trace: its working set.
  // Intervals count as their bin's end.
  double WorkingSetTokens(Nanos within_ns, Nanos span_ns) const;

  // How long snapshots at prompts' ends waited for the hits that ended there, ascending; and those
  // that waited for nothing (the trace's end may hide a later use).
  const std::vector<Nanos>& snapshot_intervals() const { return snapshot_intervals_; }
  uint64_t snapshots_unused() const { return snapshots_unused_; }
  uint64_t fork_hits() const { return fork_hits_; }  // Where no prompt ended: no TTL helps.

  // For one TTL: hits that find their snapshot, and the seconds that snapshots lie there, all
  // together.
  struct AtTtl {
    uint64_t found = 0;
    double snapshot_seconds = 0;
  };
  AtTtl At(Nanos ttl_ns) const;

 private:
  void NoteInterval(Nanos interval_ns, uint64_t tokens);
  Bin& BinFor(Nanos interval_ns);

  std::vector<Bin> bins_;
  std::vector<Nanos> snapshot_intervals_;
  std::vector<double> interval_sums_;  // Seconds, of the first n intervals.
  uint64_t distinct_tokens_ = 0, reused_tokens_ = 0, hits_ = 0, fork_hits_ = 0,
           snapshots_unused_ = 0;
};

}  // namespace reprise::economics
