#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "gpu/backends/loaded_model.h"

namespace reprise::bench {

// What bounded replay costs in quality: a text is continued after exact windows, and after windows
// that were replayed in the encoder, in the decoder, and in both (gpu/nano/RESULTS.md).
struct ReplaySample {
  std::string kind;
  uint32_t prefix = 0;  // Tokens before the hit,
  uint32_t suffix = 0;  // and new ones after it; what follows is fed token by token.
  std::vector<TokenId> ids;
};

// Sums over samples; Mean divides.
struct ReplayFigures {
  uint64_t samples = 0;
  double bits = 0;         // Per token, of the text itself.
  double kl_nats = 0;      // Of the exact run's distribution to this one's, per token.
  double kl_max = 0;       // The worst token.
  double agreement = 0;    // Share of next tokens that are the exact run's.
  double exact_match = 0;  // Share of samples whose every token was the likeliest.
};

inline constexpr const char* kReplayModes[] = {"exact", "encoder", "decoder", "both"};

// By kind, then in the order of kReplayModes; means.
using ReplayReport = std::map<std::string, std::vector<ReplayFigures>>;

// One JSON object a line (gpu/nano/replay_samples.py); errors name the line.
absl::StatusOr<std::vector<ReplaySample>> ReadReplaySamples(const std::string& path);

// `progress` is told the samples that are done.
absl::StatusOr<ReplayReport> RunReplayBench(engine::Engine& engine,
                                            const std::vector<ReplaySample>& samples,
                                            const std::function<void(uint64_t)>& progress);

}  // namespace reprise::bench
