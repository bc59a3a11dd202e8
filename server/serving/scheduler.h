#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "gpu/engine/batch.h"
#include "server/serving/active_request.h"
#include "server/serving/request.h"
#include "server/serving/serving_context.h"
#include "server/serving/slot_leases.h"
#include "server/serving/store_port.h"
#include "server/serving/task_queue.h"

namespace reprise::server {

// The engine's thread: takes requests in order, as many at once as its budgets allow, and steps all
// of their turns as one batch. Requests that do not fit wait in a bounded queue; beyond that they
// are refused.
class Scheduler {
 public:
  struct Options {
    uint32_t sequences_max = 8;  // Answers that are worked on at once.
    uint32_t waiting_max = 64;   // Requests that wait.
    uint64_t memory_bytes = 0;   // Of the host, for blocks of active sequences.
    uint32_t prefill_rows_beside = 256;
    bool gate_loads = true;
    bool durable = true;
    double shadow_fraction = 0;  // Of replayed requests that are computed again, exactly.
    SlotLeases::Terms lend;      // Of the tier's slots, to local engines.
  };

  // `entry` is one of the shards; all of them must run until Join returned. `tier`: where an engine
  // whose memory is not the host's has the blocks; null for others.
  Scheduler(engine::Engine* engine, std::unique_ptr<HbmTier> tier, Shard* entry, const Clock* clock,
            const Options& options);
  ~Scheduler();  // Joins.
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Any thread. InvalidArgument for what can never run; ResourceExhausted when the queue is full;
  // Unavailable when stopping. On success, events end with OnDone; the number names the request.
  absl::StatusOr<uint64_t> Submit(std::shared_ptr<const GenerationRequest> request,
                                  std::shared_ptr<RequestEvents> events);
  // Any thread; nothing happens when it has ended.
  void Cancel(uint64_t id);
  // Any thread. Cancels everything and takes nothing more; what was computed is still stored.
  void Stop();
  // Stops, and waits for the thread. The store's port is closed then.
  void Join();

  // Any thread. Names and sessions are left out.
  ServingMetrics state() const;
  const Options& options() const { return options_; }

  // Null when nothing is lent. Lives as long as this; after Join it lends no more.
  SlotLender* lender() { return leases_.get(); }
  // The store, for others: `done` callbacks run on the engine's thread.
  StorePort& store() { return store_; }

 private:
  class ShadowEvents;
  struct Shadow;

  absl::Status Check(const GenerationRequest& request) const;
  void Run();
  void Admit();
  void Step();
  void RemoveEnded();
  void WaitForWork();
  void EndLoans();
  void Count(const ActiveRequest& request);
  void PublishState();
  void RunShadow();

  engine::Engine& engine_;
  const Clock& clock_;
  Options options_;
  TaskQueue queue_;
  StorePort store_;
  ServingContext context_;
  std::unique_ptr<SlotLeases> leases_;  // Null: nothing is lent.
  engine::BatchRunner runner_;

  struct Entry {
    uint64_t id = 0;
    std::unique_ptr<ActiveRequest> request;
  };
  std::deque<Entry> waiting_;  // The engine's thread.
  std::vector<Entry> active_;
  std::deque<std::shared_ptr<Shadow>> shadows_;  // To be computed again.
  bool shadow_running_ = false;

  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ending_ = false;
  std::atomic<uint32_t> waiting_count_ = 0;
  std::atomic<uint64_t> next_id_ = 1;
  mutable std::mutex mutex_;  // Guards state_.
  ServingMetrics state_;
  std::thread thread_;
};

}  // namespace reprise::server
