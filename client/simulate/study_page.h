#pragma once

#include <string>

#include "client/simulate/study.h"

namespace reprise {

// The study as one HTML page that needs nothing else: plots are inline SVG, every plot has its
// table, and a small script prices it anew when a price is moved (what hits does not depend on
// prices). Readable without the script, in print and in the dark.
std::string StudyPage(const Study& study, const economics::ReuseStudy& reuse,
                      const WindowEconomics& windows, const Costs& costs);

}  // namespace reprise
