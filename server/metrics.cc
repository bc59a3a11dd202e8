#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

#include "server/metric_samples.h"
#include "server/serving_samples.h"

namespace reprise::server {
namespace {

// One thing counted under several labels: the label's value and where the number is.
template <typename Stats>
struct Part {
  const char* label;
  uint64_t Stats::*at;
};
template <typename Stats>
struct Part32 {
  const char* label;
  uint32_t Stats::*at;
};

template <typename Stats, typename Parts>
void PerShardParts(const MetricsSnapshot& snapshot, Samples* out, Stats ShardMetrics::*stats,
                   const char* label, const Parts& parts) {
  for (const auto& part : parts) {
    PerShard(snapshot, out, [&](const ShardMetrics& shard) { return shard.*stats.*part.at; },
             {{label, part.label}});
  }
}

using BlockStats = storage::BlockStore::Stats;
using LogStats = storage::RegionLog::Stats;
using WindowStats = storage::WindowPool::Stats;
using RecoveryStats = storage::RegionLog::RecoveryStats;

void CollectPuts(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part<BlockStats> kParts[] = {{"ok", &BlockStats::puts_stored},
                                                {"exists", &BlockStats::puts_existing},
                                                {"rejected", &BlockStats::puts_rejected},
                                                {"busy", &BlockStats::puts_busy},
                                                {"invalid", &BlockStats::puts_invalid}};
  PerShardParts(snapshot, out, &ShardMetrics::blocks, "outcome", kParts);
}

void CollectAcquires(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part<BlockStats> kParts[] = {{"dram", &BlockStats::acquired_dram},
                                                {"ssd", &BlockStats::acquired_ssd},
                                                {"miss", &BlockStats::acquire_misses},
                                                {"busy", &BlockStats::acquire_busy}};
  PerShardParts(snapshot, out, &ShardMetrics::blocks, "result", kParts);
}

void CollectRegions(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part32<LogStats> kParts[] = {{"free", &LogStats::regions_free},
                                                {"open", &LogStats::regions_open},
                                                {"sealed", &LogStats::regions_sealed},
                                                {"reclaiming", &LogStats::regions_reclaiming}};
  PerShardParts(snapshot, out, &ShardMetrics::log, "state", kParts);
}

void CollectWindowEvents(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part<WindowStats> kParts[] = {
      {"put", &WindowStats::puts},         {"found", &WindowStats::found},
      {"absent", &WindowStats::absent},    {"expired", &WindowStats::expired},
      {"evicted", &WindowStats::evicted},  {"superseded", &WindowStats::superseded},
      {"rejected", &WindowStats::rejected}};
  PerShardParts(snapshot, out, &ShardMetrics::windows, "event", kParts);
}

void CollectRecoveredRegions(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part32<RecoveryStats> kParts[] = {
      {"index", &RecoveryStats::regions_from_index},
      {"trailer", &RecoveryStats::regions_from_trailer},
      {"scan", &RecoveryStats::regions_scanned},
      {"free", &RecoveryStats::regions_free}};
  PerShardParts(snapshot, out, &ShardMetrics::recovery, "source", kParts);
}

void CollectInFlight(const MetricsSnapshot& snapshot, Samples* out) {
  PerShard(snapshot, out, [](const ShardMetrics& s) { return s.operations; },
           {{"kind", "request"}});
  static constexpr Part32<BlockStats> kParts[] = {{"load", &BlockStats::loads_in_flight},
                                                  {"append", &BlockStats::appends_in_flight},
                                                  {"waiting", &BlockStats::waiting}};
  PerShardParts(snapshot, out, &ShardMetrics::blocks, "kind", kParts);
}

void CollectUsed(const MetricsSnapshot& snapshot, Samples* out) {
  const auto record_bytes = uint64_t{snapshot.record_bytes};
  if (snapshot.serving.has_value()) {
    out->Add({{"tier", "hbm"}}, snapshot.serving->hbm.used_bytes());
  }
  out->Add({{"tier", "dram"}}, record_bytes * Sum(snapshot, [](const ShardMetrics& s) {
                                 return s.blocks.dram_blocks;
                               }));
  out->Add({{"tier", "ssd"}},
           record_bytes * Sum(snapshot, [](const ShardMetrics& s) { return s.blocks.ssd_blocks; }));
  out->Add({{"tier", "window"}},
           Sum(snapshot, [](const ShardMetrics& s) { return s.windows.bytes; }));
  out->Add({{"tier", "staging"}}, snapshot.staging_bytes);
}

void CollectBudgets(const MetricsSnapshot& snapshot, Samples* out) {
  if (snapshot.serving.has_value()) out->Add({{"tier", "hbm"}}, snapshot.serving->hbm.bytes);
  out->Add({{"tier", "dram"}}, snapshot.dram_budget_bytes);
  out->Add({{"tier", "ssd"}}, snapshot.ssd_budget_bytes);
  out->Add({{"tier", "window"}}, snapshot.window_budget_bytes);
  out->Add({{"tier", "staging"}}, snapshot.staging_budget_bytes);
}

// Every opcode with outcome ok, so that a rate is defined from the start, and what else has
// happened.
void CollectRequests(const MetricsSnapshot& snapshot, Samples* out) {
  for (uint8_t opcode = 1; opcode <= wire::kOpcodeMax; ++opcode) {
    for (uint8_t outcome = 0; outcome < kOutcomeCount; ++outcome) {
      const uint64_t count = Sum(
          snapshot, [&](const ShardMetrics& s) { return s.requests.by_outcome[opcode][outcome]; });
      if (count == 0 && outcome != 0) continue;
      out->Add({{"opcode", std::string(OpcodeName(static_cast<wire::Opcode>(opcode)))},
                {"outcome", std::string(OutcomeName(static_cast<Outcome>(outcome)))}},
               count);
    }
  }
}

void CollectLatencies(const MetricsSnapshot& snapshot, Samples* out) {
  for (uint8_t opcode = 1; opcode <= wire::kOpcodeMax; ++opcode) {
    LatencyHistogram sum;
    for (const ShardMetrics& shard : snapshot.shards) sum.Add(shard.requests.latency[opcode]);
    if (sum.count() == 0) continue;
    out->Add({{"opcode", std::string(OpcodeName(static_cast<wire::Opcode>(opcode)))}}, sum);
  }
}

void CollectTransfers(const MetricsSnapshot& snapshot, Samples* out) {
  for (size_t i = 0; i < kTransportKinds; ++i) {
    const std::string name(TransportKindName(static_cast<TransportKind>(i)));
    out->Add({{"transport", name}, {"direction", "sent"}},
             Sum(snapshot, [&](const ShardMetrics& s) { return s.requests.sent_bytes[i]; }));
    out->Add({{"transport", name}, {"direction", "received"}},
             Sum(snapshot, [&](const ShardMetrics& s) { return s.requests.received_bytes[i]; }));
  }
}

void CollectServed(const MetricsSnapshot& snapshot, Samples* out) {
  out->Add({{"tier", "hbm"}},
           Sum(snapshot, [](const ShardMetrics& s) { return s.requests.blocks_from_hbm; }));
  out->Add({{"tier", "dram"}},
           Sum(snapshot, [](const ShardMetrics& s) { return s.requests.blocks_from_dram; }));
  out->Add({{"tier", "ssd"}},
           Sum(snapshot, [](const ShardMetrics& s) { return s.requests.blocks_from_ssd; }));
}

void CollectVerdicts(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr Part<RequestCounters> kParts[] = {{"exact", &RequestCounters::exact_hits},
                                                     {"replayed", &RequestCounters::replayed_hits},
                                                     {"miss", &RequestCounters::misses}};
  for (const auto& part : kParts) {
    out->Add({{"kind", part.label}},
             Sum(snapshot, [&](const ShardMetrics& s) { return s.requests.*part.at; }));
  }
}

void CollectRdmaErrors(const MetricsSnapshot& snapshot, Samples* out) {
  for (size_t i = 1; i < rdma::kWorkErrors; ++i) {
    out->Add({{"kind", std::string(rdma::WorkErrorName(static_cast<rdma::WorkError>(i)))}},
             Sum(snapshot, [i](const ShardMetrics& s) { return s.rdma.errors[i]; }));
  }
}

void CollectWhatIf(const MetricsSnapshot& snapshot, Samples* out) {
  for (size_t i = 0; i < snapshot.what_if_sizes.size(); ++i) {
    const WhatIfSize& size = snapshot.what_if_sizes[i];
    out->Add({{"tier", size.tier}, {"size", size.times}},
             Sum(snapshot, [i](const ShardMetrics& s) { return s.what_if.hits[i]; }));
  }
}

// ---- The table ---------------------------------------------------------------------------------

struct Metric {
  const char* name;
  MetricType type;
  const char* labels;  // Names, for the page.
  const char* help;
  void (*collect)(const MetricsSnapshot& snapshot, Samples* out);
};

// A metric that is one number of each shard.
#define RP_SHARD_VALUE(expression)                                                       \
  [](const MetricsSnapshot& snapshot, Samples* out) {                                    \
    PerShard(snapshot, out, [](const ShardMetrics& shard) { return shard.expression; }); \
  }
// A metric that is one number of the daemon.
#define RP_VALUE(expression) \
  [](const MetricsSnapshot& snapshot, Samples* out) { out->Add({}, snapshot.expression); }
// A metric that is one number summed over the shards.
#define RP_SUM(expression)                                                                   \
  [](const MetricsSnapshot& snapshot, Samples* out) {                                        \
    out->Add({}, Sum(snapshot, [](const ShardMetrics& shard) { return shard.expression; })); \
  }

// A metric that is one number of the engine.
#define RP_SERVING(expression)                                                                    \
  [](const MetricsSnapshot& snapshot, Samples* out) {                                             \
    FromServing(snapshot, out, [](const ServingMetrics& serving) { return serving.expression; }); \
  }

constexpr MetricType kGauge = MetricType::Gauge;
constexpr MetricType kCounter = MetricType::Counter;
constexpr MetricType kHistogram = MetricType::Histogram;

const Metric kMetrics[] = {
    // The daemon.
    {"reprise_build_info", kGauge, "version, model, arena_pages",
     "Always 1; the labels say what runs.",
     [](const MetricsSnapshot& s, Samples* out) {
       out->Add({{"version", s.version}, {"model", s.model}, {"arena_pages", s.arena_pages}}, 1.0);
     }},
    {"reprise_ready", kGauge, "", "1 when requests are served, 0 while starting or draining.",
     [](const MetricsSnapshot& s, Samples* out) { out->Add({}, s.ready ? 1.0 : 0.0); }},
    {"reprise_uptime_seconds", kGauge, "", "Time since the process began.",
     RP_VALUE(uptime_seconds)},
    {"reprise_startup_seconds", kGauge, "",
     "Time from the process's begin to readiness, recovery included.", RP_VALUE(startup_seconds)},
    {"reprise_record_bytes", kGauge, "", "Bytes of a record, in every tier.",
     [](const MetricsSnapshot& s, Samples* out) { out->Add({}, uint64_t{s.record_bytes}); }},
    {"reprise_namespaces", kGauge, "", "Namespaces known.",
     [](const MetricsSnapshot& s, Samples* out) { out->Add({}, uint64_t{s.namespaces}); }},
    {"reprise_meta_dropped_writes_total", kCounter, "",
     "Writes to the durable index that its full queue dropped; each costs a scan at the next "
     "start.",
     RP_VALUE(meta_dropped_writes)},

    // Budgets.
    {"reprise_budget_bytes", kGauge, "tier", "Budget of a tier; never exceeded.", CollectBudgets},
    {"reprise_used_bytes", kGauge, "tier", "Bytes in use in a tier.", CollectUsed},

    // Clients.
    {"reprise_connections", kGauge, "shard", "Clients connected.", RP_SHARD_VALUE(connections)},
    {"reprise_connections_max", kGauge, "", "Limit of connections.",
     [](const MetricsSnapshot& s, Samples* out) { out->Add({}, uint64_t{s.connections_max}); }},
    {"reprise_connections_accepted_total", kCounter, "", "Connections accepted.",
     RP_VALUE(connections_accepted)},
    {"reprise_connections_refused_total", kCounter, "", "Connections refused at the limit.",
     RP_VALUE(connections_refused)},
    {"reprise_requests_total", kCounter, "opcode, outcome", "Requests answered.", CollectRequests},
    {"reprise_request_seconds", kHistogram, "opcode",
     "Time from a request's last byte to its answer's first, in the daemon.", CollectLatencies},
    {"reprise_transfer_bytes_total", kCounter, "transport, direction",
     "Bytes of records and snapshots given to clients (sent) and taken from them (received).",
     CollectTransfers},
    {"reprise_rdma_queue_pairs", kGauge, "shard", "RDMA connections.",
     RP_SHARD_VALUE(rdma.queue_pairs)},
    {"reprise_rdma_message_bytes", kGauge, "", "Registered memory for their messages.",
     RP_SUM(rdma.message_bytes)},
    {"reprise_rdma_staging_bytes", kGauge, "", "Registered memory that their clients write to.",
     RP_SUM(rdma.staging_bytes)},
    {"reprise_rdma_accepted_total", kCounter, "", "Connections that went on by RDMA.",
     RP_SUM(rdma.accepted)},
    {"reprise_rdma_declined_total", kCounter, "", "Connections by TCP that did not.",
     RP_SUM(rdma.declined)},
    {"reprise_rdma_writes_total", kCounter, "", "Writes into clients' memory.",
     RP_SUM(rdma.writes)},
    {"reprise_rdma_errors_total", kCounter, "kind",
     "RDMA connections that ended with an error; flushed: an end like any other.",
     CollectRdmaErrors},
    {"reprise_leases", kGauge, "shard", "Leases held by clients.", RP_SHARD_VALUE(leases)},
    {"reprise_leases_revoked_total", kCounter, "shard", "Leases that ended with their connection.",
     RP_SHARD_VALUE(leases_revoked)},

    // Verdicts.
    {"reprise_lookup_tokens_total", kCounter, "", "Tokens that lookups asked for.",
     RP_SUM(requests.lookup_tokens)},
    {"reprise_hit_tokens_total", kCounter, "", "Tokens of those that hit.",
     RP_SUM(requests.hit_tokens)},
    {"reprise_verdicts_total", kCounter, "kind",
     "Lookups by kind: exact (window found), replayed (window to be rebuilt), miss.",
     CollectVerdicts},
    {"reprise_served_blocks_total", kCounter, "tier",
     "Blocks given to clients, by where they came from.", CollectServed},

    // What other sizes would hit, from a sample of the blocks (policy.what_if).
    {"reprise_what_if_lookups_total", kCounter, "", "Sampled blocks that requests asked for.",
     RP_SUM(what_if.looked)},
    {"reprise_what_if_hits_total", kCounter, "tier, size",
     "Of these, what a pool of so many times the tier's size would have held, least recently used "
     "leaving. Over the lookups: its hit rate.",
     CollectWhatIf},

    // Blocks.
    {"reprise_blocks", kGauge, "shard", "Blocks in the index.", RP_SHARD_VALUE(blocks.blocks)},
    {"reprise_index_bytes", kGauge, "shard", "Memory of the index.",
     RP_SHARD_VALUE(blocks.index_bytes)},
    {"reprise_dram_blocks", kGauge, "shard", "Blocks in DRAM.", RP_SHARD_VALUE(blocks.dram_blocks)},
    {"reprise_dram_slots", kGauge, "shard", "Slots for blocks in DRAM.",
     RP_SHARD_VALUE(blocks.dram_slots)},
    {"reprise_dram_pinned_slots", kGauge, "shard", "Slots that leases or transfers hold.",
     RP_SHARD_VALUE(blocks.dram_pinned)},
    {"reprise_ssd_blocks", kGauge, "shard", "Blocks on SSD.", RP_SHARD_VALUE(blocks.ssd_blocks)},
    {"reprise_in_flight", kGauge, "shard, kind",
     "Requests in progress, SSD reads (load), SSD writes (append), and operations waiting for a "
     "slot.",
     CollectInFlight},
    {"reprise_puts_total", kCounter, "shard, outcome", "Blocks that were put.", CollectPuts},
    {"reprise_acquires_total", kCounter, "shard, result",
     "Blocks asked for, by where they were found.", CollectAcquires},
    {"reprise_loads_total", kCounter, "shard", "Blocks read from SSD.",
     RP_SHARD_VALUE(blocks.loads)},
    {"reprise_load_errors_total", kCounter, "shard", "SSD reads that failed in the device.",
     RP_SHARD_VALUE(blocks.load_errors)},
    {"reprise_failed_checks_total", kCounter, "shard",
     "Records whose namespace, hash or checksum was wrong: answered as misses and withdrawn.",
     RP_SHARD_VALUE(blocks.failed_checks)},
    {"reprise_dram_evictions_total", kCounter, "shard", "Blocks that left DRAM.",
     RP_SHARD_VALUE(blocks.dram_evictions)},
    {"reprise_ssd_evictions_total", kCounter, "shard", "Blocks that left SSD with their region.",
     RP_SHARD_VALUE(blocks.ssd_evictions)},
    {"reprise_admissions_refused_total", kCounter, "shard", "Blocks that policy kept off SSD.",
     RP_SHARD_VALUE(blocks.admissions_refused)},
    {"reprise_replaced_blocks_total", kCounter, "shard",
     "Replay-derived blocks that an exact computation replaced.", RP_SHARD_VALUE(blocks.replaced)},

    // The SSD log.
    {"reprise_regions", kGauge, "shard, state", "Regions of the SSD log.", CollectRegions},
    {"reprise_ssd_appends_total", kCounter, "shard", "Records written.",
     RP_SHARD_VALUE(log.appended)},
    {"reprise_ssd_append_errors_total", kCounter, "shard", "Record writes that failed.",
     RP_SHARD_VALUE(log.append_errors)},
    {"reprise_ssd_appends_waiting", kGauge, "shard", "Records that wait for a free region.",
     RP_SHARD_VALUE(log.appends_waiting)},
    {"reprise_ssd_reads_total", kCounter, "shard", "Records read.", RP_SHARD_VALUE(log.reads)},
    {"reprise_ssd_read_errors_total", kCounter, "shard", "Record reads that failed.",
     RP_SHARD_VALUE(log.read_errors)},
    {"reprise_ssd_syncs_total", kCounter, "shard", "Syncs of the shard's file.",
     RP_SHARD_VALUE(log.syncs)},
    {"reprise_ssd_written_bytes_total", kCounter, "shard",
     "Bytes written, trailers and moves included.", RP_SHARD_VALUE(log.bytes_written)},
    {"reprise_ssd_read_bytes_total", kCounter, "shard", "Bytes read.",
     RP_SHARD_VALUE(log.bytes_read)},
    {"reprise_ssd_reclaimed_regions_total", kCounter, "shard", "Regions emptied for new blocks.",
     RP_SHARD_VALUE(log.reclaimed_regions)},
    {"reprise_ssd_reinserted_blocks_total", kCounter, "shard",
     "Blocks in use that were moved out of a region before it was emptied.",
     RP_SHARD_VALUE(log.reinserted)},

    // Windows.
    {"reprise_window_snapshots", kGauge, "shard", "Snapshots in the window pool.",
     RP_SHARD_VALUE(windows.snapshots)},
    {"reprise_window_leased", kGauge, "shard", "Snapshots that clients hold.",
     RP_SHARD_VALUE(windows.leased)},
    {"reprise_window_peak_bytes", kGauge, "shard", "Most bytes of snapshots since the start.",
     RP_SHARD_VALUE(windows.bytes_peak)},
    {"reprise_window_events_total", kCounter, "shard, event", "What happened to snapshots.",
     CollectWindowEvents},

    // The engine. Absent without one.
    {"reprise_engine_requests_total", kCounter, "", "Requests for text that have ended.",
     RP_SERVING(counters.requests)},
    {"reprise_engine_running", kGauge, "", "Requests that are worked on.", RP_SERVING(running)},
    {"reprise_engine_waiting", kGauge, "", "Requests that wait for a place.", RP_SERVING(waiting)},
    {"reprise_engine_sessions", kGauge, "", "Sessions with a name.", RP_SERVING(sessions)},
    {"reprise_engine_tokens_total", kCounter, "kind",
     "Tokens of prompts, of these hit and computed; tokens replayed to rebuild windows; tokens "
     "given out; drafts tried and accepted.",
     CollectServedTokens},
    {"reprise_engine_answers_total", kCounter, "exactness",
     "Answers by whether something they derive from was rebuilt by an encoder replay.",
     CollectAnswers},
    {"reprise_engine_windows_total", kCounter, "window",
     "Requests by where their windows came from.", CollectWindowSources},
    {"reprise_engine_events_total", kCounter, "event",
     "What did not go as it should: requests refused, cancelled or failed; blocks that could not "
     "be loaded or were not worth loading; snapshots that failed a check; blocks not stored.",
     CollectServingFaults},
    {"reprise_engine_seconds_total", kCounter, "", "Time spent in the engine.",
     RP_SERVING(counters.engine_seconds)},
    {"reprise_engine_saved_seconds_total", kCounter, "",
     "Time that computing the hits would have taken, less their replays.",
     RP_SERVING(counters.saved_seconds)},
    {"reprise_engine_steps_total", kCounter, "", "Batches run.", RP_SERVING(counters.steps)},
    {"reprise_engine_buffers", kGauge, "", "Blocks of memory for active sequences.",
     RP_SERVING(buffers)},
    {"reprise_engine_buffers_reserved", kGauge, "", "Of these, reserved by requests.",
     RP_SERVING(buffers_reserved)},
    {"reprise_engine_hit_blocks_total", kCounter, "tier", "Blocks of hits, by where they were.",
     CollectHitBlocks},
    {"reprise_hbm_slots", kGauge, "", "Blocks that fit.", RP_SERVING(hbm.slots)},
    {"reprise_hbm_slots_reserved", kGauge, "", "Of these, reserved by requests and leases.",
     RP_SERVING(hbm.reserved)},
    {"reprise_hbm_slots_lent", kGauge, "", "Of these, leased by local engines.",
     RP_SERVING(hbm.lent)},
    {"reprise_hbm_slots_lent_max", kGauge, "", "Slots that leases may hold at once.",
     RP_SERVING(hbm.lent_max)},
    {"reprise_hbm_blocks", kGauge, "", "Blocks in HBM that requests can find.",
     RP_SERVING(hbm.blocks)},
    {"reprise_hbm_loads_total", kCounter, "", "Blocks copied from DRAM to HBM.",
     RP_SERVING(hbm.loads)},
    {"reprise_hbm_loaded_bytes_total", kCounter, "", "Bytes of these.",
     RP_SERVING(hbm.loaded_bytes)},
    {"reprise_hbm_evictions_total", kCounter, "", "Blocks that left HBM for others.",
     RP_SERVING(hbm.evictions)},
    {"reprise_hbm_stored_out_total", kCounter, "",
     "Of these, blocks that the store had not taken and was given once more.",
     RP_SERVING(hbm.stored_out)},
    {"reprise_engine_row_seconds", kGauge, "", "Time of a prompt's row, measured lately.",
     RP_SERVING(seconds_per_row)},
    {"reprise_shadow_requests_total", kCounter, "",
     "Replayed requests that were computed again with exact windows.",
     RP_SERVING(counters.shadow_requests)},
    {"reprise_shadow_tokens_total", kCounter, "", "Tokens of theirs that were compared.",
     RP_SERVING(counters.shadow_tokens)},
    {"reprise_shadow_agreed_tokens_total", kCounter, "",
     "Of these, tokens whose likeliest successor is the same.", RP_SERVING(counters.shadow_agreed)},
    {"reprise_shadow_kl_nats_total", kCounter, "",
     "Divergence of the replayed from the exact distribution, summed over the tokens compared.",
     RP_SERVING(counters.shadow_kl_nats)},

    // The last start.
    {"reprise_recovery_regions", kGauge, "shard, source",
     "Regions at the last start, by what told their contents.", CollectRecoveredRegions},
    {"reprise_recovery_blocks", kGauge, "shard", "Blocks found at the last start.",
     RP_SHARD_VALUE(recovery.blocks)},
    {"reprise_recovery_torn_records", kGauge, "shard",
     "Records begun but not whole at the last start.", RP_SHARD_VALUE(recovery.records_torn)},
    {"reprise_recovery_read_bytes", kGauge, "shard", "Bytes read to find them.",
     RP_SHARD_VALUE(recovery.bytes_read)},
};

#undef RP_SHARD_VALUE
#undef RP_VALUE
#undef RP_SUM
#undef RP_SERVING

const char* TypeName(MetricType type) {
  return type == kCounter ? "counter" : type == kHistogram ? "histogram" : "gauge";
}

}  // namespace

std::string MetricsText(const MetricsSnapshot& snapshot) {
  std::vector<MetricFamily> families;
  families.reserve(std::size(kMetrics));
  for (const Metric& metric : kMetrics) {
    MetricFamily family{metric.name, metric.help, metric.type, {}};
    Samples samples(&family);
    metric.collect(snapshot, &samples);
    if (!family.metric.empty()) families.push_back(std::move(family));
  }
  return prometheus::TextSerializer().Serialize(families);
}

std::string MetricsPage() {
  std::ostringstream page;
  page << "# Metrics\n\n"
          "`GET /metrics` on `listen.http`, in the Prometheus text format. Generated from the "
          "table in\n"
          "`server/metrics.cc`; a test compares the two.\n\n"
          "Sizes are bytes, times seconds. A counter starts at 0 with the process. A gauge is "
          "counted from\n"
          "the daemon's state when it is asked for. `deploy/RUNBOOK.md` says what to do about "
          "them.\n\n"
          "| metric | type | labels | meaning |\n|---|---|---|---|\n";
  for (const Metric& metric : kMetrics) {
    page << "| `" << metric.name << "` | " << TypeName(metric.type) << " | " << metric.labels
         << " | " << metric.help << " |\n";
  }
  return page.str();
}

}  // namespace reprise::server
