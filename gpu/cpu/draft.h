#pragma once

#include <span>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {

// Tokens after each request's, by the draft stages and the Markov head. Writes nothing to the
// requests' memory. results.size() == requests.size().
void RunDraft(Machine& machine, const Rope& rope, std::span<const DraftRequest> requests,
              std::span<DraftResult> results);

}  // namespace reprise::engine::cpu
