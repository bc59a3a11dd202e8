#include "server/server.h"

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <functional>
#include <mutex>

#include "protocol/base/units.h"
#include "protocol/rdma/lib_verbs.h"
#include "server/ledger.h"
#include "server/log.h"
#include "server/shard_errand.h"
#include "server/status.h"
#include "server/window_handover.h"
#include "storage/rocks_meta_store.h"

#ifndef RP_VERSION
#define RP_VERSION "unknown"
#endif

namespace reprise::server {
namespace {

constexpr int kLedgerSeconds = 5;
constexpr auto kEngineStopLimit = std::chrono::seconds(10);

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const Config& config,
                                                      engine::EngineMaker make) {
  std::unique_ptr<Server> server(new Server(config, std::move(make)));
  server->started_at_ = server->clock_.Now();
  if (!config.listen.http.empty()) RP_TRY(server->StartHttp());
  RP_TRY(server->OpenStorage());
  RP_TRY(server->OpenRdma());
  RP_TRY(server->StartShards());
  if (const absl::Status status = server->WaitForShards(); !status.ok()) {
    server->Drain();
    return status;
  }
  for (const auto& step : {&Server::Listen, &Server::StartEngine}) {
    if (const absl::Status status = ((*server).*step)(); !status.ok()) {
      server->Drain();
      return status;
    }
  }
  server->LogReady();
  return server;
}

absl::Status Server::StartHttp() {
  RP_ASSIGN(const HostPort address, ParseHostPort(config_.listen.http));
  RP_ASSIGN(api_, Api::Create({.keys_file = config_.api.keys_file,
                               .body_bytes_max = config_.api.body_bytes_max}));
  HttpServer::Options options{.host = address.host, .port = address.port};
  if (config_.engine.model.empty()) {
    api_->Serve(nullptr, "this daemon has no engine; set engine.model");
  } else {
    // A request holds its thread until its answer is whole, waiting included.
    options.threads += 2 * (config_.engine.sequences_max + config_.engine.waiting_max) + 8;
    const bool local = address.host == "localhost" || address.host == "::1" ||
                       address.host.compare(0, 4, "127.") == 0;
    if (!local && config_.api.keys_file.empty()) {
      LogWarning("open_api", {{"listen.http", config_.listen.http},
                              {"why", "anybody who reaches this address can use the model"},
                              {"action", "set api.keys_file"}});
    }
  }
  RP_ASSIGN(http_, HttpServer::Start(options, this,
                                     [this](httplib::Server* server) { api_->AddRoutes(server); }));
  return absl::OkStatus();
}

absl::Status Server::StartEngine() {
  if (config_.engine.model.empty()) return absl::OkStatus();
  const Config::Engine& engine = config_.engine;
  const Instant begin = clock_.Now();
  RP_ASSIGN(backend_,
            Backend::Start({.model = engine.model,
                            .device = engine.device,
                            .threads = engine.threads,
                            .hbm_bytes = engine.hbm_bytes,
                            .hbm_lease_bytes = engine.hbm_lease_bytes,
                            .make = make_engine_,
                            .tokens_max_default = engine.tokens_max_default,
                            .scheduler = {.sequences_max = engine.sequences_max,
                                          .waiting_max = engine.waiting_max,
                                          .memory_bytes = engine.memory_bytes,
                                          .prefill_rows_beside = engine.prefill_rows,
                                          .gate_loads = engine.load_gate,
                                          .durable = engine.durable,
                                          .shadow_fraction = engine.shadow_permille / 1000.0}},
                           {.entry = shards_.front()->shard(),
                            .namespaces = namespaces_.get(),
                            .meta = meta_.get(),
                            .clock = &clock_}));
  LogInfo("engine_ready", {{"model", backend_->model_name()},
                           {"backend", backend_->model().engine->backend()},
                           {"sessions", backend_->sessions().size()},
                           {"loading", FormatDuration(clock_.Now() - begin)}});
  engine_up_ = true;
  facts_.slot_lender.store(backend_->scheduler().lender(), std::memory_order_release);
  // The API and the requests that it runs share it, and tell when the last of them is done.
  api_->Serve(std::shared_ptr<Backend>(backend_.get(), [this](Backend*) {
    const std::lock_guard lock(engine_mutex_);
    engine_unused_ = true;
    engine_changed_.notify_all();
  }));
  return absl::OkStatus();
}

// Loans and requests end, then whoever still has the engine in hand lets it go, then its thread
// ends.
void Server::StopEngine() {
  if (backend_ == nullptr) return;
  facts_.slot_lender = nullptr;  // Its loans end with it.
  backend_->scheduler().Stop();
  api_->Serve(nullptr, "the daemon is stopping");
  {
    std::unique_lock lock(engine_mutex_);
    engine_changed_.wait_for(lock, kEngineStopLimit, [this] { return engine_unused_; });
  }
  backend_->scheduler().Join();
  UpdateLedger();
}

void Server::TakeWindows() {
  WindowHandover handover(directory_->uuid());
  const uint32_t count = handover.Take(
      [this](const BlockKey& prefix) -> Shard& {
        return *shards_[ShardOf(prefix, config_.shards)]->shard();
      },
      namespaces_.get(), clock_.Now());
  if (count > 0) LogInfo("windows_taken", {{"snapshots", count}});
}

void Server::HandWindowsOver() {
  WindowHandover handover(directory_->uuid());
  absl::Status status = handover.Begin(clock_.Now());
  for (const auto& shard : shards_) {
    if (!status.ok()) break;
    ShardErrand::Run(shard->shard(), [&](Shard& owner) {
      status = handover.Append(owner, *namespaces_, clock_.Now());
    });
  }
  if (status.ok()) status = handover.Finish();
  if (!status.ok()) {
    LogWarning("windows_not_handed_over",
               {{"why", status}, {"action", "the next process replays"}});
  }
}

Server::~Server() = default;

absl::Status Server::OpenStorage() {
  const uint32_t record_bytes = config_.record_bytes();
  RP_ASSIGN(directory_, storage::DataDirectory::Open({.path = config_.data_dir,
                                                      .shard_count = config_.shards,
                                                      .record_bytes = record_bytes,
                                                      .region_bytes = config_.ssd.region_bytes,
                                                      .created_ms = clock_.WallMillis()}));
  if (directory_->repaired()) {
    LogWarning("superblock_repaired", {{"data_dir", config_.data_dir}});
  }
  RP_ASSIGN(auto meta, storage::RocksMetaStore::Open({.path = directory_->meta_path()}));
  if (meta->rebuilt()) LogWarning("meta_rebuilt", {{"why", meta->rebuilt_reason()}});
  meta_ = std::move(meta);

  block_slots_ = config_.dram.bytes / record_bytes / config_.shards;
  window_slots_ = config_.window.bytes / record_bytes / config_.shards;
  region_count_ = config_.ssd.bytes / config_.ssd.region_bytes / config_.shards;
  const uint64_t slots = (block_slots_ + window_slots_) * config_.shards;
  LogInfo("touching_memory",
          {{"bytes", FormatBytes(slots * record_bytes)},
           {"why", "pages are faulted in once, now; fresh memory is slow the first time"}});
  RP_ASSIGN(arena_, storage::Arena::Create({.slot_bytes = record_bytes,
                                            .slot_count = static_cast<uint32_t>(slots),
                                            .huge_pages = config_.dram.huge_pages}));
  namespaces_ = std::make_unique<NamespaceTable>(
      NamespaceTable::Options{.payload_bytes_max = record_bytes - kRecordTailBytes,
                              .record_bytes = record_bytes,
                              .shard_count = config_.shards,
                              .quota_bytes = config_.quota_bytes,
                              .meta = meta_.get()});
  RP_ASSIGN(const auto rows, meta_->LoadNamespaces());
  for (const storage::NamespaceRow& row : rows) namespaces_->Restore(row);
  return absl::OkStatus();
}

absl::Status Server::OpenRdma() {
  if (config_.listen.tcp.empty()) return absl::OkStatus();  // It is agreed on by TCP.
  std::string why_none;
  const std::unique_ptr<rdma::Verbs> verbs = rdma::MakeLibVerbs();
  RP_ASSIGN(rdma_ports_, OpenRdmaPorts(verbs.get(), config_.rdma.device, arena_->slots(),
                                       arena_->slot_bytes(), &why_none));
  if (rdma_ports_.empty()) LogInfo("no_rdma", {{"why", why_none}, {"clients", "use TCP"}});
  for (const auto& opened : rdma_ports_) {
    const rdma::Port& port = opened->device->port();
    LogInfo("rdma", {{"device", port.device},
                     {"port", port.number},
                     {"address", rdma::GidText(port.gid)},
                     {"gid_index", port.gid_index},
                     {"memory_regions", opened->memory.pieces()}});
  }
  return absl::OkStatus();
}

absl::Status Server::StartShards() {
  facts_.version = RP_VERSION;
  facts_.model = config_.model;
  facts_.uuid = directory_->uuid();
  facts_.record_bytes = config_.record_bytes();
  facts_.shard_count = config_.shards;
  facts_.arena = arena_.get();
  facts_.connections_max = config_.listen.connections_max;
  facts_.staging_slots_max = config_.limits.staging_slots_per_connection;
  facts_.staging_bytes_max = config_.limits.staging_bytes_total;
  facts_.idle_frame_timeout_ns = config_.limits.idle_frame_timeout_ns;
  facts_.deadline_default_ns = config_.limits.deadline_default_ns;
  facts_.namespaces = namespaces_.get();
  facts_.lends_slots = config_.engine.hbm_lease_bytes > 0;
  facts_.base_snapshot = [this] { return BaseSnapshot(); };
  facts_.ledger = [this] { return meta_->Ledger(); };

  for (uint32_t i = 0; i < config_.shards; ++i) {
    ShardThread::Options options{.arena = arena_.get(), .meta = meta_.get()};
    for (const auto& port : rdma_ports_) options.rdma.push_back(port.get());
    options.queue_pairs_max = config_.rdma.queue_pairs_max;
    Shard::Options& shard = options.shard;
    shard.index = i;
    shard.first_slot = static_cast<uint32_t>(i * (block_slots_ + window_slots_));
    shard.block_slots = static_cast<uint32_t>(block_slots_);
    shard.window_slots = static_cast<uint32_t>(window_slots_);
    shard.blocks.dram_eviction = config_.dram.eviction;
    shard.blocks.ssd_admission = config_.ssd.admission;
    shard.blocks.ssd_write = config_.ssd.write == "demote"
                                 ? storage::BlockStore::SsdWrite::kDemote
                                 : storage::BlockStore::SsdWrite::kThrough;
    shard.blocks.replace_replay_derived = config_.policy.replace_replay_derived;
    if (config_.policy.what_if) {
      shard.blocks.what_if.rate = storage::WhatIfRate(block_slots_);
      for (const WhatIfSize& size : WhatIfSizes(block_slots_, SsdBlocksPerShard())) {
        shard.blocks.what_if.capacities.push_back(size.blocks);
      }
    }
    shard.blocks.loads_max = config_.ssd.queue_depth;
    shard.blocks.waiting_max = config_.limits.waiting_max;
    shard.windows.ttl_ns = config_.window.ttl_ns;
    shard.windows.positions_per_session = config_.window.positions_per_session;
    shard.log.uuid = directory_->uuid();
    shard.log.geometry = directory_->geometry();
    shard.log.region_count = static_cast<uint32_t>(region_count_);
    shard.log.eviction = config_.ssd.eviction;
    shard.log.reinsert_percent_max = config_.ssd.reinsert_percent;
    shard.log.wall_ms = [this] { return clock_.WallMillis(); };
    if (config_.ssd.bytes > 0) {
      RP_ASSIGN(options.device, storage::FileDevice::Open(
                                    {.path = directory_->shard_path(i),
                                     .size_bytes = region_count_ * config_.ssd.region_bytes}));
    }
    shards_.push_back(std::make_unique<ShardThread>(std::move(options), &facts_, &clock_));
  }
  for (const auto& shard : shards_) shard->Start();
  return absl::OkStatus();
}

absl::Status Server::WaitForShards() {
  absl::Status failed;
  for (const auto& shard : shards_) {
    const absl::Status status = shard->WaitUntilSetUp();
    for (const std::string& remark : shard->remarks()) LogWarning("set_up", {{"remark", remark}});
    if (!status.ok()) failed = status;
  }
  return failed;
}

absl::Status Server::Listen() {
  RP_ASSIGN(auto unix_listener, ListenUnix(config_.listen.unix_path));
  listeners_.push_back(std::move(unix_listener));
  if (!config_.listen.tcp.empty()) {
    RP_ASSIGN(auto tcp_listener, ListenTcp(config_.listen.tcp));
    listeners_.push_back(std::move(tcp_listener));
  }
  std::vector<Shard*> shards;
  for (const auto& shard : shards_) shards.push_back(shard->shard());
  std::vector<const Listener*> listeners;
  for (const auto& listener : listeners_) listeners.push_back(listener.get());
  shards_.front()->Accept(listeners);
  TakeWindows();
  startup_ns_ = clock_.Now() - started_at_;
  set_up_ = true;
  for (const auto& shard : shards_) shard->Go(shards);
  running_ = true;
  return absl::OkStatus();
}

void Server::LogReady() {
  ready_ = true;
  const MetricsSnapshot snapshot = Collect(nullptr);
  storage::RegionLog::RecoveryStats recovery;
  for (const ShardMetrics& shard : snapshot.shards) {
    recovery.blocks += shard.recovery.blocks;
    recovery.regions_from_index += shard.recovery.regions_from_index;
    recovery.regions_from_trailer += shard.recovery.regions_from_trailer;
    recovery.regions_scanned += shard.recovery.regions_scanned;
    recovery.records_torn += shard.recovery.records_torn;
  }
  std::string addresses;
  for (const auto& listener : listeners_) {
    addresses += (addresses.empty() ? "" : " ") + listener->address();
  }
  LogInfo("ready", {{"startup", FormatDuration(startup_ns_)},
                    {"blocks", recovery.blocks},
                    {"regions_from_index", recovery.regions_from_index},
                    {"regions_from_trailer", recovery.regions_from_trailer},
                    {"regions_scanned", recovery.regions_scanned},
                    {"records_torn", recovery.records_torn},
                    {"pages", arena_->pages_name()},
                    {"listening", addresses},
                    {"http", http_ != nullptr ? std::to_string(http_->port()) : "off"}});
}

void Server::Run() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  for (;;) {
    const timespec timeout{.tv_sec = kLedgerSeconds, .tv_nsec = 0};
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    UpdateLedger();
    if (signal > 0) {
      LogInfo("draining", {{"signal", signal == SIGTERM ? "SIGTERM" : "SIGINT"}});
      break;
    }
  }
  Drain();
  LogInfo("stopped");
}

