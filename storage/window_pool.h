#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/wire/messages.h"
#include "storage/slot_pool.h"

namespace reprise::storage {

// Window snapshots of one shard: short-lived, in DRAM only, never on SSD. A snapshot is a chain of
// arena slots (slot_bytes in each, the last one partly used), keyed by namespace, exact prefix and
// position. A missing snapshot is never a miss of the hit: the window is rebuilt by replay.
//
// A snapshot leaves when its TTL (counted from its last use) runs out, by timer; when its session
// has newer positions than `positions_per_session`; or, oldest use first, when the slots are
// needed. Leased snapshots are set aside and freed by the last release. The newer position is the
// one put later: a session that goes back and takes another way keeps where it is now. Confined to
// the shard's thread.
class WindowPool {
 public:
  static constexpr uint32_t kSnapshotsMax = 1u << 20;  // What a handle can name.

  struct Options {
    Nanos ttl_ns = 600 * kSecond;
    uint32_t positions_per_session = 3;  // 0: no limit.
    uint32_t snapshots_max = 65'536;     // Bounds the bookkeeping; at most kSnapshotsMax count.
  };

  WindowPool(const Options& options, SlotPool* slots);
  ~WindowPool();

  // Copies `pieces` (concatenated, `bytes` in all) into slots. kRejected when it exceeds the budget
  // of slots; kBusy when leased snapshots hold too many; kExists when it is there already (its TTL
  // starts anew, and it becomes the newest position of `session_id`); kCorrupt when the copied
  // bytes do not have `crc`; kInvalid when it is empty or the pieces do not add up to `bytes`.
  // Found only once it is whole. Sessions are told apart within a namespace; session 0 is none and
  // has no limit.
  Outcome Put(uint16_t name_space, const wire::WindowKey& key, uint64_t session_id,
              std::span<const ConstBytes> pieces, uint32_t bytes, uint32_t crc, Instant now,
              Nanos age_ns = 0);

  // Every snapshot that can be found, least recently used first: what the next process needs to go
  // on with them. There they are put in the same order, with their age (the time since their last
  // use).
  struct Stored {
    uint16_t name_space = 0;
    wire::WindowKey key;
    uint64_t session_id = 0;
    Nanos age_ns = 0;
    uint32_t bytes = 0;
    uint32_t crc = 0;
    std::span<const uint32_t> slots;
  };
  void ForEach(Instant now, const std::function<void(const Stored&)>& visit) const;

  struct View {
    uint32_t handle = 0;  // For Release.
    uint32_t bytes = 0;
    uint32_t crc = 0;
    std::span<const uint32_t> slots;  // Valid until Release.
  };
  // Probing never pins and does not renew the TTL: the snapshot's size, or 0.
  uint32_t Probe(uint16_t name_space, const wire::WindowKey& key, Instant now) const;
  // Pins every slot; kNotFound when absent or expired. Renews the TTL.
  Outcome Acquire(uint16_t name_space, const wire::WindowKey& key, Instant now, View* view);
  void Release(uint32_t handle);

  // Why a snapshot is not there, as far as the pool remembers: one departure in each of as many
  // places as there may be snapshots. What left with its namespace counts as never stored.
  enum class Absence : uint8_t { kPresent, kNeverStored, kExpired, kEvicted, kSuperseded };
  Absence Explain(uint16_t name_space, const wire::WindowKey& key, Instant now) const;

  // Drops what has expired. Cheap when nothing has. Returns when to call next (kNever: nothing to
  // expire).
  Instant Expire(Instant now);
  void DropNamespace(uint16_t name_space);

  struct Stats {
    uint32_t snapshots = 0;  // In slots, those set aside included; so are `bytes`.
    uint64_t bytes = 0;
    uint32_t leased = 0;
    uint64_t puts = 0;                                  // Stored.
    uint64_t found = 0, absent = 0;                     // By Acquire.
    uint64_t expired = 0, evicted = 0, superseded = 0;  // Left the index; each snapshot once.
    uint64_t rejected = 0, busy = 0, corrupt = 0;       // Puts that were answered so.
    uint64_t bytes_peak = 0;
  };
  Stats stats() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::storage
