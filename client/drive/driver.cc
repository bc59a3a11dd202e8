#include "client/drive/driver.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <string>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

namespace reprise {
namespace {

constexpr size_t kQueuedMax = 16;  // Prompts that wait for one connection.
constexpr uint32_t kReconnectsMax = 20;
constexpr Nanos kReconnectPause = 500 * kMillisecond;

// Prompts on their way from the trace to a connection.
class PromptQueue {
 public:
  // Waits for room. False when the worker is gone.
  bool Push(Prompt prompt) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return prompts_.size() < kQueuedMax || abandoned_; });
    if (abandoned_) return false;
    prompts_.push(std::move(prompt));
    changed_.notify_all();
    return true;
  }
  // Nothing when the queue is finished and empty.
  std::optional<Prompt> Pop() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !prompts_.empty() || finished_; });
    if (prompts_.empty()) return std::nullopt;
    Prompt prompt = std::move(prompts_.front());
    prompts_.pop();
    changed_.notify_all();
    return prompt;
  }
  void Finish() { Set(&finished_); }
  void Abandon() { Set(&abandoned_); }

 private:
  void Set(bool* flag) {
    const std::lock_guard lock(mutex_);
    *flag = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<Prompt> prompts_;
  bool finished_ = false, abandoned_ = false;
};

// One connection and its thread.
class Worker {
 public:
  Worker(const DriveOptions& options, const WaitingClock* clock, DriveStoreMaker* stores,
         std::unique_ptr<DriveStore> store)
      : clock_(clock),
        stores_(stores),
        store_(std::move(store)),
        driver_(options.request, clock),
        thread_([this] { Run(); }) {}
  ~Worker() {
    queue_.Finish();
    if (thread_.joinable()) thread_.join();
  }

  bool Push(Prompt prompt) { return queue_.Push(std::move(prompt)); }
  // Waits for the queue to be worked off.
  void Finish() {
    queue_.Finish();
    thread_.join();
  }
  // After Finish.
  const absl::Status& status() const { return status_; }
  const DriveFigures& figures() { return driver_.figures(); }

 private:
  void Run() {
    while (std::optional<Prompt> prompt = queue_.Pop()) {
      status_ = driver_.Drive(store_.get(), *prompt);
      if (!status_.ok()) status_ = Reconnect(status_);
      if (status_.ok()) continue;
      queue_.Abandon();
      return;
    }
  }

  // The daemon may be restarting. The request that was cut off is not repeated.
  absl::Status Reconnect(const absl::Status& lost) {
    store_.reset();
    for (uint32_t attempt = 0; attempt < kReconnectsMax; ++attempt) {
      absl::StatusOr<std::unique_ptr<DriveStore>> store = stores_->Connect();
      if (store.ok()) {
        store_ = *std::move(store);
        ++driver_.figures().reconnects;
        return absl::OkStatus();
      }
      clock_->Sleep(kReconnectPause);
    }
    return Unavailable("the connection was lost (" + Message(lost) +
                       ") and could not be made again: is the daemon still running?");
  }

  const WaitingClock* const clock_;
  DriveStoreMaker* const stores_;
  std::unique_ptr<DriveStore> store_;
  RequestDriver driver_;
  absl::Status status_;
  PromptQueue queue_;
  std::thread thread_;  // Last: it uses all of the above.
};

// Reads the trace and deals its requests out, each at its time.
class Dispatcher {
 public:
  Dispatcher(const DriveOptions& options, const WaitingClock* clock,
             std::vector<std::unique_ptr<Worker>>* workers)
      : options_(options), clock_(clock), workers_(workers) {}

  absl::Status Run(TraceReader* trace, DriveObserver* observer) {
    start_ = clock_->Now();
    TraceRequest request;
    while (options_.requests_max == 0 || sent_ < options_.requests_max) {
      RP_ASSIGN(const bool found, trace->Next(&request));
      if (!found) break;
      if (!Wanted(request)) continue;
      WaitFor(request.time_ns);
      const uint64_t lane =
          request.session == kNoSession ? sent_ : Mix(static_cast<uint64_t>(request.session) + 1);
      if (!(*workers_)[lane % workers_->size()]->Push(Prompt(request, sent_))) break;
      ++sent_;
      if (observer != nullptr) observer->OnSent(sent_);
    }
    return absl::OkStatus();
  }
  Instant start() const { return start_; }
  Nanos behind_ns_max() const { return behind_ns_max_; }

 private:
  bool Wanted(const TraceRequest& request) {
    if (options_.sessions_max == 0) return true;
    if (sessions_.contains(request.session)) return true;
    if (sessions_.size() >= options_.sessions_max) return false;
    sessions_.insert(request.session);
    return true;
  }

  void WaitFor(Nanos time_ns) {
    if (options_.speed <= 0) return;
    if (!first_time_ns_) first_time_ns_ = time_ns;
    const double since_ns = static_cast<double>(time_ns - *first_time_ns_) / options_.speed;
    const Nanos ahead_ns = start_ + static_cast<Nanos>(since_ns) - clock_->Now();
    if (ahead_ns > 0) clock_->Sleep(ahead_ns);
    behind_ns_max_ = std::max(behind_ns_max_, -ahead_ns);
  }

  const DriveOptions& options_;
  const WaitingClock* const clock_;
  std::vector<std::unique_ptr<Worker>>* const workers_;
  std::unordered_set<int64_t> sessions_;
  uint64_t sent_ = 0;
  Instant start_ = 0;
  Nanos behind_ns_max_ = 0;
  std::optional<Nanos> first_time_ns_;
};

}  // namespace

void SystemWaitingClock::Sleep(Nanos duration_ns) const {
  std::this_thread::sleep_for(std::chrono::nanoseconds(duration_ns));
}

absl::StatusOr<DriveFigures> Drive(TraceReader* trace, DriveStoreMaker* stores,
                                   const DriveOptions& options, const WaitingClock* clock,
                                   DriveObserver* observer) {
  std::vector<std::unique_ptr<Worker>> workers;
  for (uint32_t i = 0; i < std::max(options.connections, 1u); ++i) {
    RP_ASSIGN(auto store, stores->Connect());
    workers.push_back(std::make_unique<Worker>(options, clock, stores, std::move(store)));
  }
  Dispatcher dispatcher(options, clock, &workers);
  absl::Status status = dispatcher.Run(trace, observer);
  DriveFigures figures;
  for (const auto& worker : workers) {
    worker->Finish();
    if (status.ok()) status = worker->status();
    figures.Merge(worker->figures());
  }
  RP_TRY(status);
  figures.elapsed_ns = clock->Now() - dispatcher.start();
  figures.behind_ns_max = dispatcher.behind_ns_max();
  return figures;
}

}  // namespace reprise
