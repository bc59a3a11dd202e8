#include "server/status.h"

#include <nlohmann/json.hpp>

namespace reprise::server {
namespace {

using Json = nlohmann::ordered_json;

struct Totals {
  storage::BlockStore::Stats blocks;
  storage::RegionLog::Stats log;
  storage::WindowPool::Stats windows;
  storage::RegionLog::RecoveryStats recovery;
  RequestCounters requests;
  uint32_t connections = 0, operations = 0, leases = 0;
  uint64_t leases_revoked = 0;
};

void AddBlocks(const storage::BlockStore::Stats& from, storage::BlockStore::Stats* to) {
  to->blocks += from.blocks;
  to->index_bytes += from.index_bytes;
  to->dram_blocks += from.dram_blocks;
  to->dram_slots += from.dram_slots;
  to->dram_pinned += from.dram_pinned;
  to->ssd_blocks += from.ssd_blocks;
  to->puts_stored += from.puts_stored;
  to->puts_existing += from.puts_existing;
  to->puts_rejected += from.puts_rejected;
  to->puts_busy += from.puts_busy;
  to->puts_invalid += from.puts_invalid;
  to->acquired_dram += from.acquired_dram;
  to->acquired_ssd += from.acquired_ssd;
  to->acquire_misses += from.acquire_misses;
  to->acquire_busy += from.acquire_busy;
  to->loads += from.loads;
  to->load_errors += from.load_errors;
  to->failed_checks += from.failed_checks;
  to->dram_evictions += from.dram_evictions;
  to->ssd_evictions += from.ssd_evictions;
  to->admissions_refused += from.admissions_refused;
  to->replaced += from.replaced;
  to->loads_in_flight += from.loads_in_flight;
  to->appends_in_flight += from.appends_in_flight;
  to->waiting += from.waiting;
}

void AddLog(const storage::RegionLog::Stats& from, storage::RegionLog::Stats* to) {
  to->regions_free += from.regions_free;
  to->regions_open += from.regions_open;
  to->regions_sealed += from.regions_sealed;
  to->regions_reclaiming += from.regions_reclaiming;
  to->appended += from.appended;
  to->append_errors += from.append_errors;
  to->reads += from.reads;
  to->read_errors += from.read_errors;
  to->syncs += from.syncs;
  to->bytes_written += from.bytes_written;
  to->bytes_read += from.bytes_read;
  to->reclaimed_regions += from.reclaimed_regions;
  to->reinserted += from.reinserted;
}

void AddWindows(const storage::WindowPool::Stats& from, storage::WindowPool::Stats* to) {
  to->snapshots += from.snapshots;
  to->bytes += from.bytes;
  to->leased += from.leased;
  to->puts += from.puts;
  to->found += from.found;
  to->absent += from.absent;
  to->expired += from.expired;
  to->evicted += from.evicted;
  to->superseded += from.superseded;
  to->rejected += from.rejected;
  to->bytes_peak += from.bytes_peak;
}

Totals Sum(const MetricsSnapshot& snapshot) {
  Totals totals;
  for (const ShardMetrics& shard : snapshot.shards) {
    AddBlocks(shard.blocks, &totals.blocks);
    AddLog(shard.log, &totals.log);
    AddWindows(shard.windows, &totals.windows);
    totals.recovery.regions_from_index += shard.recovery.regions_from_index;
    totals.recovery.regions_from_trailer += shard.recovery.regions_from_trailer;
    totals.recovery.regions_scanned += shard.recovery.regions_scanned;
    totals.recovery.records_torn += shard.recovery.records_torn;
    totals.recovery.blocks += shard.recovery.blocks;
    totals.recovery.bytes_read += shard.recovery.bytes_read;
    totals.requests.blocks_from_hbm += shard.requests.blocks_from_hbm;
    totals.requests.blocks_from_dram += shard.requests.blocks_from_dram;
    totals.requests.blocks_from_ssd += shard.requests.blocks_from_ssd;
    totals.requests.lookup_tokens += shard.requests.lookup_tokens;
    totals.requests.hit_tokens += shard.requests.hit_tokens;
    totals.requests.exact_hits += shard.requests.exact_hits;
    totals.requests.replayed_hits += shard.requests.replayed_hits;
    totals.requests.misses += shard.requests.misses;
    totals.connections += shard.connections;
    totals.operations += shard.operations;
    totals.leases += shard.leases;
    totals.leases_revoked += shard.leases_revoked;
  }
  return totals;
}

Json TierJson(const MetricsSnapshot& snapshot, const Totals& totals) {
  const uint64_t record_bytes = snapshot.record_bytes;
  const HbmMetrics hbm = snapshot.serving.has_value() ? snapshot.serving->hbm : HbmMetrics();
  return {{"hbm",
           {{"budget_bytes", hbm.bytes},
            {"used_bytes", hbm.used_bytes()},
            {"blocks", hbm.blocks},
            {"slots", hbm.slots},
            {"slots_reserved", hbm.reserved},
            {"slots_lent", hbm.lent},
            {"slots_lent_max", hbm.lent_max},
            {"loaded_blocks", hbm.loads},
            {"loaded_bytes", hbm.loaded_bytes},
            {"evictions", hbm.evictions},
            {"stored_out", hbm.stored_out}}},
          {"dram",
           {{"budget_bytes", snapshot.dram_budget_bytes},
            {"used_bytes", totals.blocks.dram_blocks * record_bytes},
            {"blocks", totals.blocks.dram_blocks},
            {"pinned_blocks", totals.blocks.dram_pinned},
            {"evictions", totals.blocks.dram_evictions},
            {"pages", snapshot.arena_pages}}},
          {"ssd",
           {{"budget_bytes", snapshot.ssd_budget_bytes},
            {"used_bytes", totals.blocks.ssd_blocks * record_bytes},
            {"blocks", totals.blocks.ssd_blocks},
            {"evictions", totals.blocks.ssd_evictions},
            {"bytes_written", totals.log.bytes_written},
            {"bytes_read", totals.log.bytes_read},
            {"regions_free", totals.log.regions_free},
            {"regions_sealed", totals.log.regions_sealed},
            {"reinserted", totals.log.reinserted},
            {"read_errors", totals.log.read_errors},
            {"write_errors", totals.log.append_errors},
            {"admissions_refused", totals.blocks.admissions_refused}}}};
}

Json WindowJson(const MetricsSnapshot& snapshot, const Totals& totals) {
  return {{"budget_bytes", snapshot.window_budget_bytes},
          {"used_bytes", totals.windows.bytes},
          {"peak_bytes", totals.windows.bytes_peak},
          {"snapshots", totals.windows.snapshots},
          {"leased", totals.windows.leased},
          {"puts", totals.windows.puts},
          {"found", totals.windows.found},
          {"absent", totals.windows.absent},
          {"expired", totals.windows.expired},
          {"evicted", totals.windows.evicted},
          {"superseded", totals.windows.superseded}};
}

Json TrafficJson(const Totals& totals) {
  return {{"lookup_tokens", totals.requests.lookup_tokens},
          {"hit_tokens", totals.requests.hit_tokens},
          {"exact_hits", totals.requests.exact_hits},
          {"replayed_hits", totals.requests.replayed_hits},
          {"misses", totals.requests.misses},
          {"blocks_from_hbm", totals.requests.blocks_from_hbm},
          {"blocks_from_dram", totals.requests.blocks_from_dram},
          {"blocks_from_ssd", totals.requests.blocks_from_ssd},
          {"puts_stored", totals.blocks.puts_stored},
          {"puts_existing", totals.blocks.puts_existing},
          {"puts_busy", totals.blocks.puts_busy},
          {"puts_rejected", totals.blocks.puts_rejected},
          {"puts_invalid", totals.blocks.puts_invalid},
          {"failed_checks", totals.blocks.failed_checks},
          {"waiting", totals.blocks.waiting}};
}

// Hit rates of pools of other sizes, by tier.
Json WhatIfJson(const MetricsSnapshot& snapshot) {
  uint64_t looked = 0;
  for (const ShardMetrics& shard : snapshot.shards) looked += shard.what_if.looked;
  Json rates = Json::object();
  for (size_t i = 0; i < snapshot.what_if_sizes.size(); ++i) {
    uint64_t hits = 0;
    for (const ShardMetrics& shard : snapshot.shards) hits += shard.what_if.hits[i];
    const WhatIfSize& size = snapshot.what_if_sizes[i];
    rates[size.tier][size.times] =
        looked == 0 ? Json() : Json(static_cast<double>(hits) / static_cast<double>(looked));
  }
  return {{"sampled_lookups", looked}, {"hit_rate", std::move(rates)}};
}

Json ServingJson(const ServingMetrics& serving) {
  const ServingCounters& c = serving.counters;
  return {{"model", serving.model},
          {"backend", serving.backend},
          {"running", serving.running},
          {"waiting", serving.waiting},
          {"sessions", serving.sessions},
          {"buffers", serving.buffers},
          {"buffers_reserved", serving.buffers_reserved},
          {"seconds_per_row", serving.seconds_per_row},
          {"load_bytes_per_second", serving.load_bytes_per_second},
          {"counters",
           {{"requests", c.requests},
            {"cancelled", c.cancelled},
            {"failed", c.failed},
            {"refused", c.refused},
            {"found", c.found},
            {"replayed", c.replayed},
            {"rebuilt", c.rebuilt},
            {"cold", c.cold},
            {"exact_answers", c.exact_answers},
            {"replayed_answers", c.replayed_answers},
            {"prompt_tokens", c.prompt_tokens},
            {"hit_tokens", c.hit_tokens},
            {"computed_tokens", c.computed_tokens},
            {"replayed_tokens", c.replayed_tokens},
            {"output_tokens", c.output_tokens},
            {"drafted", c.drafted},
            {"accepted", c.accepted},
            {"hbm_blocks", c.hbm_blocks},
            {"dram_blocks", c.dram_blocks},
            {"ssd_blocks", c.ssd_blocks},
            {"loaded_bytes", c.loaded_bytes},
            {"stored_bytes", c.stored_bytes},
            {"load_shortfalls", c.load_shortfalls},
            {"loads_declined", c.loads_declined},
            {"bad_windows", c.bad_windows},
            {"publish_failures", c.publish_failures},
            {"shadow_requests", c.shadow_requests},
            {"shadow_tokens", c.shadow_tokens},
            {"shadow_agreed", c.shadow_agreed},
            {"shadow_kl_nats", c.shadow_kl_nats},
            {"engine_seconds", c.engine_seconds},
            {"saved_seconds", c.saved_seconds},
            {"steps", c.steps}}}};
}

Json RdmaJson(const MetricsSnapshot& snapshot) {
  RdmaTransport::Counters sum;
  Json errors = Json::object();
  for (const ShardMetrics& shard : snapshot.shards) {
    sum.queue_pairs += shard.rdma.queue_pairs;
    sum.message_bytes += shard.rdma.message_bytes;
    sum.staging_bytes += shard.rdma.staging_bytes;
    sum.accepted += shard.rdma.accepted;
    sum.declined += shard.rdma.declined;
    sum.writes += shard.rdma.writes;
    for (size_t i = 0; i < rdma::kWorkErrors; ++i) sum.errors[i] += shard.rdma.errors[i];
  }
  for (size_t i = 1; i < rdma::kWorkErrors; ++i) {
    errors[std::string(rdma::WorkErrorName(static_cast<rdma::WorkError>(i)))] = sum.errors[i];
  }
  return {{"ports", snapshot.rdma_ports},
          {"queue_pairs", sum.queue_pairs},
          {"message_bytes", sum.message_bytes},
          {"staging_bytes", sum.staging_bytes},
          {"accepted", sum.accepted},
          {"declined", sum.declined},
          {"writes", sum.writes},
          {"errors", std::move(errors)}};
}

}  // namespace

std::string StatusJson(const MetricsSnapshot& snapshot,
                       const std::vector<std::pair<std::string, uint64_t>>& ledger,
                       const std::vector<std::string>& connections) {
  const Totals totals = Sum(snapshot);
  Json status = {{"version", snapshot.version},
                 {"model", snapshot.model},
                 {"ready", snapshot.ready},
                 {"uptime_seconds", snapshot.uptime_seconds},
                 {"startup_seconds", snapshot.startup_seconds},
                 {"record_bytes", snapshot.record_bytes},
                 {"shards", snapshot.shards.size()},
                 {"blocks", totals.blocks.blocks},
                 {"index_bytes", totals.blocks.index_bytes},
                 {"namespaces", snapshot.namespaces},
                 {"tiers", TierJson(snapshot, totals)},
                 {"window_pool", WindowJson(snapshot, totals)},
                 {"traffic", TrafficJson(totals)}};
  if (!snapshot.what_if_sizes.empty()) status["what_if"] = WhatIfJson(snapshot);
  if (!snapshot.rdma_ports.empty()) status["rdma"] = RdmaJson(snapshot);
  status["recovery"] = {{"blocks", totals.recovery.blocks},
                        {"regions_from_index", totals.recovery.regions_from_index},
                        {"regions_from_trailer", totals.recovery.regions_from_trailer},
                        {"regions_scanned", totals.recovery.regions_scanned},
                        {"records_torn", totals.recovery.records_torn},
                        {"bytes_read", totals.recovery.bytes_read}};
  status["clients"] = {{"connections", totals.connections},
                       {"operations", totals.operations},
                       {"leases", totals.leases},
                       {"leases_revoked", totals.leases_revoked},
                       {"staging_bytes", snapshot.staging_bytes},
                       {"list", connections}};
  if (snapshot.serving.has_value()) status["serving"] = ServingJson(*snapshot.serving);
  status["ledger"] = Json::object();
  for (const auto& [name, value] : ledger) status["ledger"][name] = value;
  status["trace_recording"] = snapshot.trace_recording;
  status["trace_dropped"] = snapshot.trace_dropped;
  status["meta_dropped_writes"] = snapshot.meta_dropped_writes;
  return status.dump();
}

}  // namespace reprise::server
