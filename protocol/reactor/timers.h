#pragma once

#include <cstdint>
#include <vector>

#include "protocol/base/check.h"
#include "protocol/base/clock.h"

namespace reprise {

// One deadline, embedded in the object that waits for it.
class Timer {
 public:
  using Fire = void (*)(Timer* self, Instant now);

  explicit Timer(Fire fire_callback = nullptr) : fire(fire_callback) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() { RP_CHECK(!armed()); }

  bool armed() const { return place_ != Place::kIdle; }
  Instant deadline() const { return deadline_; }  // Of the last Arm.

  Fire fire;

 private:
  friend class Timers;
  enum class Place : uint8_t { kIdle, kHeap, kDue };

  Instant deadline_ = 0;
  uint64_t sequence_ = 0;
  uint32_t index_ = 0;  // In the heap, or in the list of due timers.
  Place place_ = Place::kIdle;
};

// The timers of one shard. They fire in the order of their deadlines and, when these are equal, in
// the order of arming, so that a simulated run repeats. Reads no clock. Confined to the shard's
// thread.
//
// A binary heap of pointers: Arm and Cancel are O(log n), and allocate only when more timers are
// armed at once than ever before.
class Timers {
 public:
  Timers() = default;
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;
  ~Timers() { RP_CHECK(heap_.empty() && due_.empty()); }

  // Arms, or moves when it is armed already. A deadline in the past fires in the next RunDue.
  void Arm(Timer* timer, Instant deadline);
  // False when it was not armed (any more).
  bool Cancel(Timer* timer);

  // Fires what is due at `now`; returns how many. A timer is idle when its callback runs, which may
  // arm, cancel and destroy any timer, its own too. What callbacks arm waits for the next RunDue,
  // so a timer that is always due cannot hold the caller.
  uint32_t RunDue(Instant now);

  // When RunDue has something to do next; kNever when nothing is armed.
  Instant next_deadline() const { return heap_.empty() ? kNever : heap_.front()->deadline_; }
  size_t size() const { return heap_.size(); }

 private:
  static bool Before(const Timer* a, const Timer* b);
  void Put(Timer* timer, size_t index);
  void SiftUp(size_t index);
  void SiftDown(size_t index);
  void RemoveFromHeap(Timer* timer);

  std::vector<Timer*> heap_;
  std::vector<Timer*> due_;  // While RunDue fires: what is left of the batch; null where cancelled.
  uint64_t next_sequence_ = 0;
};

}  // namespace reprise
