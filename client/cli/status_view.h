#pragma once

#include <map>
#include <string>

#include "client/cli/commands.h"

namespace reprise::cli {

// A value for a person, by the unit in its key: "used_bytes": 1.50 GiB, "uptime_ms": 12.0 s.
std::string ValueText(const std::string& key, const Json& value);

// A JSON object as indented, aligned lines; nested objects become sections.
std::string ObjectText(const Json& object);

// All numbers in `object` by path: "tiers.dram.blocks".
std::map<std::string, double> Numbers(const Json& object);

// The lines of `reprise top`: every number under the sections "tiers", "windows" and "traffic", and
// the change per second since `before`.
std::string RatesText(const Json& before, const Json& now, double seconds);
// The same as an object: {"seconds", "status", "rates_per_second": {path: rate}}.
Json RatesJson(const Json& before, const Json& now, double seconds);

}  // namespace reprise::cli
