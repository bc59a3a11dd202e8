#pragma once

#include <nlohmann/json.hpp>

#include "client/economics/costs.h"

namespace reprise {

// What a daemon's ledger is worth: its counts over all starts, priced by the same model as a
// simulation. `status` is that of `reprise status --json`. Tokens are priced at the profile's
// prompt length, because a ledger does not know of prompts; tiers are held since the daemon's last
// start.
nlohmann::ordered_json LedgerWorth(const nlohmann::ordered_json& status, const Costs& costs);

}  // namespace reprise
