#include "protocol/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace reprise {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array<Unit, 9> kByteUnits = {{{"B", 1.0},
                                             {"KiB", 1024.0},
                                             {"MiB", 1048576.0},
                                             {"GiB", 1073741824.0},
                                             {"TiB", 1099511627776.0},
                                             {"KB", 1e3},
                                             {"MB", 1e6},
                                             {"GB", 1e9},
                                             {"TB", 1e12}}};
constexpr std::array<Unit, 7> kTimeUnits = {{{"ns", 1.0},
                                             {"us", 1e3},
                                             {"ms", 1e6},
                                             {"s", 1e9},
                                             {"m", 60e9},
                                             {"h", 3600e9},
                                             {"d", 86400e9}}};

template <size_t N>
absl::StatusOr<uint64_t> ParseQuantity(std::string_view text, const std::array<Unit, N>& units,
                                       const char* example) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (error == std::errc() && value >= 0 && std::isfinite(value)) {
    for (const Unit& known : units) {
      if (unit != known.name) continue;
      const double scaled = value * known.factor;
      if (scaled >= 9.2e18) break;
      return static_cast<uint64_t>(std::llround(scaled));
    }
  }
  return InvalidArgument("\"" + std::string(text) + "\" is not a quantity with a unit, such as " +
                         example);
}

// `units` from large to small; the last divides everything.
template <size_t N>
std::string Exact(uint64_t value, const std::array<Unit, N>& units) {
  for (const Unit& unit : units) {
    const auto factor = static_cast<uint64_t>(unit.factor);
    if (value != 0 && value % factor == 0) {
      return std::to_string(value / factor) + std::string(unit.name);
    }
  }
  return "0" + std::string(units.back().name);
}

std::string Format(const char* format, double value, const char* unit) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value, unit);
  return text.data();
}

}  // namespace

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  return ParseQuantity(text, kByteUnits, "64GiB, 512MiB or 4096B");
}

absl::StatusOr<Nanos> ParseDuration(std::string_view text) {
  RP_ASSIGN(const uint64_t nanos, ParseQuantity(text, kTimeUnits, "250ms, 30s, 10m or 2h"));
  return static_cast<Nanos>(nanos);
}

std::string ExactBytes(uint64_t bytes) {
  static constexpr std::array<Unit, 4> kUnits = {
      {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0}, {"B", 1.0}}};
  return Exact(bytes, kUnits);
}

std::string ExactDuration(Nanos duration_ns) {
  static constexpr std::array<Unit, 7> kUnits = {{{"d", 86400e9},
                                                  {"h", 3600e9},
                                                  {"m", 60e9},
                                                  {"s", 1e9},
                                                  {"ms", 1e6},
                                                  {"us", 1e3},
                                                  {"ns", 1.0}}};
  return Exact(static_cast<uint64_t>(duration_ns), kUnits);
}

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  static constexpr std::array<const char*, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < kNames.size()) {
    value /= 1024.0;
    ++unit;
  }
  return Format(value < 10 ? "%.2f %s" : "%.1f %s", value, kNames[unit]);
}

std::string FormatDuration(Nanos duration_ns) {
  const double value = static_cast<double>(duration_ns);
  if (value < 1e3) return Format("%.0f %s", value, "ns");
  if (value < 1e6) return Format("%.1f %s", value / 1e3, "us");
  if (value < 1e9) return Format("%.2f %s", value / 1e6, "ms");
  if (value < 120e9) return Format("%.2f %s", value / 1e9, "s");
  if (value < 7200e9) return Format("%.1f %s", value / 60e9, "m");
  return Format("%.1f %s", value / 3600e9, "h");
}

}  // namespace reprise
