#include "gpu/cpu/worker_pool.h"

#include <algorithm>

#include "protocol/base/check.h"

namespace reprise::engine::cpu {
namespace {

constexpr uint32_t kSpins = 4000;  // Some tens of microseconds.

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// claim_: round in the upper 24 bits, then 20 bits of tasks, then 20 of the next task.
constexpr uint32_t kTaskBits = 20;
constexpr uint64_t kTaskMask = (1u << kTaskBits) - 1;
uint64_t ClaimOf(uint32_t round, uint32_t tasks) {
  return (uint64_t{round} << (2 * kTaskBits)) | (uint64_t{tasks} << kTaskBits);
}
uint32_t NextOf(uint64_t claim) { return static_cast<uint32_t>(claim & kTaskMask); }
uint32_t TasksOf(uint64_t claim) { return static_cast<uint32_t>((claim >> kTaskBits) & kTaskMask); }

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
  ending_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void WorkerPool::Share(uint32_t tasks, Call call, void* context) {
  RP_CHECK(tasks <= kTaskMask);
  call_ = call;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  claim_.store(ClaimOf(round, tasks), std::memory_order_release);
  round_.store(round, std::memory_order_release);
  round_.notify_all();
  Drain(0);
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != tasks;) {
    WaitForChange(done_, done);
  }
}

void WorkerPool::Drain(uint32_t worker) {
  uint64_t claim = claim_.load(std::memory_order_acquire);
  while (NextOf(claim) < TasksOf(claim)) {
    if (!claim_.compare_exchange_weak(claim, claim + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire)) {
      continue;
    }
    call_(context_, NextOf(claim), worker);
    const uint32_t tasks = TasksOf(claim);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == tasks) done_.notify_all();
    claim = claim_.load(std::memory_order_acquire);
  }
}

void WorkerPool::Work(uint32_t worker) {
  for (uint32_t round = 0; !ending_.load(std::memory_order_relaxed);) {
    Drain(worker);
    round = WaitForChange(round_, round);
  }
}

}  // namespace reprise::engine::cpu
