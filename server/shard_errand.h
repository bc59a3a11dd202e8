#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "server/metrics.h"
#include "server/shard.h"

namespace reprise::server {

// Runs something on a shard's thread, and waits.
class ShardErrand final : public ShardCall {
 public:
  static void Run(Shard* shard, const std::function<void(Shard&)>& errand) {
    ShardErrand call(errand);
    shard->CallFromOutside(&call);
    std::unique_lock lock(call.mutex_);
    call.changed_.wait(lock, [&call] { return call.done_; });
  }

 private:
  explicit ShardErrand(const std::function<void(Shard&)>& errand) : errand_(errand) {}
  void Execute(Shard& owner) override {
    errand_(owner);
    owner.Reply(this);
  }
  void Finished() override {
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_one();
  }

  const std::function<void(Shard&)>& errand_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
};

// Asks a shard for its state from a thread that is no shard. Deleted by the last of the two that
// use it.
class StateCall final : public ShardCall {
 public:
  static constexpr auto kTimeout = std::chrono::seconds(2);

  // False: the shard did not answer in time.
  static bool Ask(Shard* shard, ShardMetrics* metrics, std::vector<std::string>* connections) {
    auto* call = new StateCall;
    shard->CallFromOutside(call);
    std::unique_lock lock(call->mutex_);
    const bool answered =
        call->changed_.wait_for(lock, kTimeout, [call] { return call->answered_; });
    if (!answered) {
      call->abandoned_ = true;  // The shard deletes it when it gets there.
      return false;
    }
    *metrics = std::move(call->metrics_);
    if (connections != nullptr) {
      connections->insert(connections->end(), call->connections_.begin(), call->connections_.end());
    }
    lock.unlock();
    delete call;
    return true;
  }

 private:
  void Execute(Shard& owner) override {
    metrics_ = owner.Metrics();
    connections_ = owner.ConnectionNames();
    owner.Reply(this);
  }
  void Finished() override {
    std::unique_lock lock(mutex_);
    if (abandoned_) {
      lock.unlock();
      delete this;
      return;
    }
    answered_ = true;
    changed_.notify_one();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool answered_ = false;
  bool abandoned_ = false;
  ShardMetrics metrics_;
  std::vector<std::string> connections_;
};

}  // namespace reprise::server
