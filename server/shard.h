#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/reactor/mailbox.h"
#include "protocol/reactor/timers.h"
#include "protocol/transport/transport.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/namespaces.h"
#include "server/trace_tap.h"
#include "storage/arena.h"
#include "storage/block_store.h"
#include "storage/region_log.h"
#include "storage/slot_pool.h"
#include "storage/window_pool.h"

namespace reprise {
class RdmaTransport;
class Ring;
}  // namespace reprise

namespace reprise::server {

class Connection;
class Shard;
class SlotLender;

// A piece of work that an operation gives to the shard that owns the data, and gets back. Embedded
// in the operation, which leaves it alone in between.
class ShardCall : public Task {
 public:
  virtual ~ShardCall() = default;

  Shard* origin =
      nullptr;  // Null: called by a thread that is no shard; Finished then runs on the target.
  Shard* target = nullptr;

 private:
  friend class Shard;
  // On the target's thread. Ends, now or later, with target.Reply(this).
  virtual void Execute(Shard& target) = 0;
  // On the origin's thread.
  virtual void Finished() = 0;
};

// What all shards share and none changes, but for the atomics.
struct ServerFacts {
  std::string version;
  std::string model;
  std::array<std::byte, 16> uuid{};
  uint32_t record_bytes = 0;
  uint32_t shard_count = 1;
  const storage::Arena* arena = nullptr;  // Null: no local memory (simulation).
  uint32_t connections_max = 4096;
  uint32_t staging_slots_max = 64;
  uint64_t staging_bytes_max = 0;
  Nanos idle_frame_timeout_ns = 10 * kSecond;
  Nanos send_timeout_ns = 30 * kSecond;
  Nanos deadline_default_ns = 5 * kSecond;
  NamespaceTable* namespaces = nullptr;
  // The daemon's part of a snapshot (budgets, uptime, ledger), shards left empty. Any thread.
  std::function<MetricsSnapshot()> base_snapshot;
  std::function<std::vector<std::pair<std::string, uint64_t>>()> ledger;

  bool lends_slots = false;                       // The configuration allows it.
  std::atomic<SlotLender*> slot_lender{nullptr};  // While its engine runs; outlives the shards.

  uint64_t body_bytes_max = 256_MiB;  // Of message bodies that are being received.

  TraceTap trace;  // Of requests, while somebody records.
  std::atomic<uint64_t> staging_bytes{0};
  std::atomic<uint64_t> body_bytes{0};
  std::atomic<uint32_t> connections{0};
  std::atomic<uint64_t> connections_accepted{0};
  std::atomic<uint64_t> connections_refused{0};
  std::atomic<uint64_t> drained_shards{0};  // A bit for each shard that has nothing left to do.

  uint64_t store_id() const { return LoadLe<uint64_t>(uuid.data()); }
};

// One shard: its blocks, windows, connections, timers and mailbox. Everything it does happens in
// Turn, on one thread, which reads no clock, starts no thread and takes no lock; the daemon calls
// it in a loop, the simulation in an order drawn from a seed.
class Shard {
 public:
  struct Options {
    uint32_t index = 0;
    uint32_t first_slot = 0;  // This shard's share of the arena.
    uint32_t block_slots = 0;
    uint32_t window_slots = 0;
    storage::BlockStore::Options blocks;
    storage::WindowPool::Options windows;
    Ring* ring = nullptr;             // Only passed through.
    RdmaTransport* rdma = nullptr;    // Null: TCP stays TCP.
    storage::RegionLog::Options log;  // device null: no SSD tier. listener is set here.
  };

  static absl::StatusOr<std::unique_ptr<Shard>> Create(const Options& options, ServerFacts* facts,
                                                       const Clock* clock,
                                                       storage::SlotPool::Memory* memory,
                                                       Waker* waker);
  ~Shard();
  Shard(const Shard&) = delete;
  Shard& operator=(const Shard&) = delete;

  // All shards, this one too, in order of index. Before the first Turn.
  void Connect(std::vector<Shard*> shards) { shards_ = std::move(shards); }
  // Finds what is on SSD; before the first Turn. `pump` makes the device progress.
  absl::Status Recover(const std::vector<storage::RegionRow>& rows,
                       const std::function<absl::Status()>& pump);

  // ---- The loop
  // ------------------------------------------------------------------------------------ Runs
  // everything that is due. True when it did something: call again before sleeping.
  bool Turn(Instant now);
  // When Turn has something to do even if nothing arrives.
  Instant next_deadline() const;
  Mailbox& mailbox() { return mailbox_; }

  // ---- Connections ----------------------------------------------------------------------------
  void Adopt(std::unique_ptr<Stream> stream);
  void AdoptSocket(int fd);  // Takes it. REQUIRES: a ring.
  void CloseConnections();   // They end when their operations did.
  void CloseIdleConnections();
  bool drained() const;  // No connection, no operation, nothing on its way to SSD.

  // ---- For operations -------------------------------------------------------------------------
  void Call(uint32_t target, ShardCall* call);
  void Reply(ShardCall* call);
  // From a thread that is no shard.
  void CallFromOutside(ShardCall* call);
  void ReleaseSlots(std::span<const uint32_t> slots);  // Wherever they belong.
  void ReleaseWindow(uint32_t shard, uint32_t handle);
  void ReturnLoan(uint64_t loan_id);  // 0: there is none.
  // A slot of any shard, that an operation holds a pin on.
  Bytes SlotBytes(uint32_t slot) const { return memory_->slot(slot); }
  uint32_t ShardOfSlot(uint32_t slot) const { return slot / slots_per_shard_; }

  uint32_t index() const { return options_.index; }
  uint32_t shard_count() const { return facts_->shard_count; }
  Instant now() const { return now_; }
  const Clock& clock() const { return *clock_; }
  ServerFacts& facts() { return *facts_; }
  storage::BlockStore& blocks() { return *blocks_; }
  storage::WindowPool& windows() { return *windows_; }
  Nanos window_ttl_ns() const { return options_.windows.ttl_ns; }
  void ExpireWindowsSoon() {
    next_window_expiry_ = now_;
  }  // After a put: an empty pool had no timer.
  storage::SlotPool& slots() { return slots_; }
  Timers& timers() { return timers_; }
  RequestCounters& counters() { return counters_; }
  ShardMetrics Metrics() const;
  std::vector<std::string> ConnectionNames() const;

 private:
  friend class Connection;

  Shard(const Options& options, ServerFacts* facts, const Clock* clock,
        storage::SlotPool::Memory* memory, Waker* waker);
  void Retire(Connection* connection);  // Destroyed at the end of the turn.

  Options options_;
  ServerFacts* facts_;
  const Clock* clock_;
  storage::SlotPool::Memory* memory_;
  uint32_t slots_per_shard_;
  Instant now_ = 0;
  Timers timers_;
  Mailbox mailbox_;
  storage::SlotPool slots_;
  std::unique_ptr<storage::WindowPool> windows_;
  std::unique_ptr<storage::BlockStore> blocks_;
  std::unique_ptr<storage::RegionLog> log_;
  std::vector<Shard*> shards_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> retired_;
  Instant next_window_expiry_ = 0;
  RequestCounters counters_;
  storage::RegionLog::RecoveryStats recovery_;
  uint64_t leases_revoked_ = 0;
  uint64_t next_connection_id_ = 1;
  LogLimiter failed_check_log_;
};

}  // namespace reprise::server
