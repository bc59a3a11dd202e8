#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "storage/slot_pool.h"
#include "storage/window_pool.h"

namespace reprise::economics {

// One machine's window snapshots without their bytes: the daemon's own pool over slots of one byte,
// so that whatever it decides, this decides. Time is the caller's. One thread.
class WindowModel {
 public:
  struct Options {
    uint64_t pool_bytes = 0;  // 0: no pool.
    uint32_t snapshot_bytes = 0;
    uint32_t record_bytes = 0;  // What a slot of the pool holds.
    Nanos ttl_ns = 600 * kSecond;
    uint32_t positions_per_session = 3;
    // More would never be there at once: bounds this object's memory, not the pool.
    uint32_t snapshots_max = UINT32_MAX;
  };
  explicit WindowModel(const Options& options);

  // Where a snapshot is: a prefix, by any 64 bits that name it, and its length.
  struct Place {
    uint64_t prefix = 0;
    uint64_t position = 0;
  };
  bool Has(const Place& place, Nanos now) const;
  // As a reader does: renews its TTL. False: it is not there.
  bool Use(const Place& place, Nanos now);
  void Put(const Place& place, uint64_t session_id, Nanos now);

  // Of real snapshots.
  uint64_t bytes(Nanos now);
  uint64_t bytes_peak() const;
  storage::WindowPool::Stats stats() const { return pool_.stats(); }

 private:
  class Memory final : public storage::SlotPool::Memory {
   public:
    Bytes slot(uint32_t) override { return {&byte_, 1}; }
    uint32_t generation(uint32_t) const override { return 0; }
    void BumpGeneration(uint32_t) override {}

   private:
    std::byte byte_{};
  };

  static wire::WindowKey KeyFor(const Place& place) {
    return {{.low = place.prefix, .high = 1}, place.position};
  }
  // In slots, as the pool accounts here; in bytes of snapshots.
  uint64_t RealBytes(uint64_t slots) const {
    return slots / snapshot_.size() * options_.snapshot_bytes;
  }

  Options options_;
  std::vector<std::byte> snapshot_;  // A byte for each slot that a real one takes.
  uint32_t crc_ = 0;
  Memory memory_;
  storage::SlotPool slots_;
  storage::WindowPool pool_;
};

}  // namespace reprise::economics
