#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/backends/make_engine.h"
#include "protocol/base/clock.h"
#include "protocol/transport/listener.h"
#include "server/api/api.h"
#include "server/config.h"
#include "server/http.h"
#include "server/rdma_ports.h"
#include "server/shard_thread.h"
#include "storage/arena.h"
#include "storage/data_directory.h"
#include "storage/meta_store.h"

namespace reprise::server {

// The daemon: everything that lives as long as the process, put together once and taken apart in
// reverse. Its own thread is the caller's of Run.
class Server final : private HttpSource {
 public:
  // `config` is validated. Blocks: opens the directory, touches the arena, recovers every shard,
  // listens, and loads the model with `make` when there is one to serve.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const Config& config, engine::EngineMaker make = engine::MakeEngine);
  ~Server() override;

  // Serves until SIGTERM or SIGINT, which the caller has blocked for all threads, then drains.
  void Run();

 private:
  Server(const Config& config, engine::EngineMaker make)
      : config_(config), make_engine_(std::move(make)) {}

  absl::Status OpenStorage();
  absl::Status OpenRdma();
  absl::Status StartShards();
  absl::Status WaitForShards();
  absl::Status StartHttp();
  absl::Status Listen();
  absl::Status StartEngine();
  void LogReady();
  void TakeWindows();
  void StopEngine();
  void HandWindowsOver();
  void Drain();
  void UpdateLedger();
  uint64_t SsdBlocksPerShard() const;
  MetricsSnapshot BaseSnapshot() const;
  MetricsSnapshot Collect(std::vector<std::string>* connections) const;

  // HttpSource
  std::string Metrics() override;
  bool Ready(std::string* reason) override;
  std::string StatusJson() override;
  TraceTap* trace() override { return ready_ ? &facts_.trace : nullptr; }

  Config config_;
  engine::EngineMaker make_engine_;
  SystemClock clock_;
  Instant started_at_ = 0;
  Nanos startup_ns_ = 0;
  std::unique_ptr<storage::DataDirectory> directory_;
  std::unique_ptr<storage::MetaStore> meta_;
  std::unique_ptr<storage::Arena> arena_;
  std::unique_ptr<NamespaceTable> namespaces_;
  std::vector<std::unique_ptr<RdmaPort>> rdma_ports_;
  ServerFacts facts_;
  std::vector<std::unique_ptr<ShardThread>> shards_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unique_ptr<Api> api_;
  std::unique_ptr<Backend> backend_;    // Null without an engine.
  std::atomic<bool> engine_up_{false};  // It is there, and stays: other threads may look.
  std::mutex engine_mutex_;
  std::condition_variable engine_changed_;
  bool engine_unused_ = false;  // By the API.
  std::unique_ptr<HttpServer> http_;
  std::atomic<bool> set_up_{false};  // What is above is there, and stays: other threads may look.
  bool running_ = false;             // The shards' threads are.
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  uint64_t window_slots_ = 0;
  uint64_t block_slots_ = 0;
  uint64_t region_count_ = 0;
  std::vector<std::pair<std::string, uint64_t>> ledger_written_;  // Totals that the ledger has.
};

}  // namespace reprise::server
