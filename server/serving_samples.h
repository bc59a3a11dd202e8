#pragma once

#include "server/metric_samples.h"
#include "server/metrics.h"
#include "server/serving_metrics.h"

// Samples of the engine's counters, for the table in metrics.cc; none without an engine.
namespace reprise::server {

// One number of the engine's; nothing without an engine.
template <typename Value>
void FromServing(const MetricsSnapshot& snapshot, Samples* out, Value value) {
  if (snapshot.serving.has_value()) {
    out->Add({}, static_cast<double>(value(*snapshot.serving)));
  }
}

struct ServingPart {
  const char* label;
  uint64_t ServingCounters::*at;
};
template <size_t N>
void ServingParts(const MetricsSnapshot& snapshot, Samples* out, const char* label,
                  const ServingPart (&parts)[N]) {
  if (!snapshot.serving.has_value()) return;
  for (const ServingPart& part : parts) {
    out->Add({{label, part.label}}, snapshot.serving->counters.*part.at);
  }
}

inline void CollectAnswers(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr ServingPart kParts[] = {{"exact", &ServingCounters::exact_answers},
                                           {"replayed", &ServingCounters::replayed_answers}};
  ServingParts(snapshot, out, "exactness", kParts);
}

inline void CollectWindowSources(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr ServingPart kParts[] = {{"found", &ServingCounters::found},
                                           {"replayed", &ServingCounters::replayed},
                                           {"rebuilt", &ServingCounters::rebuilt},
                                           {"cold", &ServingCounters::cold}};
  ServingParts(snapshot, out, "window", kParts);
}

inline void CollectHitBlocks(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr ServingPart kParts[] = {{"hbm", &ServingCounters::hbm_blocks},
                                           {"dram", &ServingCounters::dram_blocks},
                                           {"ssd", &ServingCounters::ssd_blocks}};
  ServingParts(snapshot, out, "tier", kParts);
}

inline void CollectServedTokens(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr ServingPart kParts[] = {{"prompt", &ServingCounters::prompt_tokens},
                                           {"hit", &ServingCounters::hit_tokens},
                                           {"computed", &ServingCounters::computed_tokens},
                                           {"replayed", &ServingCounters::replayed_tokens},
                                           {"output", &ServingCounters::output_tokens},
                                           {"drafted", &ServingCounters::drafted},
                                           {"accepted", &ServingCounters::accepted}};
  ServingParts(snapshot, out, "kind", kParts);
}

inline void CollectServingFaults(const MetricsSnapshot& snapshot, Samples* out) {
  static constexpr ServingPart kParts[] = {{"refused", &ServingCounters::refused},
                                           {"cancelled", &ServingCounters::cancelled},
                                           {"failed", &ServingCounters::failed},
                                           {"load_shortfall", &ServingCounters::load_shortfalls},
                                           {"load_declined", &ServingCounters::loads_declined},
                                           {"bad_window", &ServingCounters::bad_windows},
                                           {"not_stored", &ServingCounters::publish_failures}};
  ServingParts(snapshot, out, "event", kParts);
}

}  // namespace reprise::server
