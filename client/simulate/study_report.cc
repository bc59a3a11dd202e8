#include "client/simulate/study_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "protocol/base/units.h"

namespace reprise {
namespace {

std::string Print(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

Json OrNull(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json ConfigJson(const SimulationSettings& settings) {
  Json json = Json::object();
  for (const Setting& setting : AllSettings()) {
    json[std::string(setting.name)] = setting.get(settings);
  }
  json["durable"] = settings.durable;
  json["dram_bytes"] = settings.dram_bytes;
  json["ssd_bytes"] = settings.ssd_bytes;
  json["window_pool_bytes"] = settings.window_pool_bytes();
  return json;
}

Json MoneyJson(const Money& money) {
  return {{"currency", "USD"},
          {"saved", money.saved},
          {"spent", money.spent()},
          {"net", money.saved - money.spent()},
          {"spent_on",
           {{"replay", money.replay},
            {"hbm", money.hbm},
            {"dram", money.dram},
            {"window_pool", money.window},
            {"ssd", money.ssd},
            {"ssd_wear", money.ssd_wear}}},
          {"list_price", {{"without_cache", money.list_without}, {"with_cache", money.list_with}}}};
}

double DaysOf(const SimulationFigures& figures) {
  return static_cast<double>(figures.span_ns) / (86'400.0 * kSecond);
}

// Of the drives of all machines.
double DriveWritesPerDay(const SimulatedRun& run) {
  const double days = DaysOf(run.figures);
  const auto bytes = static_cast<double>(run.settings.ssd_bytes) * run.settings.machines;
  return days == 0 || bytes == 0
             ? 0
             : static_cast<double>(run.figures.blocks.ssd_bytes_written) / days / bytes;
}

double SsdLifeYears(const SimulatedRun& run, const CostProfile& profile) {
  const double writes = DriveWritesPerDay(run) * profile.ssd.write_amplification;
  if (writes == 0) return std::numeric_limits<double>::infinity();
  return profile.ssd.drive_writes_per_day * profile.hardware_life_years / writes;
}

struct Column {
  const char* name;
  std::string (*text)(const SimulatedRun&);
  std::string (*csv)(const SimulatedRun&);
};

constexpr auto kPlain = [](double value) { return Print("%.10g", value); };

const Column kColumns[] = {
    {"hit_rate", [](const SimulatedRun& r) { return PercentText(r.figures.hit_rate()); },
     [](const SimulatedRun& r) { return kPlain(r.figures.hit_rate()); }},
    {"hit_tokens", [](const SimulatedRun& r) { return CountText(r.figures.hit_tokens.all()); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.hit_tokens.all()); }},
    {"hbm_tokens", [](const SimulatedRun& r) { return CountText(r.figures.hit_tokens.hbm); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.hit_tokens.hbm); }},
    {"dram_tokens", [](const SimulatedRun& r) { return CountText(r.figures.hit_tokens.dram); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.hit_tokens.dram); }},
    {"ssd_tokens", [](const SimulatedRun& r) { return CountText(r.figures.hit_tokens.ssd); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.hit_tokens.ssd); }},
    {"exact_hits", [](const SimulatedRun& r) { return CountText(r.figures.exact_hits); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.exact_hits); }},
    {"replayed_hits", [](const SimulatedRun& r) { return CountText(r.figures.replayed_hits); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.replayed_hits); }},
    {"ssd_bytes_written",
     [](const SimulatedRun& r) { return FormatBytes(r.figures.blocks.ssd_bytes_written); },
     [](const SimulatedRun& r) { return std::to_string(r.figures.blocks.ssd_bytes_written); }},
    {"first_token_p95_s",
     [](const SimulatedRun& r) { return SecondsText(r.figures.first_token[1]); },
     [](const SimulatedRun& r) { return kPlain(r.figures.first_token[1]); }},
    {"gpu_seconds_saved",
     [](const SimulatedRun& r) { return SecondsText(r.figures.saved_gpu_seconds()); },
     [](const SimulatedRun& r) { return kPlain(r.figures.saved_gpu_seconds()); }},
    {"usd_saved", [](const SimulatedRun& r) { return UsdText(r.money.saved); },
     [](const SimulatedRun& r) { return kPlain(r.money.saved); }},
    {"usd_spent", [](const SimulatedRun& r) { return UsdText(r.money.spent()); },
     [](const SimulatedRun& r) { return kPlain(r.money.spent()); }},
};

