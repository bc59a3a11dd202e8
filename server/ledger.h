#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics.h"

namespace reprise::server {

// The counts that the ledger adds up over restarts, by name: an interface (`reprise status`), kept
// once they exist.
std::vector<std::pair<std::string, uint64_t>> LedgerTotals(const MetricsSnapshot& snapshot);

}  // namespace reprise::server
