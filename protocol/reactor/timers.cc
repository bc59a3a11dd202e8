#include "protocol/reactor/timers.h"

namespace reprise {

void Timers::Arm(Timer* timer, Instant deadline) {
  RP_CHECK(timer->fire != nullptr);
  Cancel(timer);
  timer->deadline_ = deadline;
  timer->sequence_ = next_sequence_++;
  timer->place_ = Timer::Place::kHeap;
  heap_.push_back(timer);
  Put(timer, heap_.size() - 1);
  SiftUp(heap_.size() - 1);
}

bool Timers::Cancel(Timer* timer) {
  switch (timer->place_) {
    case Timer::Place::kIdle:
      return false;
    case Timer::Place::kHeap:
      RemoveFromHeap(timer);
      break;
    case Timer::Place::kDue:
      due_[timer->index_] = nullptr;
      break;
  }
  timer->place_ = Timer::Place::kIdle;
  return true;
}

uint32_t Timers::RunDue(Instant now) {
  RP_CHECK(due_.empty());  // Not from a callback.
  while (!heap_.empty() && heap_.front()->deadline_ <= now) {
    Timer* timer = heap_.front();
    RemoveFromHeap(timer);
    timer->place_ = Timer::Place::kDue;
    timer->index_ = static_cast<uint32_t>(due_.size());
    due_.push_back(timer);
  }
  uint32_t fired = 0;
  for (size_t i = 0; i < due_.size(); ++i) {
    Timer* timer = due_[i];
    if (timer == nullptr) continue;  // Cancelled or moved by one that fired before it.
    timer->place_ = Timer::Place::kIdle;
    ++fired;
    timer->fire(timer, now);
  }
  due_.clear();
  return fired;
}

bool Timers::Before(const Timer* a, const Timer* b) {
  return a->deadline_ != b->deadline_ ? a->deadline_ < b->deadline_ : a->sequence_ < b->sequence_;
}

void Timers::Put(Timer* timer, size_t index) {
  heap_[index] = timer;
  timer->index_ = static_cast<uint32_t>(index);
}

void Timers::SiftUp(size_t index) {
  Timer* timer = heap_[index];
  while (index > 0 && Before(timer, heap_[(index - 1) / 2])) {
    Put(heap_[(index - 1) / 2], index);
    index = (index - 1) / 2;
  }
  Put(timer, index);
}

void Timers::SiftDown(size_t index) {
  Timer* timer = heap_[index];
  for (size_t child = 2 * index + 1; child < heap_.size(); child = 2 * index + 1) {
    if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
    if (!Before(heap_[child], timer)) break;
    Put(heap_[child], index);
    index = child;
  }
  Put(timer, index);
}

void Timers::RemoveFromHeap(Timer* timer) {
  const size_t index = timer->index_;
  Timer* last = heap_.back();
  heap_.pop_back();
  if (last == timer) return;
  Put(last, index);
  SiftUp(index);
  SiftDown(last->index_);
}

}  // namespace reprise
