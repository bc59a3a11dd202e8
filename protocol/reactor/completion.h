#pragma once

#include <cstdint>

namespace reprise {

// One operation in flight, embedded in the object that waits for it: a pool of operations is then
// also the limit on concurrency. The owner outlives it. `done` is never called from inside a
// submit.
struct Completion {
  using Done = void (*)(Completion* self, int32_t result);

  Done done = nullptr;
  Completion* next = nullptr;  // Used by whoever holds the operation: a ring, a queue.
  int32_t result = 0;          // What a system call returns: a count, or -errno.
  uint32_t cqe_flags = 0;
};

// A first-in first-out list of operations by their `next` hook. No allocation.
template <typename T>
class FifoList {
 public:
  bool empty() const { return head_ == nullptr; }
  T* front() const { return head_; }
  void Push(T* item) {
    item->next = nullptr;
    if (head_ == nullptr) {
      head_ = item;
    } else {
      tail_->next = item;
    }
    tail_ = item;
  }
  void PushFront(T* item) {
    item->next = head_;
    if (head_ == nullptr) tail_ = item;
    head_ = item;
  }
  T* Pop() {
    T* item = head_;
    if (item != nullptr) {
      head_ = static_cast<T*>(item->next);
      item->next = nullptr;
    }
    return item;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
};

}  // namespace reprise
