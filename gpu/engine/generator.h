#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/engine/draft_scheduler.h"
#include "gpu/engine/sampler.h"
#include "gpu/engine/sequence.h"
#include "protocol/base/clock.h"

namespace reprise::engine {

struct GenerateOptions {
  uint32_t tokens_max = 256;
  std::vector<TokenId> stop_tokens;  // Given out, and then the end.
  SamplingOptions sampling;
  bool draft = true;        // Where the model has draft stages. Changes speed, never the text.
  uint32_t drafts_max = 5;  // Verified in a step at most.
};

struct GenerateReport {
  uint32_t tokens = 0;
  uint32_t steps = 0;     // Calls of the backbone.
  uint32_t drafted = 0;   // Drafts that were verified,
  uint32_t accepted = 0;  // and that were right.
  bool stopped = false;   // By a stop token or by the callback, not by tokens_max.
  Nanos elapsed_ns = 0;
};

// Goes on from `logits`, those of the sequence's last token. Every token is handed to `give` when
// it is certain; false from it ends the run. The last token given is not run: it is the next turn's
// first. Greedy text is the same with and without drafts.
absl::StatusOr<GenerateReport> Generate(Sequence* sequence, std::vector<float> logits,
                                        const GenerateOptions& options, const Clock& clock,
                                        const std::function<bool(TokenId)>& give);

}  // namespace reprise::engine
