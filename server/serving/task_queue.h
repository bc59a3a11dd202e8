#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "protocol/base/clock.h"

namespace reprise::server {

// Closures for one thread, from any thread, in the order in which they were posted.
class TaskQueue {
 public:
  void Post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    posted_.notify_one();
  }

  // The owner's thread: runs what was posted. False: there was nothing.
  bool Run() {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      std::swap(tasks, tasks_);
    }
    for (const auto& task : tasks) task();
    return !tasks.empty();
  }
  // The owner's thread: returns when something is posted, or after `limit_ns`.
  void Wait(Nanos limit_ns) {
    std::unique_lock lock(mutex_);
    posted_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return !tasks_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable posted_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace reprise::server
