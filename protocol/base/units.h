#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/base/clock.h"
#include "protocol/base/status.h"

namespace reprise {

// "64GiB", "1.5 MiB", "500MB", "4096B". A unit is required (a bare number is refused: nobody knows
// what it meant); K, M, G, T with "iB" are powers of 1024, with "B" powers of 1000.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// "250ms", "30s", "10m", "2h", "7d", "500us". A unit is required.
absl::StatusOr<Nanos> ParseDuration(std::string_view text);

// "1.50 GiB", "112 KiB", "17 B".
std::string FormatBytes(uint64_t bytes);
// "1.20 ms", "3.4 s", "10 m".
std::string FormatDuration(Nanos duration_ns);

// In the largest unit that divides the value, so that the parsers give it back: "64GiB", "90s".
std::string ExactBytes(uint64_t bytes);
std::string ExactDuration(Nanos duration_ns);

}  // namespace reprise
