#include "tests/sim/limits.h"

#include <initializer_list>
#include <utility>

namespace reprise::sim {
namespace {

template <typename T>
T Pick(Prng* prng, std::initializer_list<T> values) {
  return values.begin()[prng->Below(values.size())];
}

}  // namespace

Limits Limits::Draw(Prng* prng) {
  using SsdWrite = storage::BlockStore::SsdWrite;
  Limits limits;
  limits.shards = Pick(prng, {1u, 1u, 2u, 3u});
  limits.clients = Pick(prng, {1u, 2u, 4u, 7u});
  limits.connections_max = Pick(prng, {2u, 64u, 64u, 64u});
  limits.pipeline = Pick(prng, {1u, 2u, 8u});

  limits.block_slots = Pick(prng, {4u, 5u, 7u, 16u, 40u});
  limits.window_slots = Pick(prng, {0u, 1u, 3u, 8u});
  limits.region_slots = Pick(prng, {1u, 2u, 3u, 5u, 8u});
  limits.region_count = Pick(prng, {0u, 3u, 3u, 4u, 5u, 8u});
  limits.loads_max = Pick(prng, {1u, 2u, 5u, 64u});
  limits.appends_max = Pick(prng, {1u, 2u, 5u, 64u});
  limits.waiting_max = Pick(prng, {1u, 2u, 6u, 4'096u});
  limits.reinsert_percent = Pick(prng, {0u, 10u, 34u, 50u});
  limits.hot_frequency = Pick<uint8_t>(prng, {1, 1, 2, 3});
  limits.dram_eviction = Pick(prng, {"lru", "s3fifo"});
  limits.region_eviction = Pick(prng, {"fifo", "lru", "s3fifo"});
  limits.ssd_admission = Pick(prng, {"all", "all", "tinylfu"});
  limits.ssd_write = Pick(prng, {SsdWrite::kThrough, SsdWrite::kDemote});
  limits.replace_replay_derived = Pick(prng, {true, true, false});
  limits.snapshots_max = Pick(prng, {1u, 3u, 64u});
  limits.positions_per_session = Pick(prng, {0u, 1u, 3u});

  limits.quota_blocks = Pick<uint64_t>(prng, {0, 0, 3, 12});
  limits.body_bytes_max = Pick<uint64_t>(prng, {1u << 20, 3u << 20});
  limits.tick_ns = Pick<Nanos>(prng, {kMillisecond / 4, kMillisecond, 2 * kMillisecond});
  limits.window_ttl_ns = Pick<Nanos>(prng, {20 * kMillisecond, 300 * kMillisecond, 600 * kSecond});
  limits.deadline_default_ns = Pick<Nanos>(prng, {30 * kMillisecond, kSecond, 5 * kSecond});
  limits.idle_frame_timeout_ns = Pick<Nanos>(prng, {100 * kMillisecond, kSecond});
  // A whole send must fit, also where the network cuts it into small pieces.
  limits.send_timeout_ns = limits.tick_ns * Pick<Nanos>(prng, {1'000, 3'000});
  limits.disk_latency_ticks_max = Pick(prng, {0u, 3u, 20u});
  limits.rdma = prng->Chance(400);
  limits.queue_pairs_max = Pick(prng, {1u, 4u, 64u});
  return limits;
}

std::string Limits::Describe() const {
  const std::pair<const char*, uint64_t> rows[] = {
      {"shards", shards},
      {"clients", clients},
      {"connections", connections_max},
      {"pipeline", pipeline},
      {"block_slots", block_slots},
      {"window_slots", window_slots},
      {"regions", region_count},
      {"region_slots", region_slots},
      {"loads", loads_max},
      {"appends", appends_max},
      {"waiting", waiting_max},
      {"reinsert", reinsert_percent},
      {"quota", quota_blocks},
      {"queue_pairs", rdma ? queue_pairs_max : 0},
      {"ttl_ms", static_cast<uint64_t>(window_ttl_ns / kMillisecond)},
  };
  std::string text;
  for (const auto& [name, value] : rows)
    text += std::string(name) + "=" + std::to_string(value) + " ";
  const bool demote = ssd_write == storage::BlockStore::SsdWrite::kDemote;
  return text + dram_eviction + "/" + region_eviction + "/" + ssd_admission + "/" +
         (demote ? "demote" : "through");
}

Faults Faults::Draw(Prng* prng) {
  Faults faults;
  faults.read_errors = prng->Chance(200);
  faults.write_errors = prng->Chance(200);
  faults.sync_errors = prng->Chance(150);
  faults.no_space = prng->Chance(150);
  faults.power_cuts = prng->Chance(400);
  faults.kills = prng->Chance(250);
  faults.damage = prng->Chance(150);
  faults.meta_loss = prng->Chance(400);
  faults.fragments = prng->Chance(500);
  faults.disconnects = prng->Chance(250);
  faults.silence = prng->Chance(250);
  faults.slow_readers = prng->Chance(250);
  faults.hostile = prng->Chance(250);
  faults.bad_puts = prng->Chance(300);
  faults.clock_jumps = prng->Chance(250);
  faults.stalled_turns = prng->Chance(300);
  faults.rdma_errors = prng->Chance(300);
  return faults;
}

std::string Faults::Describe() const {
  const std::pair<const char*, bool> rows[] = {
      {"read_errors", read_errors}, {"write_errors", write_errors},
      {"sync_errors", sync_errors}, {"no_space", no_space},
      {"power_cuts", power_cuts},   {"kills", kills},
      {"damage", damage},           {"meta_loss", meta_loss},
      {"fragments", fragments},     {"disconnects", disconnects},
      {"silence", silence},         {"slow_readers", slow_readers},
      {"hostile", hostile},         {"bad_puts", bad_puts},
      {"clock_jumps", clock_jumps}, {"stalled_turns", stalled_turns},
      {"rdma_errors", rdma_errors},
  };
  std::string text;
  for (const auto& [name, on] : rows) {
    if (on) text += (text.empty() ? "" : ",") + std::string(name);
  }
  return text.empty() ? "none" : text;
}

}  // namespace reprise::sim
