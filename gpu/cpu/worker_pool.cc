#include "gpu/cpu/worker_pool.h"

#include <algorithm>

namespace reprise::engine::cpu {
namespace {

constexpr uint32_t kSpins = 4000;  // Some tens of microseconds.

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until the value is not `old`; returns it.
uint32_t WaitForChange(std::atomic<uint32_t>& value, uint32_t old) {
  for (uint32_t i = 0; i < kSpins; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

WorkerPool::WorkerPool(uint32_t threads) {
  workers_.reserve(std::max(threads, 1u) - 1);
  for (uint32_t worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { Work(worker); });
  }
}

WorkerPool::~WorkerPool() {
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::Share(uint32_t tasks, Call call, void* context) {
  call_ = call;
  context_ = context;
  tasks_ = tasks;
  next_.store(0, std::memory_order_relaxed);
  working_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(2, std::memory_order_release);
  round_.notify_all();
  Drain(0);
  for (uint32_t left = working_.load(std::memory_order_acquire); left != 0;) {
    left = WaitForChange(working_, left);
  }
}

void WorkerPool::Drain(uint32_t worker) {
  for (uint32_t task; (task = next_.fetch_add(1, std::memory_order_relaxed)) < tasks_;) {
    call_(context_, task, worker);
  }
}

void WorkerPool::Work(uint32_t worker) {
  for (uint32_t round = 0;;) {
    const uint32_t now = WaitForChange(round_, round);
    if (now % 2 != 0) return;
    round = now;
    Drain(worker);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_all();
  }
}

}  // namespace reprise::engine::cpu
