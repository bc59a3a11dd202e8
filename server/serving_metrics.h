#pragma once

#include <cstdint>
#include <string>

namespace reprise::server {

// What is counted of all requests for text; sums since the start.
struct ServingCounters {
  uint64_t requests = 0;  // Ended, in whatever way.
  uint64_t cancelled = 0, failed = 0, refused = 0;
  uint64_t found = 0, replayed = 0, rebuilt = 0, cold = 0;  // By where windows came from.
  uint64_t exact_answers = 0, replayed_answers = 0;
  uint64_t prompt_tokens = 0, hit_tokens = 0, computed_tokens = 0, replayed_tokens = 0;
  uint64_t output_tokens = 0, drafted = 0, accepted = 0;
  uint64_t hbm_blocks = 0, dram_blocks = 0, ssd_blocks = 0;  // Of hits, by where they were.
  uint64_t loaded_bytes = 0, stored_bytes = 0;
  uint64_t load_shortfalls = 0;   // A block could not be loaded: what follows it was computed.
  uint64_t loads_declined = 0;    // Blocks that were computed because reading them takes longer.
  uint64_t bad_windows = 0;       // Snapshots that failed a check: replayed.
  uint64_t publish_failures = 0;  // Blocks or snapshots that the store did not take.
  uint64_t shadow_requests = 0, shadow_tokens = 0, shadow_agreed = 0;
  double shadow_kl_nats = 0;  // Sum over shadow_tokens.
  double engine_seconds = 0;  // In the engine.
  double saved_seconds = 0;   // What computing the hits would have taken, less their replays.
  uint64_t steps = 0;
};

// The HBM tier at one moment, and its counts since the start. All zero without one.
struct HbmMetrics {
  uint32_t slots = 0, reserved = 0;  // All; those that requests and loans may pin.
  uint32_t lent = 0, lent_max = 0;   // Reserved by loans to local engines; the most that may be.
  uint32_t blocks = 0;               // That can be found.
  uint64_t bytes = 0;                // Of all slots.
  uint64_t loads = 0, loaded_bytes = 0;
  uint64_t evictions = 0, stored_out = 0;

  uint64_t used_bytes() const { return slots == 0 ? 0 : bytes / slots * blocks; }
};

// The engine's part of the daemon at one moment.
struct ServingMetrics {
  std::string model;
  std::string backend;
  ServingCounters counters;
  uint32_t running = 0;
  uint32_t waiting = 0;
  uint32_t sessions = 0;
  uint32_t buffers = 0, buffers_reserved = 0;  // Blocks of active sequences.
  HbmMetrics hbm;
  double seconds_per_row = 0;        // Of a prompt, measured lately.
  double load_bytes_per_second = 0;  // From SSD, measured lately.
};

}  // namespace reprise::server
