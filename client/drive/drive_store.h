#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "client/client.h"
#include "client/drive/figures.h"
#include "protocol/base/clock.h"
#include "protocol/base/status.h"

namespace reprise {

// What drive needs of a store, in one namespace: the daemon in earnest, memory in tests. One
// thread.
class DriveStore {
 public:
  virtual ~DriveStore() = default;

  virtual absl::StatusOr<Verdict> Lookup(std::span<const BlockKey> keys,
                                         std::span<const wire::WindowKey> windows) = 0;

  struct Loaded {
    std::vector<ConstBytes> records;  // The leading run of the keys; in place until Release.
    uint32_t from_ssd = 0;
    Outcome stopped_by = Outcome::kOk;  // Why the run is shorter than the keys.
  };
  virtual absl::StatusOr<Loaded> Acquire(std::span<const BlockKey> keys) = 0;
  virtual void Release() = 0;

  // Memory for put_slots() records, at least one, which are built in place and then given to Put.
  virtual uint32_t put_slots() const = 0;
  virtual Bytes put_slot(uint32_t slot) = 0;
  // outcomes[i] is of the record in slots[i].
  virtual absl::Status Put(std::span<const uint32_t> slots, bool durable,
                           std::span<Outcome> outcomes) = 0;

  virtual absl::StatusOr<Snapshot> GetWindow(const wire::WindowKey& key) = 0;
  virtual absl::StatusOr<Outcome> PutWindow(const wire::WindowKey& key, uint64_t session_id,
                                            ConstBytes snapshot) = 0;

  virtual absl::StatusOr<StoreCounters> Counters() = 0;
};

// Makes connections: one for each thread, and again when one was lost.
class DriveStoreMaker {
 public:
  virtual ~DriveStoreMaker() = default;
  virtual absl::StatusOr<std::unique_ptr<DriveStore>> Connect() = 0;  // Thread-safe.
};

// The door to time, with waiting.
class WaitingClock : public Clock {
 public:
  virtual void Sleep(Nanos duration_ns) const = 0;  // Thread-safe, as Now() is.
};

class SystemWaitingClock final : public WaitingClock {
 public:
  Instant Now() const override { return clock_.Now(); }
  int64_t WallMillis() const override { return clock_.WallMillis(); }
  void Sleep(Nanos duration_ns) const override;

 private:
  SystemClock clock_;
};

}  // namespace reprise
