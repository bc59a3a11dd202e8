#pragma once

#include <atomic>
#include <cstdint>

#include "protocol/base/check.h"
#include "protocol/reactor/completion.h"

namespace reprise {

// A message to another shard, embedded in the object that it is about: posting allocates nothing,
// so it can neither fail nor drop. The owner leaves it alone from Post until `run`, which is called
// on the receiving shard's thread and may post it again, for example back.
struct Task {
  using Run = void (*)(Task* self, void* receiver);

  Run run = nullptr;
  Task* next = nullptr;  // The mailbox's.
};

// Ends the sleep of a mailbox's owner. Called from any thread.
class Waker {
 public:
  virtual ~Waker() = default;
  virtual void Wake() = 0;
};

// What one shard is told by all the others, and by threads that are no shards. Lock-free,
// unbounded.
//
// `inbox_` is a stack that senders push to and the receiver takes as a whole. Turned round, it is
// in the order of the pushes, so tasks of one sender run in the order in which it posted them. The
// receiver says that it sleeps by leaving a mark in the same word, so no wake-up can be lost
// between two words, and only the first post to a sleeper costs a system call.
class Mailbox {
 public:
  // `waker` may be null when the receiver never sleeps (all shards on one thread, as in tests/sim).
  explicit Mailbox(Waker* waker = nullptr) : waker_(waker) {}
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Any thread, also the receiver's own.
  void Post(Task* task) {
    RP_CHECK(task->run != nullptr);
    Task* top = inbox_.load(std::memory_order_relaxed);
    do {
      task->next = top == &asleep_ ? nullptr : top;
    } while (!inbox_.compare_exchange_weak(top, task, std::memory_order_release,
                                           std::memory_order_relaxed));
    if (top == &asleep_) waker_->Wake();
  }

  // ---- The receiver's thread only
  // ---------------------------------------------------------------- Runs at most `max` tasks,
  // oldest first; returns how many. Ends a sleep.
  uint32_t Drain(void* receiver, uint32_t max) {
    Collect();
    uint32_t count = 0;
    for (; count < max && !collected_.empty(); ++count) {
      Task* task = collected_.Pop();
      task->run(task, receiver);
    }
    return count;
  }

  // Called before blocking. False: there is work, do not block. True: from now on the next post
  // wakes. Drain ends the sleep, whatever the reason of waking.
  bool PrepareSleep() {
    RP_CHECK(waker_ != nullptr);
    if (!collected_.empty()) return false;
    Task* top = nullptr;
    return inbox_.compare_exchange_strong(top, &asleep_, std::memory_order_relaxed) ||
           top == &asleep_;
  }

  bool empty() const {
    const Task* top = inbox_.load(std::memory_order_relaxed);
    return collected_.empty() && (top == nullptr || top == &asleep_);
  }

 private:
  // Appends what has arrived to `collected_`. Looks before it takes: most turns find nothing, and a
  // plain load leaves the line shared.
  void Collect() {
    if (inbox_.load(std::memory_order_relaxed) == nullptr) return;
    Task* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
    if (newest == &asleep_) return;
    Task* oldest = nullptr;
    while (newest != nullptr) {
      Task* before = newest->next;
      newest->next = oldest;
      oldest = newest;
      newest = before;
    }
    while (oldest != nullptr) {
      Task* after = oldest->next;
      collected_.Push(oldest);
      oldest = after;
    }
  }

  alignas(64) std::atomic<Task*> inbox_{nullptr};
  alignas(64) FifoList<Task> collected_;
  Waker* waker_;
  Task asleep_;  // Its address is the mark; never run.
};

}  // namespace reprise
