#include "client/drive/report.h"

#include <cstdarg>
#include <cstdio>
#include <optional>

#include "protocol/base/units.h"

namespace reprise {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kPercentiles[] = {0.5, 0.9, 0.99};
constexpr const char* kPercentileNames[] = {"p50", "p90", "p99"};

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

double Seconds(const DriveFigures& figures) {
  return static_cast<double>(figures.elapsed_ns) / static_cast<double>(kSecond);
}

double GigabytesPerSecond(const DriveFigures& figures, uint64_t bytes) {
  return Ratio(static_cast<double>(bytes) / 1e9, Seconds(figures));
}

double Micros(Nanos duration_ns) { return static_cast<double>(duration_ns) / 1e3; }

// What a counter of the daemon grew by.
std::optional<uint64_t> Growth(std::optional<uint64_t> before, std::optional<uint64_t> after) {
  if (!before || !after || *after < *before)
    return std::nullopt;  // Absent, or the daemon restarted.
  return *after - *before;
}

Json OrNull(std::optional<uint64_t> value) { return value ? Json(*value) : Json(); }

Json LatencyJson(const LatencyHistogram& histogram) {
  Json json = {{"count", histogram.count()}, {"mean", histogram.mean_ns() / 1e3}};
  for (size_t i = 0; i < std::size(kPercentiles); ++i) {
    json[kPercentileNames[i]] = Micros(histogram.Percentile(kPercentiles[i]));
  }
  json["max"] = Micros(histogram.max_ns());
  return json;
}

[[gnu::format(printf, 2, 3)]] void Line(std::string* text, const char* format, ...) {
  char line[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  *text += line;
  *text += '\n';
}

unsigned long long Wide(uint64_t value) { return value; }

void HitLines(const DriveFigures& figures, std::string* text) {
  const auto share = [&](uint64_t count) {
    return 100 * Ratio(static_cast<double>(count), static_cast<double>(figures.requests));
  };
  Line(text, "requests        %15llu", Wide(figures.requests));
  Line(text, "input tokens    %15llu", Wide(figures.input_tokens));
  Line(text, "hit tokens      %15llu  %6.2f %% of input", Wide(figures.hit_tokens),
       100 * Ratio(static_cast<double>(figures.hit_tokens),
                   static_cast<double>(figures.input_tokens)));
  for (const Tier tier : {Tier::kHbm, Tier::kDram, Tier::kSsd, Tier::kShared}) {
    const uint64_t tokens = figures.hit_tokens_by_tier[static_cast<size_t>(tier)];
    if (tokens == 0) continue;
    Line(text, "  from %-6s    %15llu  %6.2f %% of hits", TierName(tier), Wide(tokens),
         100 * Ratio(static_cast<double>(tokens), static_cast<double>(figures.hit_tokens)));
  }
  Line(text, "exact hits      %15llu  %6.2f %% of requests", Wide(figures.exact_hits),
       share(figures.exact_hits));
  Line(text, "replayed hits   %15llu  %6.2f %% of requests", Wide(figures.replayed_hits),
       share(figures.replayed_hits));
  Line(text, "misses          %15llu  %6.2f %% of requests", Wide(figures.misses),
       share(figures.misses));
  Line(text, "replayed tokens %15llu", Wide(figures.replayed_tokens));
}

void ByteLines(const DriveFigures& figures, const StoreCounters& before, const StoreCounters& after,
               std::string* text) {
  const auto line = [&](const char* name, std::optional<uint64_t> bytes) {
    if (!bytes) return;
    Line(text, "%s %15s  %6.2f GB/s", name, FormatBytes(*bytes).c_str(),
         GigabytesPerSecond(figures, *bytes));
  };
  line("records loaded ", figures.loaded_bytes);
  line("records put    ", figures.put_bytes);
  line("windows loaded ", figures.window_loaded_bytes);
  line("windows put    ", figures.window_put_bytes);
  line("ssd written    ", Growth(before.ssd_written_bytes, after.ssd_written_bytes));
  line("ssd read       ", Growth(before.ssd_read_bytes, after.ssd_read_bytes));
  if (after.window_peak_bytes) {
    Line(text, "window peak     %15s", FormatBytes(*after.window_peak_bytes).c_str());
  }
  Line(text, "time            %15s  %6.1f requests/s", FormatDuration(figures.elapsed_ns).c_str(),
       Ratio(static_cast<double>(figures.requests), Seconds(figures)));
  if (figures.behind_ns_max > 0) {
    Line(text, "behind at most  %15s", FormatDuration(figures.behind_ns_max).c_str());
  }
}

void TroubleLines(const DriveFigures& figures, std::string* text) {
  const auto line = [&](const char* name, uint64_t count) {
    if (count > 0) Line(text, "%-24s %6llu", name, Wide(count));
  };
  Line(text, "wrong bytes     %15llu%s", Wide(figures.wrong_bytes),
       figures.wrong_bytes > 0 ? "  THE STORE SERVED WRONG BYTES" : "");
  line("wrong records", figures.wrong_records);
  line("lost blocks", figures.lost_blocks);
  line("lost windows", figures.lost_windows);
  line("retries when busy", figures.retries);
  line("reconnects", figures.reconnects);
  for (const auto& [name, count] : figures.errors) line(name.c_str(), count);
}

void LatencyLines(const DriveFigures& figures, std::string* text) {
  Line(text, "%-14s %9s %11s %11s %11s %11s", "latency", "calls", "p50", "p90", "p99", "max");
  for (size_t i = 0; i < kDriveCallCount; ++i) {
    const LatencyHistogram& histogram = figures.latencies[i];
    if (histogram.count() == 0) continue;
    Line(text, "%-14s %9llu %11s %11s %11s %11s", DriveCallName(static_cast<DriveCall>(i)),
         Wide(histogram.count()), FormatDuration(histogram.Percentile(0.5)).c_str(),
         FormatDuration(histogram.Percentile(0.9)).c_str(),
         FormatDuration(histogram.Percentile(0.99)).c_str(),
         FormatDuration(histogram.max_ns()).c_str());
  }
}

}  // namespace

Json DriveJson(const DriveFigures& figures, const StoreCounters& before,
               const StoreCounters& after) {
  const auto tier_tokens = [&](Tier tier) {
    return figures.hit_tokens_by_tier[static_cast<size_t>(tier)];
  };
  Json json = {
      {"requests", figures.requests},
      {"input_tokens", figures.input_tokens},
      {"hit_tokens", figures.hit_tokens},
      {"hit_rate",
       Ratio(static_cast<double>(figures.hit_tokens), static_cast<double>(figures.input_tokens))},
      {"hits_by_tier",
       {{"hbm", tier_tokens(Tier::kHbm)},
        {"dram", tier_tokens(Tier::kDram)},
        {"ssd", tier_tokens(Tier::kSsd)}}},
      {"exact_hits", figures.exact_hits},
      {"replayed_hits", figures.replayed_hits},
      {"replayed_tokens", figures.replayed_tokens},
      {"misses", figures.misses},
      {"ssd_bytes_written", OrNull(Growth(before.ssd_written_bytes, after.ssd_written_bytes))},
      {"ssd_bytes_read", OrNull(Growth(before.ssd_read_bytes, after.ssd_read_bytes))},
      {"window_pool_peak_bytes", OrNull(after.window_peak_bytes)},
      {"wrong_bytes", figures.wrong_bytes},
      {"wrong_records", figures.wrong_records},
      {"blocks_put", figures.blocks_put},
      {"blocks_existing", figures.blocks_existing},
      {"lost_blocks", figures.lost_blocks},
      {"lost_windows", figures.lost_windows},
      {"retries", figures.retries},
      {"reconnects", figures.reconnects},
      {"errors", Json::object()},
      {"seconds", Seconds(figures)},
      {"behind_seconds_max", static_cast<double>(figures.behind_ns_max) / 1e9},
      {"loaded_bytes", figures.loaded_bytes},
      {"put_bytes", figures.put_bytes},
      {"window_loaded_bytes", figures.window_loaded_bytes},
      {"window_put_bytes", figures.window_put_bytes},
      {"load_gb_per_s", GigabytesPerSecond(figures, figures.loaded_bytes)},
      {"put_gb_per_s", GigabytesPerSecond(figures, figures.put_bytes)},
      {"latency_us", Json::object()},
  };
  for (const auto& [name, count] : figures.errors) json["errors"][name] = count;
  for (size_t i = 0; i < kDriveCallCount; ++i) {
    json["latency_us"][DriveCallName(static_cast<DriveCall>(i))] =
        LatencyJson(figures.latencies[i]);
  }
  return json;
}

std::string DriveTable(const DriveFigures& figures, const StoreCounters& before,
                       const StoreCounters& after) {
  std::string text;
  HitLines(figures, &text);
  ByteLines(figures, before, after, &text);
  TroubleLines(figures, &text);
  LatencyLines(figures, &text);
  return text;
}

}  // namespace reprise
