#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/economics/costs.h"
#include "storage/economics/block_model.h"
#include "storage/economics/block_trace.h"
#include "storage/economics/window_model.h"

namespace reprise {

// Which machine of several serves a request.
enum class Placement : uint8_t {
  kRoot,        // By rendezvous of its first block: a prefix stays together.
  kSession,     // By rendezvous of its session; without one, as kRoot.
  kRoundRobin,  // In turn: each machine keeps what it happens to see.
};

struct SimulationOptions {
  economics::BlockModel::Options blocks;  // Of each machine.
  economics::WindowModel::Options windows;
  bool fork_snapshots = false;  // A snapshot where a hit is replayed a second time, too.
  uint32_t machines = 1;
  Placement placement = Placement::kRoot;
  double warm_up = 0;  // This share of the requests is served and not counted.
};

// What a run counted; names are those of `reprise drive`. Hits of one request are in whole blocks,
// and a prompt may hit whole.
struct SimulationFigures {
  uint64_t requests = 0, input_tokens = 0, output_tokens = 0;
  HitTokens hit_tokens;
  uint64_t exact_hits = 0, replayed_hits = 0, misses = 0, replayed_tokens = 0;
  uint64_t fork_hits = 0;  // Replayed ones that end where no snapshot was ever taken.
  uint64_t lost_blocks = 0;
  economics::BlockModel::Counts blocks;  // Of all machines, since the warm-up.
  uint64_t window_pool_peak_bytes = 0;   // Sum of the machines' peaks.
  uint64_t window_puts = 0, window_expired = 0, window_evicted = 0;
  uint64_t dram_bytes_read = 0;
  Nanos span_ns = 0;
  double cold_gpu_seconds = 0, compute_gpu_seconds = 0, replay_gpu_seconds = 0, load_seconds = 0;
  // Seconds to the first token, by percentile 50, 95 and 99, with the cache and without.
  std::array<double, 3> first_token{}, first_token_cold{};
  // The same by percentile 0, 1, .. 100.
  std::array<float, 101> first_token_by_percent{}, first_token_cold_by_percent{};

  double hit_rate() const {
    return input_tokens == 0
               ? 0
               : static_cast<double>(hit_tokens.all()) / static_cast<double>(input_tokens);
  }
  double saved_gpu_seconds() const {
    return cold_gpu_seconds - compute_gpu_seconds - replay_gpu_seconds;
  }
};

// One request as it was served.
struct ServedRequest {
  size_t index = 0;
  uint32_t machine = 0;
  bool counted = true;  // The warm-up is over.
  HitTokens hit;
  bool replayed = false;
  bool fork = false;
  RequestCost cost;
  // Of its machine, afterwards: bytes in the window pool, blocks in tiers.
  uint64_t window_bytes = 0;
  uint32_t dram_blocks = 0, ssd_blocks = 0;
  // By it.
  uint64_t ssd_bytes_written = 0, evictions = 0;
};

// Serves a trace as machines with these options would, under a virtual clock: each request is what
// `reprise drive` does for it. Deterministic. Any number of runs may share a trace, one thread
// each.
absl::StatusOr<SimulationFigures> Simulate(
    const economics::BlockTrace& trace, const SimulationOptions& options, const Costs& costs,
    const std::function<void(const ServedRequest&)>& served = {});

}  // namespace reprise
