#include "server/ledger.h"

namespace reprise::server {

std::vector<std::pair<std::string, uint64_t>> LedgerTotals(const MetricsSnapshot& snapshot) {
  std::vector<std::pair<std::string, uint64_t>> totals = {
      {"lookup_tokens", 0},   {"hit_tokens", 0},    {"exact_hits", 0},
      {"replayed_hits", 0},   {"misses", 0},        {"blocks_from_dram", 0},
      {"blocks_from_ssd", 0}, {"blocks_stored", 0}, {"ssd_bytes_written", 0},
      {"ssd_bytes_read", 0}};
  for (const ShardMetrics& shard : snapshot.shards) {
    const uint64_t values[] = {shard.requests.lookup_tokens,   shard.requests.hit_tokens,
                               shard.requests.exact_hits,      shard.requests.replayed_hits,
                               shard.requests.misses,          shard.requests.blocks_from_dram,
                               shard.requests.blocks_from_ssd, shard.blocks.puts_stored,
                               shard.log.bytes_written,        shard.log.bytes_read};
    for (size_t i = 0; i < totals.size(); ++i) totals[i].second += values[i];
  }
  if (!snapshot.serving.has_value()) return totals;
  const ServingCounters& c = snapshot.serving->counters;
  const auto milliseconds = [](double seconds) { return static_cast<uint64_t>(seconds * 1e3); };
  totals.insert(totals.end(), {{"requests", c.requests},
                               {"prompt_tokens", c.prompt_tokens},
                               {"prompt_hit_tokens", c.hit_tokens},
                               {"prompt_blocks_from_hbm", c.hbm_blocks},
                               {"prompt_blocks_from_dram", c.dram_blocks},
                               {"prompt_blocks_from_ssd", c.ssd_blocks},
                               {"computed_tokens", c.computed_tokens},
                               {"replayed_tokens", c.replayed_tokens},
                               {"output_tokens", c.output_tokens},
                               {"windows_found", c.found},
                               {"windows_replayed", c.replayed},
                               {"bytes_loaded", c.loaded_bytes},
                               {"bytes_stored", c.stored_bytes},
                               {"engine_ms", milliseconds(c.engine_seconds)},
                               {"saved_ms", milliseconds(c.saved_seconds)}});
  return totals;
}

}  // namespace reprise::server
