#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client/simulate/simulation.h"
#include "protocol/base/status.h"

namespace reprise {

// What is simulated: everything that a sweep may vary, as the command line gives it.
struct SimulationSettings {
  std::string model = "v4.1-flash";
  uint64_t hbm_bytes = 0;
  uint64_t dram_bytes = 1_GiB;
  uint64_t ssd_bytes = 4_GiB;
  uint64_t region_bytes = 64_MiB;
  static constexpr uint64_t kTenPercentOfDram = UINT64_MAX;
  uint64_t window_bytes = kTenPercentOfDram;
  Nanos window_ttl_ns = 600 * kSecond;
  uint32_t window_positions = 3;
  std::string policy = "lru";
  std::string admission = "all";
  std::string ssd_policy = "fifo";
  std::string ssd_write = "through";
  std::string snapshots = "prompt-end";
  bool durable = false;
  uint32_t reinsert_percent = 10;
  uint32_t machines = 1;
  std::string placement = "root";

  uint64_t window_pool_bytes() const {
    return window_bytes == kTenPercentOfDram ? dram_bytes / 10 : window_bytes;
  }
  // What Simulate takes, for this model.
  SimulationOptions OptionsFor(const ModelCosts& model, double warm_up) const;
};

// One of the above, by name: "dram", "window-ttl". `set` refuses what cannot be, and says why.
struct Setting {
  std::string_view name;
  std::string_view type;  // "SIZE", "DURATION", words, "N".
  std::string_view help;
  absl::Status (*set)(SimulationSettings* settings, const std::string& text);
  std::string (*get)(const SimulationSettings& settings);
};
std::span<const Setting> AllSettings();
// InvalidArgument names those that there are.
absl::StatusOr<const Setting*> FindSetting(std::string_view name);

// One axis of a sweep: "dram=64GiB,256GiB,1TiB", or "dram=1GiB..64GiB:7" for 7 sizes in equal
// ratios.
struct SweepAxis {
  const Setting* setting = nullptr;
  std::vector<std::string> values;
};
absl::StatusOr<SweepAxis> ParseSweepAxis(const std::string& text);
// Every combination, the last axis varying fastest.
absl::StatusOr<std::vector<SimulationSettings>> SweepPoints(const SimulationSettings& base,
                                                            const std::vector<SweepAxis>& axes);

}  // namespace reprise