void Server::Drain() {
  draining_ = true;
  StopEngine();
  ready_ = false;
  if (running_) HandWindowsOver();
  for (const auto& shard : shards_) shard->Drain();
  for (const auto& shard : shards_) shard->Join();
  http_.reset();
  engine_up_ = false;
  backend_.reset();
  if (meta_ != nullptr) meta_->Flush();
}

// The ledger is durable and adds up over restarts; this process has written `ledger_written_` of
// its own counts so far.
void Server::UpdateLedger() {
  const auto totals = LedgerTotals(Collect(nullptr));
  std::vector<std::pair<std::string, uint64_t>> added;
  for (size_t i = 0; i < totals.size(); ++i) {
    const uint64_t before = i < ledger_written_.size() ? ledger_written_[i].second : 0;
    if (totals[i].second > before) added.emplace_back(totals[i].first, totals[i].second - before);
  }
  ledger_written_ = totals;
  if (!added.empty()) meta_->AddLedger(std::move(added));
}

uint64_t Server::SsdBlocksPerShard() const { return region_count_ * directory_->geometry().slots; }

MetricsSnapshot Server::BaseSnapshot() const {
  MetricsSnapshot snapshot;
  const uint64_t record_bytes = config_.record_bytes();
  snapshot.version = RP_VERSION;
  snapshot.model = config_.model;
  snapshot.ready = ready_;
  snapshot.uptime_seconds = static_cast<double>(clock_.Now() - started_at_) / kSecond;
  snapshot.record_bytes = static_cast<uint32_t>(record_bytes);
  if (!set_up_) return snapshot;  // HTTP is up before the rest is.
  snapshot.arena_pages = arena_->pages_name();
  snapshot.startup_seconds = static_cast<double>(startup_ns_) / kSecond;
  snapshot.dram_budget_bytes = block_slots_ * config_.shards * record_bytes;
  snapshot.window_budget_bytes = window_slots_ * config_.shards * record_bytes;
  snapshot.ssd_budget_bytes = region_count_ * config_.shards * config_.ssd.region_bytes;
  snapshot.staging_bytes = facts_.staging_bytes;
  snapshot.staging_budget_bytes = facts_.staging_bytes_max;
  snapshot.connections_max = facts_.connections_max;
  snapshot.connections_accepted = facts_.connections_accepted;
  snapshot.connections_refused = facts_.connections_refused;
  snapshot.namespaces = namespaces_->size();
  snapshot.meta_dropped_writes = meta_->dropped_writes();
  if (config_.policy.what_if) {
    snapshot.what_if_sizes =
        WhatIfSizes(block_slots_ * config_.shards, SsdBlocksPerShard() * config_.shards);
  }
  for (const auto& opened : rdma_ports_) {
    const rdma::Port& port = opened->device->port();
    snapshot.rdma_ports.push_back(port.device + ":" + std::to_string(port.number) + " " +
                                  rdma::GidText(port.gid));
  }
  snapshot.trace_recording = facts_.trace.on();
  snapshot.trace_dropped = facts_.trace.dropped();
  if (engine_up_) {
    ServingMetrics serving = backend_->scheduler().state();
    serving.model = backend_->model_name();
    serving.backend = backend_->model().engine->backend();
    serving.sessions = static_cast<uint32_t>(backend_->sessions().size());
    snapshot.serving = serving;
  }
  return snapshot;
}

MetricsSnapshot Server::Collect(std::vector<std::string>* connections) const {
  MetricsSnapshot snapshot = BaseSnapshot();
  if (!ready_) return snapshot;
  for (const auto& shard : shards_) {
    ShardMetrics metrics;
    if (StateCall::Ask(shard->shard(), &metrics, connections)) snapshot.shards.push_back(metrics);
  }
  return snapshot;
}

std::string Server::Metrics() { return MetricsText(Collect(nullptr)); }

bool Server::Ready(std::string* reason) {
  if (ready_) return true;
  *reason = draining_ ? "draining" : "starting: recovering the SSD tier";
  return false;
}

std::string Server::StatusJson() {
  std::vector<std::string> connections;
  const MetricsSnapshot snapshot = Collect(&connections);
  const auto ledger = ready_ ? meta_->Ledger() : std::vector<std::pair<std::string, uint64_t>>{};
  return server::StatusJson(snapshot, ledger, connections);
}

}  // namespace reprise::server
