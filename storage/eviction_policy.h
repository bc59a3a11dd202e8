#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::storage {

// "Who leaves?" A policy sees small dense ids (DRAM slots, SSD regions, simulated blocks) and key
// hashes, never bytes, devices or clocks; the daemon and the simulator use the same objects.
// Ids are below the capacity given at construction. O(1) amortised, no allocation after
// construction. Confined to one thread.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // `id` now holds the block `key` and may be evicted from here on. Not tracked before. `parent`:
  // the id that holds the block before it in its chain, if any does. A block is of no use without
  // the one before it, so lru lets it leave first: it enters just behind its parent.
  virtual void Track(uint32_t id, const BlockKey& key, uint32_t parent = kNoParent) = 0;
  // Does Track use `parent`? Then a chain is best tracked from its head on; else from its tail on,
  // so that the head is the newer.
  virtual bool follows_parent() const { return false; }
  // The same for a block that was set aside by Untrack: it takes up its place in the order and the
  // standing that its hits earned. If its turn came meanwhile, it is the next to leave. An id that
  // was not set aside with this key is tracked as a newcomer.
  virtual void TrackAgain(uint32_t id, const BlockKey& key) = 0;
  // A hit on an id that is tracked or set aside.
  virtual void Touch(uint32_t id) = 0;
  // Stop tracking an id without evicting it: its block was withdrawn, or is pinned for now (set
  // aside).
  virtual void Untrack(uint32_t id) = 0;
  // Choose the id to evict and stop tracking it; kNoVictim when none is tracked.
  virtual uint32_t Evict() = 0;
  // The id that Evict chose last stays after all, and is the next to leave.
  virtual void Restore(uint32_t id) = 0;
  virtual uint32_t tracked() const = 0;

  static constexpr uint32_t kNoVictim = UINT32_MAX;
  static constexpr uint32_t kNoParent = UINT32_MAX;
};

// "fifo", "lru" or "s3fifo"; capacity: ids are in [0, capacity).
//  - fifo: in the order of Track; hits change nothing.
//  - lru: least recently touched, a newcomer right behind its parent.
//  - s3fifo: a small queue for newcomers (10 %), a main queue, and a ghost memory of what left the
//    small queue (Yang et al., SOSP 2023): one-time blocks leave early, what returns stays long.
// Memory: 16 bytes an id; s3fifo about 30.
absl::StatusOr<std::unique_ptr<EvictionPolicy>> MakeEvictionPolicy(std::string_view name,
                                                                   uint32_t capacity);

}  // namespace reprise::storage
