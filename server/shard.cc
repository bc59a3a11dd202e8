#include "server/shard.h"

#include <algorithm>

#include "protocol/transport/rdma_transport.h"
#include "protocol/transport/socket_address.h"
#include "protocol/transport/socket_transport.h"
#include "server/connection.h"
#include "server/slot_lender.h"

namespace reprise::server {
namespace {

constexpr uint32_t kTasksPerTurn = 256;

// Slots or a window that another shard gives back. Made by the shard that leased, deleted by the
// owner.
struct ReleaseTask : Task {
  std::vector<uint32_t> slots;
  uint32_t window_handle = 0;
  bool window = false;

  void Start() {
    run = [](Task* self, void* receiver) {
      const std::unique_ptr<ReleaseTask> task(static_cast<ReleaseTask*>(self));
      auto* shard = static_cast<Shard*>(receiver);
      for (const uint32_t slot : task->slots) shard->blocks().Release(slot);
      if (task->window) shard->windows().Release(task->window_handle);
    };
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Shard>> Shard::Create(const Options& options, ServerFacts* facts,
                                                     const Clock* clock,
                                                     storage::SlotPool::Memory* memory,
                                                     Waker* waker) {
  std::unique_ptr<Shard> shard(new Shard(options, facts, clock, memory, waker));
  Shard* self = shard.get();
  const bool ssd = options.log.device != nullptr;
  storage::BlockStore::Options blocks = options.blocks;
  blocks.record_bytes = facts->record_bytes;
  blocks.quota_blocks = [facts](uint16_t name_space) {
    return facts->namespaces->QuotaBlocksPerShard(name_space);
  };
  blocks.on_failed_check = [self](const BlockKey& key, storage::RegionLog::Location location) {
    self->failed_check_log_.Warning(self->now_, "failed_check",
                                    {{"block", ToHex(key)},
                                     {"shard", self->index()},
                                     {"location", location},
                                     {"action", "withdrawn, answered as a miss"}});
  };
  const uint64_t ssd_blocks =
      ssd ? uint64_t{options.log.region_count} * options.log.geometry.slots : 0;
  RP_ASSIGN(shard->blocks_, storage::BlockStore::Create(blocks, &shard->slots_, ssd_blocks));
  if (ssd) {
    storage::RegionLog::Options log = options.log;
    log.listener = shard->blocks_->listener();
    log.shard = options.index;
    RP_TRY(storage::RegionLog::Validate(log));
    shard->log_ = std::make_unique<storage::RegionLog>(log);
    shard->blocks_->AttachLog(shard->log_.get());
  }
  shard->windows_ = std::make_unique<storage::WindowPool>(options.windows, &shard->slots_);
  return shard;
}

Shard::Shard(const Options& options, ServerFacts* facts, const Clock* clock,
             storage::SlotPool::Memory* memory, Waker* waker)
    : options_(options),
      facts_(facts),
      clock_(clock),
      memory_(memory),
      slots_per_shard_(options.block_slots + options.window_slots),
      now_(clock->Now()),
      mailbox_(waker),
      slots_(memory, options.first_slot, options.block_slots, options.window_slots) {}

Shard::~Shard() = default;

absl::Status Shard::Recover(const std::vector<storage::RegionRow>& rows,
                            const std::function<absl::Status()>& pump) {
  if (log_ == nullptr) return absl::OkStatus();
  RP_ASSIGN(recovery_,
            log_->Recover(
                rows, pump,
                [this](const storage::TrailerEntry& entry, storage::RegionLog::Location location) {
                  blocks_->Restore(entry, location,
                                   facts_->namespaces->Recovered(entry.name_space));
                }));
  blocks_->FinishRestore();
  return absl::OkStatus();
}

bool Shard::Turn(Instant now) {
  now_ = now;
  uint32_t work = mailbox_.Drain(this, kTasksPerTurn);
  work += timers_.RunDue(now);
  if (options_.rdma != nullptr && options_.rdma->Poll()) ++work;
  if (now >= next_window_expiry_) next_window_expiry_ = windows_->Expire(now);
  blocks_->Poll();
  for (Connection* retired : retired_) {
    std::erase_if(connections_, [retired](const auto& owned) { return owned.get() == retired; });
    facts_->connections.fetch_sub(1, std::memory_order_relaxed);
  }
  work += static_cast<uint32_t>(retired_.size());
  retired_.clear();
  return work > 0;
}

Instant Shard::next_deadline() const {
  return std::min(timers_.next_deadline(), next_window_expiry_);
}

void Shard::Adopt(std::unique_ptr<Stream> stream) {
  facts_->connections_accepted.fetch_add(1, std::memory_order_relaxed);
  const uint32_t others = facts_->connections.fetch_add(1, std::memory_order_relaxed);
  connections_.push_back(
      std::make_unique<Connection>(this, std::move(stream), next_connection_id_++));
  if (others >= facts_->connections_max) {
    facts_->connections_refused.fetch_add(1, std::memory_order_relaxed);
    connections_.back()->Refuse(
        Outcome::kBusy,
        "this daemon has connections_max = " + std::to_string(facts_->connections_max) +
            " connections; close some or raise [listen] connections_max");
    return;
  }
  connections_.back()->Start();
}

void Shard::AdoptSocket(int fd) {
  SocketAddress address;
  const bool local = !address.ReadLocal(fd) || address.family() == AF_UNIX;
  Adopt(local || options_.rdma == nullptr ? MakeSocketStream(options_.ring, fd)
                                          : options_.rdma->Wrap(fd));
}

void Shard::CloseConnections() {
  for (const auto& connection : connections_) connection->Close("the daemon is stopping");
}

void Shard::CloseIdleConnections() {
  for (const auto& connection : connections_) {
    if (connection->operation_count() == 0) connection->Close("the daemon is stopping");
  }
}

bool Shard::drained() const {
  return connections_.empty() && blocks_->idle() && mailbox_.empty() &&
         (options_.rdma == nullptr || options_.rdma->idle()) && (log_ == nullptr || log_->idle());
}

void Shard::Retire(Connection* connection) { retired_.push_back(connection); }

// ---- Calls ------------------------------------------------------------------------------------

void Shard::Call(uint32_t target, ShardCall* call) {
  call->origin = this;
  call->target = shards_[target];
  if (call->target == this) {
    call->Execute(*this);
    return;
  }
  call->run = [](Task* self, void* receiver) {
    static_cast<ShardCall*>(self)->Execute(*static_cast<Shard*>(receiver));
  };
  call->target->mailbox_.Post(call);
}

void Shard::CallFromOutside(ShardCall* call) {
  call->origin = nullptr;
  call->target = this;
  call->run = [](Task* self, void* receiver) {
    static_cast<ShardCall*>(self)->Execute(*static_cast<Shard*>(receiver));
  };
  mailbox_.Post(call);
}

void Shard::Reply(ShardCall* call) {
  if (call->origin == nullptr || call->origin == this) {
    call->Finished();
    return;
  }
  call->run = [](Task* self, void*) { static_cast<ShardCall*>(self)->Finished(); };
  call->origin->mailbox_.Post(call);
}

void Shard::ReleaseSlots(std::span<const uint32_t> slots) {
  if (shard_count() == 1) {
    for (const uint32_t slot : slots) blocks_->Release(slot);
    return;
  }
  std::vector<ReleaseTask*> others(shard_count());
  for (const uint32_t slot : slots) {
    const uint32_t owner = ShardOfSlot(slot);
    if (owner == index()) {
      blocks_->Release(slot);
      continue;
    }
    if (others[owner] == nullptr) others[owner] = new ReleaseTask;
    others[owner]->slots.push_back(slot);
  }
  for (uint32_t owner = 0; owner < others.size(); ++owner) {
    if (others[owner] == nullptr) continue;
    others[owner]->Start();
    shards_[owner]->mailbox_.Post(others[owner]);
  }
}

void Shard::ReleaseWindow(uint32_t shard, uint32_t handle) {
  if (shard == index()) {
    windows_->Release(handle);
    return;
  }
  auto* task = new ReleaseTask;
  task->window = true;
  task->window_handle = handle;
  task->Start();
  shards_[shard]->mailbox_.Post(task);
}

void Shard::ReturnLoan(uint64_t loan_id) {
  // An engine that stops has ended its loans.
  SlotLender* lender = facts_->slot_lender.load(std::memory_order_acquire);
  if (lender != nullptr && loan_id != 0) lender->Return(loan_id);
}

// ---- State ------------------------------------------------------------------------------------

ShardMetrics Shard::Metrics() const {
  ShardMetrics metrics;
  metrics.blocks = blocks_->stats();
  if (log_ != nullptr) metrics.log = log_->stats();
  metrics.windows = windows_->stats();
  metrics.recovery = recovery_;
  metrics.requests = counters_;
  metrics.connections = static_cast<uint32_t>(connections_.size());
  for (const auto& connection : connections_) {
    metrics.operations += connection->operation_count();
    metrics.leases += connection->lease_count();
  }
  metrics.leases_revoked = leases_revoked_;
  if (options_.rdma != nullptr) metrics.rdma = options_.rdma->counters();
  metrics.what_if = blocks_->what_if();
  return metrics;
}

std::vector<std::string> Shard::ConnectionNames() const {
  std::vector<std::string> names;
  for (const auto& connection : connections_) names.push_back(connection->Describe());
  return names;
}

}  // namespace reprise::server
