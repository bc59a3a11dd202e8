#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"
#include "protocol/transport/rdma_transport.h"
#include "protocol/wire/frame.h"
#include "server/serving_metrics.h"
#include "server/what_if_sizes.h"
#include "storage/block_store.h"
#include "storage/region_log.h"
#include "storage/window_pool.h"

namespace reprise::server {

// Counts of durations in buckets that double from 1 us to 16.8 s, plus one for what is longer.
// Confined to its owner's thread; copies are plain values.
class LatencyHistogram {
 public:
  static constexpr size_t kBounds = 25;
  // Upper bound of bucket i in nanoseconds: 1 us << i.
  static constexpr Nanos UpperBound(size_t i) { return kMicrosecond << i; }

  void Record(Nanos duration_ns);
  void Add(const LatencyHistogram& other);

  uint64_t count() const { return count_; }
  Nanos sum_ns() const { return sum_ns_; }
  // Durations in bucket i alone; i == kBounds: longer than the last bound.
  uint64_t bucket(size_t i) const { return buckets_[i]; }
  // Upper bound of the bucket in which the quantile lies (0 < q <= 1); 0 when empty.
  Nanos Quantile(double q) const;

 private:
  std::array<uint64_t, kBounds + 1> buckets_{};
  uint64_t count_ = 0;
  Nanos sum_ns_ = 0;
};

// How a record's bytes travel: `local` is shared memory named over a Unix socket.
enum class TransportKind : uint8_t { kLocal = 0, kUnix = 1, kTcp = 2, kRdma = 3 };
inline constexpr size_t kTransportKinds = 4;
std::string_view TransportKindName(TransportKind kind);

// What one shard counts of the requests of its connections. Opcodes index from 1 (kHello).
struct RequestCounters {
  std::array<std::array<uint64_t, kOutcomeCount>, wire::kOpcodeMax + 1> by_outcome{};
  std::array<LatencyHistogram, wire::kOpcodeMax + 1> latency;
  // Bytes of records and snapshots given to clients and taken from them.
  std::array<uint64_t, kTransportKinds> sent_bytes{}, received_bytes{};
  // Blocks given to clients by the tier that they came from.
  uint64_t blocks_from_hbm = 0, blocks_from_dram = 0, blocks_from_ssd = 0;
  // Verdicts: tokens asked for and found, and the two parts of a hit.
  uint64_t lookup_tokens = 0, hit_tokens = 0;
  uint64_t exact_hits = 0, replayed_hits = 0, misses = 0;

  void Count(wire::Opcode opcode, Outcome outcome, Nanos duration_ns) {
    ++by_outcome[static_cast<size_t>(opcode)][static_cast<size_t>(outcome)];
    latency[static_cast<size_t>(opcode)].Record(duration_ns);
  }
};

struct ShardMetrics {
  storage::BlockStore::Stats blocks;
  storage::RegionLog::Stats log;  // Zeros without an SSD tier.
  storage::WindowPool::Stats windows;
  storage::RegionLog::RecoveryStats recovery;
  RequestCounters requests;
  uint32_t connections = 0;
  uint32_t operations = 0;  // Requests in progress.
  uint32_t leases = 0;
  uint64_t leases_revoked = 0;  // Ended with their connection rather than by Release.
  RdmaTransport::Counters rdma;
  storage::WhatIf::Counts what_if;  // hits by MetricsSnapshot::what_if_sizes.
};

// The state of the daemon at one moment. Filled by the server from its shards; every gauge is
// counted from state at that moment, never kept by increments.
struct MetricsSnapshot {
  std::string version;
  std::string model;
  std::string arena_pages;  // "hugetlb", "transparent huge", "small".
  bool ready = false;
  double uptime_seconds = 0, startup_seconds = 0;
  uint64_t dram_budget_bytes = 0, ssd_budget_bytes = 0, window_budget_bytes = 0;
  uint64_t staging_bytes = 0, staging_budget_bytes = 0;
  uint32_t record_bytes = 0;
  uint32_t connections_max = 0;
  uint64_t connections_accepted = 0, connections_refused = 0;
  uint32_t namespaces = 0;
  uint64_t meta_dropped_writes = 0;
  std::vector<WhatIfSize> what_if_sizes;  // Of the whole daemon.
  std::vector<std::string> rdma_ports;    // "rxe0:1 10.77.0.1".
  bool trace_recording = false;           // Somebody records requests.
  uint64_t trace_dropped = 0;             // Requests that the last recording missed.
  std::vector<ShardMetrics> shards;
  std::optional<ServingMetrics> serving;  // With an engine.
};

// The Prometheus text format, one family for each row of the table in metrics.cc.
std::string MetricsText(const MetricsSnapshot& snapshot);

// METRICS.md: the same table as a page.
std::string MetricsPage();

// "lookup", "window_put", ...: opcode names in metrics, status and logs.
std::string_view OpcodeName(wire::Opcode opcode);

}  // namespace reprise::server
