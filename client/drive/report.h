#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "client/drive/figures.h"

namespace reprise {

// The figures of a run as `--json` prints them: names are an interface. `before` and `after`: the
// daemon's counters around the run, which other clients of the daemon share.
nlohmann::ordered_json DriveJson(const DriveFigures& figures, const StoreCounters& before,
                                 const StoreCounters& after);
// The same for a person, as a table.
std::string DriveTable(const DriveFigures& figures, const StoreCounters& before,
                       const StoreCounters& after);

}  // namespace reprise
