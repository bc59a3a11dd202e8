#pragma once

#include "protocol/reactor/mailbox.h"
#include "protocol/reactor/ring.h"

namespace reprise {

// Wakes a shard that sleeps in its ring: an event descriptor with a read always in flight on the
// ring.
class WakeEvent final : public Waker {
 public:
  WakeEvent() = default;
  ~WakeEvent() override;
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  absl::Status Open();  // Any thread, before the first Wake.
  // Starts the read. On the ring's thread; `ring` outlives this, or is destroyed first.
  void Arm(Ring* ring);
  void Wake() override;  // Any thread.

 private:
  struct ReadOp : Completion {
    WakeEvent* event = nullptr;
    uint64_t count = 0;
  };

  int fd_ = -1;
  Ring* ring_ = nullptr;
  ReadOp read_;
};

}  // namespace reprise
