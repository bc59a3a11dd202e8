#pragma once

#include <string>
#include <utility>
#include <vector>

#include "server/metrics.h"

namespace reprise::server {

// What `reprise status --json` and /status show, as one JSON object. Keys are an interface: kept
// once they exist. `ledger` are the durable totals, `connections` one line each.
std::string StatusJson(const MetricsSnapshot& snapshot,
                       const std::vector<std::pair<std::string, uint64_t>>& ledger,
                       const std::vector<std::string>& connections);

}  // namespace reprise::server
