#pragma once

#include <vector>

#include "gpu/engine/generation.h"
#include "protocol/base/clock.h"

namespace reprise::engine {

// Runs one generation to its end, from `logits`, those of the sequence's last token. Every token is
// handed to `give` when it is certain; false from it ends the run.
absl::StatusOr<GenerateReport> Generate(Sequence* sequence, const std::vector<float>& logits,
                                        const GenerateOptions& options, const Clock& clock,
                                        const GiveToken& give);

}  // namespace reprise::engine
