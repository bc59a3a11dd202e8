#include <algorithm>

#include "tests/sim/world.h"

// Birth and death of the simulated daemon.
namespace reprise::sim {
namespace {

// Killed processes run no destructors, and those of ours would rightly object to being run with
// operations in flight. What they left stays reachable.
void Bury(std::unique_ptr<Daemon> daemon, std::vector<std::unique_ptr<Link>> links) {
  static auto* const daemons = new std::vector<std::unique_ptr<Daemon>>;
  static auto* const all_links = new std::vector<std::unique_ptr<Link>>;
  daemons->push_back(std::move(daemon));
  for (auto& link : links) all_links->push_back(std::move(link));
}

}  // namespace

SimDevice::Options World::DeviceOptions(bool faults) const {
  SimDevice::Options options{.size_bytes = limits_.region_count * geometry_.region_bytes,
                             .latency_ticks_max = limits_.disk_latency_ticks_max};
  if (!faults) return options;
  if (faults_.read_errors) options.read_error_per_mille = 30;
  if (faults_.write_errors) options.write_error_per_mille = options.erase_error_per_mille = 40;
  if (faults_.sync_errors) options.sync_error_per_mille = 60;
  if (faults_.no_space) options.no_space_per_mille = 40;
  return options;
}

void World::SetDeviceFaults(bool on) {
  for (const auto& device : devices_) device->set_options(DeviceOptions(on));
}

server::Shard::Options World::ShardOptions(uint32_t index) {
  server::Shard::Options options{.index = index,
                                 .first_slot = index * (limits_.block_slots + limits_.window_slots),
                                 .block_slots = limits_.block_slots,
                                 .window_slots = limits_.window_slots};
  options.blocks = {.dram_eviction = limits_.dram_eviction,
                    .ssd_admission = limits_.ssd_admission,
                    .ssd_write = limits_.ssd_write,
                    .replace_replay_derived = limits_.replace_replay_derived,
                    .loads_max = limits_.loads_max,
                    .appends_max = limits_.appends_max,
                    .waiting_max = limits_.waiting_max,
                    .hot_frequency = limits_.hot_frequency,
                    .departed_rows = 256};
  options.windows = {.ttl_ns = limits_.window_ttl_ns,
                     .positions_per_session = limits_.positions_per_session,
                     .snapshots_max = limits_.snapshots_max};
  options.log = {.device = devices_.empty() ? nullptr : devices_[index].get(),
                 .meta = meta_.get(),
                 .uuid = uuid_,
                 .geometry = geometry_,
                 .region_count = limits_.region_count,
                 .eviction = limits_.region_eviction,
                 .reinsert_percent_max = limits_.reinsert_percent,
                 .wall_ms = [this] { return clock_.WallMillis(); }};
  return options;
}

void World::OpenRdma(Daemon* daemon) {
  daemon->rdma_port.device = *fabric_.Open((*fabric_.Ports())[0]);
  daemon->rdma_port.memory =
      *rdma::RegisteredMemory::Register(daemon->rdma_port.device.get(), daemon->memory->slots(),
                                        rdma::Access::kReadHere, Corpus::kRecordBytes);
  for (uint32_t i = 0; i < limits_.shards; ++i) {
    daemon->rdma.push_back(std::make_unique<RdmaTransport>(
        nullptr, std::vector<const RdmaPort*>{&daemon->rdma_port}, limits_.queue_pairs_max));
    RP_CHECK(daemon->rdma.back()->Open().ok());
  }
}

std::unique_ptr<Daemon> World::MakeDaemon() {
  auto daemon = std::make_unique<Daemon>();
  const uint32_t slots = limits_.shards * (limits_.block_slots + limits_.window_slots);
  daemon->memory = std::make_unique<PlainMemory>(slots, Corpus::kRecordBytes);
  daemon->namespaces = std::make_unique<server::NamespaceTable>(server::NamespaceTable::Options{
      .payload_bytes_max = Corpus::kRecordBytes - kRecordTailBytes,
      .record_bytes = Corpus::kRecordBytes,
      .shard_count = limits_.shards,
      .quota_bytes = {{corpus_.manifest(1).tenant_salt,
                       limits_.quota_blocks * Corpus::kRecordBytes}},
      .meta = meta_.get()});
  const std::vector<storage::NamespaceRow> rows = *meta_->LoadNamespaces();
  for (const storage::NamespaceRow& row : rows) daemon->namespaces->Restore(row);
  server::ServerFacts& facts = daemon->facts;
  facts.version = "sim";
  facts.model = "sim";
  facts.uuid = uuid_;
  facts.record_bytes = Corpus::kRecordBytes;
  facts.shard_count = limits_.shards;
  facts.connections_max = limits_.connections_max;
  facts.idle_frame_timeout_ns = limits_.idle_frame_timeout_ns;
  facts.send_timeout_ns = limits_.send_timeout_ns;
  facts.deadline_default_ns = limits_.deadline_default_ns;
  facts.body_bytes_max = limits_.body_bytes_max;
  facts.namespaces = daemon->namespaces.get();
  if (limits_.rdma) OpenRdma(daemon.get());
  std::vector<server::Shard*> shards;
  for (uint32_t i = 0; i < limits_.shards; ++i) {
    server::Shard::Options shard_options = ShardOptions(i);
    if (limits_.rdma) shard_options.rdma = daemon->rdma[i].get();
    auto shard = server::Shard::Create(shard_options, &facts, &clock_, daemon->memory.get(),
                                       /*waker=*/nullptr);
    if (!shard.ok()) {
      Fail("a shard could not be made: " + Message(shard.status()));
      return nullptr;
    }
    daemon->shards.push_back(*std::move(shard));
    shards.push_back(daemon->shards.back().get());
  }
  for (server::Shard* shard : shards) shard->Connect(shards);
  return daemon;
}

void World::StartDaemon() {
  daemon_ = MakeDaemon();
  for (uint32_t i = 0; daemon_ != nullptr && i < devices_.size(); ++i) {
    const absl::Status status = daemon_->shards[i]->Recover(*meta_->LoadRegions(i), [this, i] {
      devices_[i]->Tick();
      return absl::OkStatus();
    });
    if (!status.ok()) return Fail("recovery failed: " + Message(status));
    const server::ShardMetrics metrics = daemon_->shards[i]->Metrics();
    outcomes_.Count("regions_from_index", metrics.recovery.regions_from_index);
    outcomes_.Count("regions_from_trailer", metrics.recovery.regions_from_trailer);
    outcomes_.Count("regions_scanned", metrics.recovery.regions_scanned);
    outcomes_.Count("records_torn", metrics.recovery.records_torn);
  }
}

void World::LoseMeta() {
  const bool stale = prng_.Chance(500);
  outcomes_.Count(stale ? "meta_stale" : "meta_lost");
  meta_ = stale ? std::move(meta_before_) : std::make_unique<storage::MemoryMetaStore>();
  meta_before_ = std::make_unique<storage::MemoryMetaStore>();
}

void World::Restart(bool power_cut) {
  Trace(power_cut ? "power cut" : "kill");
  outcomes_.Count(power_cut ? "power_cut" : "kill");
  model_.Tick();
  std::vector<Model::Durable> durable = model_.DurableNow();
  CollectStats();
  for (const auto& client : clients_) client->ServerDied();
  for (const auto& link : links_) link->KillServer();
  model_.ServerDied();
  if (limits_.rdma) {
    fabric_.FailCall(0);
    fabric_.KillDevice(daemon_->rdma_port.device.get());
  }
  SetDeviceFaults(false);  // A disk that fails during recovery is refused, not simulated.
  for (const auto& device : devices_) power_cut ? device->Crash() : device->Kill();
  Bury(std::move(daemon_), std::exchange(links_, {}));
  if (faults_.meta_loss && prng_.Chance(600)) LoseMeta();
  StartDaemon();
  if (!failure_.empty()) return;
  SetDeviceFaults(true);
  CheckDurable(durable);
  model_.CheckRemoved("after a crash");
  CheckIndex();
  model_.Tick();
}

void World::CollectStats() {
  for (const auto& shard : daemon_->shards) {
    const server::ShardMetrics metrics = shard->Metrics();
    outcomes_.Count("dram_evictions", metrics.blocks.dram_evictions);
    outcomes_.Count("ssd_evictions", metrics.blocks.ssd_evictions);
    outcomes_.Count("replaced_blocks", metrics.blocks.replaced);
    outcomes_.Count("admissions_refused", metrics.blocks.admissions_refused);
    outcomes_.Count("failed_checks", metrics.blocks.failed_checks);
    outcomes_.Count("load_errors", metrics.blocks.load_errors);
    outcomes_.Count("append_errors", metrics.log.append_errors);
    outcomes_.Count("reclaimed_regions", metrics.log.reclaimed_regions);
    outcomes_.Count("reinserted_blocks", metrics.log.reinserted);
    outcomes_.Count("windows_expired", metrics.windows.expired);
    outcomes_.Count("windows_evicted", metrics.windows.evicted);
    outcomes_.Count("windows_superseded", metrics.windows.superseded);
  }
  for (const auto& device : devices_) {
    outcomes_.Count("write_kept_old", device->counts().kept_old);
    outcomes_.Count("write_kept_new", device->counts().kept_new);
    outcomes_.Count("write_torn", device->counts().torn);
  }
}

}  // namespace reprise::sim
