#include "client/cli/status_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

struct TimeUnit {
  std::string_view suffix;
  double factor_ns;
};
constexpr std::array<TimeUnit, 5> kTimeUnits = {
    {{"_ns", 1}, {"_us", 1e3}, {"_ms", 1e6}, {"_s", 1e9}, {"_seconds", 1e9}}};

bool CountsBytes(std::string_view key) {
  return key == "bytes" || key.ends_with("_bytes") || key.starts_with("bytes_");
}

std::string NumberText(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value == std::floor(value) ? "%.0f" : "%.3f", value);
  return text.data();
}

std::string QuantityText(std::string_view key, double value) {
  if (CountsBytes(key) && value >= 0) return FormatBytes(static_cast<uint64_t>(value));
  for (const TimeUnit& unit : kTimeUnits) {
    if (key.ends_with(unit.suffix) && std::abs(value * unit.factor_ns) < 9e18) {
      return FormatDuration(static_cast<Nanos>(value * unit.factor_ns));
    }
  }
  return NumberText(value);
}

std::string Padded(const std::string& text, size_t width) {
  return text + std::string(width > text.size() ? width - text.size() : 0, ' ');
}

void AppendObject(const Json& object, const std::string& indent, std::string* out) {
  size_t width = 0;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_structured()) width = std::max(width, key.size());
  }
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      *out += indent + key + "\n";
      AppendObject(value, indent + "  ", out);
    } else if (value.is_array()) {
      *out += indent + key + "\n";
      for (const Json& item : value) *out += indent + "  " + ValueText(key, item) + "\n";
    } else {
      *out += indent + Padded(key, width + 2) + ValueText(key, value) + "\n";
    }
  }
}

void Collect(const Json& object, const std::string& prefix, std::map<std::string, double>* out) {
  for (const auto& [key, value] : object.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object()) Collect(value, path, out);
    if (value.is_number()) (*out)[path] = value.get<double>();
  }
}

bool ShownByTop(const std::string& path) {
  return path.starts_with("tiers.") || path.starts_with("window") || path.starts_with("traffic.");
}

}  // namespace

std::string ValueText(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return QuantityText(key, value.get<double>());
  return value.dump();
}

std::string ObjectText(const Json& object) {
  std::string text;
  AppendObject(object, "", &text);
  return text;
}

std::map<std::string, double> Numbers(const Json& object) {
  std::map<std::string, double> numbers;
  Collect(object, "", &numbers);
  return numbers;
}

std::string RatesText(const Json& before, const Json& now, double seconds) {
  const auto old_numbers = Numbers(before);
  std::string text;
  std::string section;
  for (const auto& [path, value] : Numbers(now)) {
    if (!ShownByTop(path)) continue;
    const size_t dot = path.rfind('.');
    const std::string key = path.substr(dot + 1);
    if (path.substr(0, dot) != section) {
      section = path.substr(0, dot);
      text += section + "\n";
    }
    const auto old = old_numbers.find(path);
    const double rate =
        old == old_numbers.end() || seconds <= 0 ? 0 : (value - old->second) / seconds;
    text += "  " + Padded(key, 22) + Padded(QuantityText(key, value), 14);
    if (rate != 0)
      text += (rate < 0 ? "-" : "") + QuantityText(key, std::abs(std::round(rate))) + "/s";
    text += "\n";
  }
  return text;
}

Json RatesJson(const Json& before, const Json& now, double seconds) {
  const auto old_numbers = Numbers(before);
  Json rates = Json::object();
  for (const auto& [path, value] : Numbers(now)) {
    const auto old = old_numbers.find(path);
    if (ShownByTop(path) && old != old_numbers.end() && seconds > 0) {
      rates[path] = (value - old->second) / seconds;
    }
  }
  return {{"seconds", seconds}, {"status", now}, {"rates_per_second", rates}};
}

}  // namespace reprise::cli
