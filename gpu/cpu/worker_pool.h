#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace reprise::engine::cpu {

// Threads that share the tasks of one loop at a time. Workers spin for a moment before they sleep,
// because a decode step has hundreds of short loops. Run may be called by one thread at a time.
class WorkerPool {
 public:
  // `threads` with the caller: 1 makes no thread. At least 1.
  explicit WorkerPool(uint32_t threads);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  uint32_t threads() const { return static_cast<uint32_t>(workers_.size()) + 1; }

  // body(task, worker) for every task in [0, tasks), worker in [0, threads()); returns when all are
  // done. Which worker gets which task is not determined: results must not depend on it.
  template <typename Body>
  void Run(uint32_t tasks, Body&& body) {
    if (tasks == 0) return;
    if (tasks == 1 || workers_.empty()) {
      for (uint32_t task = 0; task < tasks; ++task) body(task, 0u);
      return;
    }
    using Plain = std::remove_reference_t<Body>;
    Share(
        tasks,
        [](void* context, uint32_t task, uint32_t worker) {
          (*static_cast<Plain*>(context))(task, worker);
        },
        &body);
  }

 private:
  using Call = void (*)(void* context, uint32_t task, uint32_t worker);

  void Share(uint32_t tasks, Call call, void* context);
  void Work(uint32_t worker);
  void Drain(uint32_t worker);

  std::vector<std::thread> workers_;
  Call call_ = nullptr;  // Of the current round; changed only while it has no task left to take.
  void* context_ = nullptr;
  // Round, tasks and next task in one word: who takes a task by a compare-and-swap knows that its
  // round is still on. A worker that comes late finds nothing to do and holds nobody up.
  alignas(64) std::atomic<uint64_t> claim_{0};
  alignas(64) std::atomic<uint32_t> done_{0};   // Tasks of this round.
  alignas(64) std::atomic<uint32_t> round_{0};  // What sleeping workers wait on.
  std::atomic<bool> ending_{false};
};

}  // namespace reprise::engine::cpu
