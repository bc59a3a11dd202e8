#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/economics/costs.h"
#include "client/simulate/settings.h"
#include "client/simulate/simulation.h"
#include "client/simulate/store_trace.h"
#include "storage/economics/block_trace.h"
#include "storage/economics/reuse_study.h"

namespace reprise {

// US dollars over the counted part of a trace.
struct Money {
  double saved = 0;  // GPU time that hits did not need.
  // What that took: GPU time for replays, holding of the tiers for the time the trace spans, wear.
  double replay = 0, hbm = 0, dram = 0, window = 0, ssd = 0, ssd_wear = 0;
  // What an API's customer would pay by its list price, without and with cache hits.
  double list_without = 0, list_with = 0;
  double spent() const { return replay + hbm + dram + window + ssd + ssd_wear; }
};
Money MoneyOf(const SimulationSettings& settings, const SimulationFigures& figures,
              const Costs& costs);

// A configuration, what it counted and what that is worth.
struct SimulatedRun {
  SimulationSettings settings;
  SimulationFigures figures;
  Money money;
};

// What happened between two moments of the trace.
struct TimeBucket {
  double begin_hours = 0;
  uint64_t requests = 0, input_tokens = 0, replayed_hits = 0;
  HitTokens hit;
  uint64_t ssd_bytes_written = 0;
  uint64_t window_bytes = 0;               // At most.
  uint64_t dram_bytes = 0, ssd_bytes = 0;  // In use, at the end, of the machine that served last.
  uint64_t evictions = 0;                  // Blocks that left the last tier.
  double computed_gpu_seconds = 0, replayed_gpu_seconds = 0, saved_gpu_seconds = 0;
  double load_seconds = 0;
};

struct SessionTotal {
  uint32_t session = 0;
  uint64_t requests = 0, input_tokens = 0, hit_tokens = 0;
};

struct CurvePoint {
  uint64_t bytes = 0;
  double hit_rate = 0;
};

// Everything that a report shows.
struct Study {
  std::string trace, format, command;
  std::string fingerprint;  // SHA-256 of the file's bytes; empty: generated.
  uint64_t skipped_lines = 0;
  TraceScale scale;
  double warm_up = 0;

  uint32_t record_bytes = 0;
  SimulatedRun run;  // The configuration asked for.
  std::vector<TimeBucket> buckets;
  std::vector<SessionTotal> sessions;  // Most uncomputed tokens first; a few.
  uint64_t session_count = 0;

  double ceiling = 0;  // Hit rate without limits.
  // By what one pool of blocks may hold: exact for every size.
  std::vector<CurvePoint> lru;
  std::vector<CurvePoint> naive, belady;  // Fewer points; belady may be empty.

  std::vector<SimulatedRun> sweep;  // Empty: none was asked for.
};

// Runs the points over `threads` threads; `done` is called from any of them, one at a time.
absl::StatusOr<std::vector<SimulatedRun>> RunPoints(
    const economics::BlockTrace& trace, const std::vector<SimulationSettings>& points,
    const CostProfile& profile, double warm_up, uint32_t threads,
    const std::function<void(uint64_t points)>& done);

// The run with its series. `costs` are of settings.model.
absl::Status RunWithSeries(const economics::BlockTrace& trace, const Costs& costs, Study* study);

// The curves; `belady` takes a minute or more for a long trace.
void AddCurves(const economics::BlockTrace& trace, const Costs& costs, bool belady,
               uint32_t threads, Study* study);

// TTLs weighed: the cheapest, and what windows on SSD instead of replays would cost.
struct WindowEconomics {
  double ttl_seconds = 0;        // That costs least; 0: keep none.
  double ttl_usd = 0;            // Its holding and replays.
  double no_pool_usd = 0;        // Every hit is replayed.
  double configured_usd = 0;     // At the TTL asked for.
  uint64_t persisted_bytes = 0;  // V4's way: a snapshot at each prompt's end, on SSD for good.
  double persisted_usd = 0;      // Its wear, and holding until the trace ends.
};
WindowEconomics WeighWindows(const economics::BlockTrace& trace, const economics::ReuseStudy& reuse,
                             Nanos ttl_ns, const Costs& costs);

}  // namespace reprise
