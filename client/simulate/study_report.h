#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/simulate/study.h"

namespace reprise {

using Json = nlohmann::ordered_json;

// What every figure means: shown wherever figures are.
struct Definition {
  const char* term;
  const char* meaning;
};
std::vector<Definition> Definitions();

// The figures of one run, by the names of design section 8.
Json RunJson(const SimulatedRun& run, const Costs& costs);
// Rules that follow from model and prices alone.
Json RulesJson(const Costs& costs);
Json WindowEconomicsJson(const WindowEconomics& weighed);
// Whole study, without the series that only the page shows.
Json StudyJson(const Study& study, const Costs& costs);

std::string RunText(const SimulatedRun& run, const Costs& costs);
// The rules, and what windows are worth, in sentences.
std::string RulesText(const Costs& costs, const WindowEconomics& windows);
// REQUIRES: not empty.
std::vector<const Setting*> SettingsThatDiffer(const std::vector<SimulatedRun>& runs);
// One line for each run of a sweep; columns are the settings that differ, then figures.
std::string SweepText(const std::vector<SimulatedRun>& runs);
std::string SweepCsv(const std::vector<SimulatedRun>& runs);

// "16.0 GiB DRAM + 48.0 GiB SSD reach 99.9 % of the ceiling on this trace; ..."
std::string StudyVerdict(const Study& study, const Costs& costs);

// Shared by text and page.
std::string PercentText(double share, int digits = 2);
std::string UsdText(double usd);
std::string SecondsText(double seconds);
std::string CountText(uint64_t count);  // "144,793,823"

// As plots label their axes.
std::string BytesText(double bytes);
std::string GigabytesText(double bytes);  // Without the unit.
std::string WholePercent(double share);
std::string HoursText(double hours);

inline double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

}  // namespace reprise