// Rows of cells, the columns as wide as they need to be, to the right.
std::string Aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) text += "  ";
      text += std::string(widths[i] - row[i].size(), ' ') + row[i];
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::string PercentText(double share, int digits) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f %%", digits, 100 * share);
  return text;
}

std::string UsdText(double usd) {
  const double size = std::abs(usd);
  const char* sign = usd < 0 ? "-$" : "$";
  return sign + Print(size >= 100 ? "%.0f" : size >= 1 ? "%.2f" : "%.4f", size);
}

std::string SecondsText(double seconds) {
  if (!std::isfinite(seconds)) return "never";
  return seconds == 0 ? "0 s"
                      : FormatDuration(static_cast<Nanos>(std::min(seconds, 9e9) * kSecond));
}

std::string CountText(uint64_t count) {
  std::string text = std::to_string(count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string BytesText(double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

std::string GigabytesText(double bytes) { return Print("%.3g", bytes / 1e9); }

std::string WholePercent(double share) { return PercentText(share, 0); }

std::string HoursText(double hours) { return SecondsText(hours * 3600); }

std::vector<Definition> Definitions() {
  return {
      {"block",
       "128 consecutive tokens of a prompt, from its start. The last, partial one is not "
       "stored and cannot hit."},
      {"hit",
       "The longest run of leading blocks that are in a tier before the request. Tokens of "
       "it over all input tokens are the hit rate. A prompt may hit whole."},
      {"stored",
       "All whole blocks of the prompt, once it was served. Outputs are not stored: real "
       "hits of the next turn are higher by as much."},
      {"exact, replayed",
       "Of a request that hits: its windows were found in the pool; or not, and "
       "128 tokens are run again. A miss has no block."},
      {"ceiling", "The hit rate of a cache without limits on the same trace."},
      {"GPU seconds",
       "Operations by layer (active parameters, window, selected entries, index "
       "scores) over the rate that the profile states; of one GPU."},
      {"first token",
       "Load, replay and compute one after the other, on an instance that does "
       "nothing else: no queues."},
      {"saved, spent",
       "GPU rent that hits did not need; against replays, holding of the "
       "configured tiers for the trace's span, and wear."},
  };
}

Json RunJson(const SimulatedRun& run, const Costs& costs) {
  const SimulationFigures& f = run.figures;
  const CostProfile& profile = costs.profile();
  return {{"requests", f.requests},
          {"input_tokens", f.input_tokens},
          {"hit_tokens", f.hit_tokens.all()},
          {"hit_rate", f.hit_rate()},
          {"hits_by_tier",
           {{"hbm", f.hit_tokens.hbm}, {"dram", f.hit_tokens.dram}, {"ssd", f.hit_tokens.ssd}}},
          {"exact_hits", f.exact_hits},
          {"replayed_hits", f.replayed_hits},
          {"replayed_tokens", f.replayed_tokens},
          {"fork_hits", f.fork_hits},
          {"misses", f.misses},
          {"lost_blocks", f.lost_blocks},
          {"blocks_put", f.blocks.puts_stored},
          {"blocks_existing", f.blocks.puts_existing},
          {"dram_evictions", f.blocks.dram_evictions},
          {"ssd_evictions", f.blocks.ssd_evictions},
          {"admissions_refused", f.blocks.admissions_refused},
          {"dram_bytes_read", f.dram_bytes_read},
          {"ssd_bytes_written", f.blocks.ssd_bytes_written},
          {"ssd_bytes_read", f.blocks.ssd_bytes_read},
          {"ssd_writes_per_day", DriveWritesPerDay(run)},
          {"ssd_life_years", OrNull(SsdLifeYears(run, profile))},
          {"window_pool_peak_bytes", f.window_pool_peak_bytes},
          {"span_seconds", static_cast<double>(f.span_ns) / kSecond},
          {"gpu_seconds_cold", f.cold_gpu_seconds},
          {"gpu_seconds_computed", f.compute_gpu_seconds},
          {"gpu_seconds_replayed", f.replay_gpu_seconds},
          {"gpu_seconds_saved", f.saved_gpu_seconds()},
          {"gpu_kwh_saved", f.saved_gpu_seconds() * profile.gpu.watts / 3.6e6},
          {"prefill_speed_up",
           OrNull(f.cold_gpu_seconds / (f.compute_gpu_seconds + f.replay_gpu_seconds))},
          {"load_seconds", f.load_seconds},
          {"first_token_seconds",
           {{"p50", f.first_token[0]}, {"p95", f.first_token[1]}, {"p99", f.first_token[2]}}},
          {"first_token_seconds_cold",
           {{"p50", f.first_token_cold[0]},
            {"p95", f.first_token_cold[1]},
            {"p99", f.first_token_cold[2]}}},
          {"money", MoneyJson(run.money)},
          {"config", ConfigJson(run.settings)}};
}

Json RulesJson(const Costs& costs) {
  const CostProfile& p = costs.profile();
  return {{"bytes_per_token", costs.model().bytes_per_token()},
          {"window_bytes", costs.model().window_bytes()},
          {"usd_per_million_computed_tokens", costs.usd_per_token() * 1e6},
          {"load_instead_of_compute_from_tokens",
           {{"dram", OrNull(costs.BreakEvenTokens(p.dram.gb_per_second))},
            {"ssd", OrNull(costs.BreakEvenTokens(p.ssd.read_gb_per_second))},
            {"shared", OrNull(costs.BreakEvenTokens(p.shared.gb_per_second))}}},
          {"keep_for_one_reuse_seconds",
           {{"hbm", costs.KeepSeconds(p.hbm_usd_per_byte_second())},
            {"dram", costs.KeepSeconds(p.dram_usd_per_byte_second())},
            {"ssd", costs.KeepSeconds(p.ssd_usd_per_byte_second())}}},
          {"dram_instead_of_ssd_seconds", costs.DramInsteadOfSsdSeconds()},
          {"ssd_admission_probability", costs.SsdAdmissionProbability()},
          {"window_keep_hazard_per_hour", costs.WindowHazardPerSecond() * 3600}};
}

Json WindowEconomicsJson(const WindowEconomics& w) {
  return {{"cheapest_ttl_seconds", w.ttl_seconds},     {"usd_at_cheapest_ttl", w.ttl_usd},
          {"usd_at_configured_ttl", w.configured_usd}, {"usd_without_pool", w.no_pool_usd},
          {"persisted_bytes", w.persisted_bytes},      {"usd_persisted", w.persisted_usd}};
}

Json StudyJson(const Study& study, const Costs& costs) {
  Json json = RunJson(study.run, costs);
  json["ceiling"] = study.ceiling;
  json["rules"] = RulesJson(costs);
  if (!study.sweep.empty()) {
    json["sweep"] = Json::array();
    for (const SimulatedRun& run : study.sweep) json["sweep"].push_back(RunJson(run, costs));
  }
  json["trace"] = {{"file", study.trace},
                   {"format", study.format},
                   {"sha256", study.fingerprint},
                   {"skipped_lines", study.skipped_lines},
                   {"repeat", study.scale.repeat},
                   {"sessions_times", study.scale.sessions},
                   {"context_times", study.scale.context},
                   {"speed", study.scale.speed},
                   {"warm_up", study.warm_up}};
  json["definitions"] = Json::object();
  for (const Definition& definition : Definitions()) {
    json["definitions"][definition.term] = definition.meaning;
  }
  return json;
}

std::string RunText(const SimulatedRun& run, const Costs& costs) {
  const SimulationFigures& f = run.figures;
  const auto of_hits = [&](uint64_t tokens) {
    return PercentText(static_cast<double>(tokens) /
                       static_cast<double>(std::max<uint64_t>(1, f.hit_tokens.all())));
  };
  const auto of_requests = [&](uint64_t count) {
    return PercentText(static_cast<double>(count) /
                       static_cast<double>(std::max<uint64_t>(1, f.requests)));
  };
  std::vector<std::vector<std::string>> rows = {
      {"requests", CountText(f.requests), ""},
      {"input tokens", CountText(f.input_tokens), ""},
      {"hit tokens", CountText(f.hit_tokens.all()), PercentText(f.hit_rate()) + " of input"}};
  if (run.settings.hbm_bytes > 0) {
    rows.push_back(
        {"from hbm", CountText(f.hit_tokens.hbm), of_hits(f.hit_tokens.hbm) + " of hits"});
  }
  rows.push_back(
      {"from dram", CountText(f.hit_tokens.dram), of_hits(f.hit_tokens.dram) + " of hits"});
  rows.push_back({"from ssd", CountText(f.hit_tokens.ssd), of_hits(f.hit_tokens.ssd) + " of hits"});
  rows.push_back(
      {"exact hits", CountText(f.exact_hits), of_requests(f.exact_hits) + " of requests"});
  rows.push_back(
      {"replayed hits", CountText(f.replayed_hits), of_requests(f.replayed_hits) + " of requests"});
  rows.push_back({"misses", CountText(f.misses), of_requests(f.misses) + " of requests"});
  rows.push_back({"ssd written", FormatBytes(f.blocks.ssd_bytes_written), ""});
  rows.push_back({"ssd read", FormatBytes(f.blocks.ssd_bytes_read), ""});
  rows.push_back({"window pool", FormatBytes(f.window_pool_peak_bytes), "at most"});
  rows.push_back({"first token p50", SecondsText(f.first_token[0]),
                  SecondsText(f.first_token_cold[0]) + " without a cache"});
  rows.push_back({"first token p95", SecondsText(f.first_token[1]),
                  SecondsText(f.first_token_cold[1]) + " without a cache"});
  rows.push_back({"gpu time saved", SecondsText(f.saved_gpu_seconds()),
                  "of " + SecondsText(f.cold_gpu_seconds)});
  rows.push_back({"money saved", UsdText(run.money.saved), "spent " + UsdText(run.money.spent())});
  std::string text;
  for (const auto& row : rows) {
    char line[160];
    std::snprintf(line, sizeof(line), "%-16s %18s  %s\n", row[0].c_str(), row[1].c_str(),
                  row[2].c_str());
    text += line;
  }
  text += "model " + costs.model().name() + ", " + Print("%g", costs.model().bytes_per_token()) +
          " bytes a token; " + Print("%g", costs.profile().gpu.prefill_tokens_per_second) +
          " tokens a second and GPU is an assumption of the profile\n";
  return text;
}

std::string RulesText(const Costs& costs, const WindowEconomics& windows) {
  const CostProfile& p = costs.profile();
  const auto tokens = [](double count) {
    return std::isfinite(count) ? CountText(static_cast<uint64_t>(std::ceil(count))) + " tokens"
                                : std::string("no length");
  };
  std::string text = "loading beats computing from " +
                     tokens(costs.BreakEvenTokens(p.dram.gb_per_second)) + " (dram), " +
                     tokens(costs.BreakEvenTokens(p.ssd.read_gb_per_second)) + " (ssd), " +
                     tokens(costs.BreakEvenTokens(p.shared.gb_per_second)) + " (another machine)\n";
  text += "a block that is used once more is worth keeping for " +
          SecondsText(costs.KeepSeconds(p.hbm_usd_per_byte_second())) + " in hbm, " +
          SecondsText(costs.KeepSeconds(p.dram_usd_per_byte_second())) + " in dram, " +
          SecondsText(costs.KeepSeconds(p.ssd_usd_per_byte_second())) + " on ssd\n";
  if (costs.model().window_bytes() == 0) return text;
  text += "windows: the ttl that costs least is " + SecondsText(windows.ttl_seconds) + " (" +
          UsdText(windows.ttl_usd) + "), the configured one costs " +
          UsdText(windows.configured_usd) + ", replaying always " + UsdText(windows.no_pool_usd) +
          ", keeping them on ssd " + UsdText(windows.persisted_usd) + "\n";
  return text;
}

std::vector<const Setting*> SettingsThatDiffer(const std::vector<SimulatedRun>& runs) {
  std::vector<const Setting*> varied;
  for (const Setting& setting : AllSettings()) {
    const std::string first = setting.get(runs.front().settings);
    const bool differs = std::any_of(runs.begin(), runs.end(), [&](const SimulatedRun& run) {
      return setting.get(run.settings) != first;
    });
    if (differs) varied.push_back(&setting);
  }
  return varied;
}

std::string SweepText(const std::vector<SimulatedRun>& runs) {
  const std::vector<const Setting*> varied = SettingsThatDiffer(runs);
  std::vector<std::vector<std::string>> rows(1);
  for (const Setting* setting : varied) rows[0].emplace_back(setting->name);
  for (const Column& column : kColumns) rows[0].emplace_back(column.name);
  for (const SimulatedRun& run : runs) {
    rows.emplace_back();
    for (const Setting* setting : varied) rows.back().push_back(setting->get(run.settings));
    for (const Column& column : kColumns) rows.back().push_back(column.text(run));
  }
  return Aligned(rows);
}

std::string SweepCsv(const std::vector<SimulatedRun>& runs) {
  std::string text;
  for (const Setting& setting : AllSettings()) text += std::string(setting.name) + ",";
  for (const Column& column : kColumns) text += std::string(column.name) + ",";
  text.back() = '\n';
  for (const SimulatedRun& run : runs) {
    for (const Setting& setting : AllSettings()) text += setting.get(run.settings) + ",";
    for (const Column& column : kColumns) text += column.csv(run) + ",";
    text.back() = '\n';
  }
  return text;
}

std::string StudyVerdict(const Study& study, const Costs& costs) {
  const SimulatedRun& run = study.run;
  const double rate = run.figures.hit_rate();
  const double share = study.ceiling == 0 ? 1 : rate / study.ceiling;
  std::string tiers;
  const auto add = [&](uint64_t bytes, const char* name) {
    if (bytes == 0) return;
    tiers += (tiers.empty() ? "" : " + ") + FormatBytes(bytes) + " " + name;
  };
  add(run.settings.hbm_bytes, "HBM");
  add(run.settings.dram_bytes, "DRAM");
  add(run.settings.ssd_bytes, "SSD");
  std::string text = (tiers.empty() ? "No tier" : tiers) + " hits " + PercentText(rate, 1) +
                     " of input tokens, " + PercentText(share, 1) + " of the ceiling on this trace";
  // What twice the blocks would add, by the exact curve of one pool. Tiers that are written through
  // hold the same blocks.
  const uint64_t dram = run.settings.dram_bytes, ssd = run.settings.ssd_bytes;
  const uint64_t bytes = run.settings.ssd_write == "through" ? std::max(dram, ssd) : dram + ssd;
  const auto at = [&](uint64_t size) {
    double found = 0;
    for (const CurvePoint& point : study.lru) {
      if (point.bytes <= size) found = point.hit_rate;
    }
    return found;
  };
  const double gain = std::max(0.0, at(2 * bytes) - at(bytes));
  const double gpu_usd = rate == 0 ? 0 : run.money.saved * gain / rate;
  const double month =
      costs.profile().ssd_usd_per_byte_second() * static_cast<double>(bytes) * 30.4 * 86'400;
  text += "; as much again on SSD would save " + UsdText(gpu_usd) + " of GPU time in " +
          SecondsText(static_cast<double>(run.figures.span_ns) / kSecond) + " and cost " +
          UsdText(month) + " a month.";
  return text;
}

}  // namespace reprise
