// What hits are worth: seconds, money, wear.
#include <algorithm>
#include <cmath>

#include "client/simulate/html.h"
#include "client/simulate/study_report.h"
#include "client/simulate/study_sections.h"
#include "client/simulate/svg_plot.h"
#include "protocol/base/units.h"

namespace reprise {
namespace {

using WorthCells = HtmlCells;

}  // namespace

std::string StudySections::FirstToken() const {
  std::vector<WorthCells> rows;
  const char* names[] = {"p50", "p95", "p99"};
  for (size_t i = 0; i < 3; ++i) {
    rows.push_back({names[i], SecondsText(f_.first_token[i]), SecondsText(f_.first_token_cold[i])});
  }
  Plot distribution{.title = "Time to the first token",
                    .x_label = "seconds (log)",
                    .y_label = "of requests",
                    .log_x = true,
                    .y_max = 1,
                    .x_text = [](double seconds) { return SecondsText(seconds); },
                    .y_text = WholePercent};
  PlotSeries with{"with the cache", "c0", {}}, without{"without", "c1 dash", {}};
  for (size_t i = 0; i < f_.first_token_by_percent.size(); ++i) {
    const double share = static_cast<double>(i) / 100;
    with.points.emplace_back(std::max(1e-4F, f_.first_token_by_percent[i]), share);
    without.points.emplace_back(std::max(1e-4F, f_.first_token_cold_by_percent[i]), share);
  }
  distribution.series = {with, without};
  const CostProfile& p = costs_.profile();
  Plot plot{.title = "Loading against computing",
            .x_label = "tokens of the prefix (log)",
            .y_label = "seconds",
            .log_x = true,
            .x_text = [](double tokens) { return CountText(static_cast<uint64_t>(tokens)); },
            .y_text = [](double seconds) { return SecondsText(seconds); }};
  PlotSeries compute{"compute", "c1", {}}, ssd{"load, SSD", "c5", {}}, dram{"load, DRAM", "c0", {}};
  const double t0 = p.load_latency_ms / 1e3, b = costs_.model().bytes_per_token() / 1e9;
  for (double tokens = 16; tokens <= 4096; tokens *= std::sqrt(2)) {
    compute.points.emplace_back(
        tokens, costs_.GpuSeconds(costs_.model().PrefillFlops(0, tokens)) / p.gpu.per_instance);
    ssd.points.emplace_back(tokens, t0 + tokens * b / p.ssd.read_gb_per_second);
    dram.points.emplace_back(tokens, t0 + tokens * b / p.dram.gb_per_second);
  }
  plot.series = {compute, dram, ssd};
  const double breaks = costs_.BreakEvenTokens(p.ssd.read_gb_per_second);
  return HtmlSection(
      "Time to the first token",
      "Half of the requests begin within " + SecondsText(f_.first_token[0]) +
          (std::isfinite(breaks)
               ? "; loading from SSD beats computing from " +
                     CountText(static_cast<uint64_t>(std::ceil(breaks))) + " tokens on."
               : "; loading from SSD never beats computing here."),
      HtmlTable({"percentile", "with the cache", "without"}, rows) + distribution.Svg() +
          plot.Svg(),
      "",
      "Load, replay and compute one after the other on an idle instance of " +
          CountText(static_cast<uint64_t>(p.gpu.per_instance)) + " GPUs; no queues.");
}

std::string StudySections::MoneyAgainstSize() const {
  const auto span = [](const char* name, double usd) {
    return "<span data-usd=\"" + std::string(name) + "\">" + UsdText(usd) + "</span>";
  };
  const auto row = [](const std::string& what, const std::string& html) {
    return "<tr><td>" + EscapeHtml(what) + "</td><td>" + html + "</td></tr>";
  };
  const std::string table =
      "<table><thead><tr><th>in " +
      EscapeHtml(SecondsText(static_cast<double>(f_.span_ns) / kSecond)) +
      "</th><th>$</th></tr></thead><tbody>" + row("GPU time saved", span("saved", money_.saved)) +
      row("replays", span("replay", money_.replay)) +
      row("HBM held", span("held_hbm", money_.hbm)) +
      row("DRAM held", span("held_dram", money_.dram)) +
      row("window pool held", span("held_window", money_.window)) +
      row("SSD held", span("held_ssd", money_.ssd)) +
      row("SSD worn", span("wear", money_.ssd_wear)) + row("spent", span("spent", money_.spent())) +
      row("net", span("net", money_.saved - money_.spent())) +
      row("customer's bill at list price, without and with hits",
          UsdText(money_.list_without) + " and " + UsdText(money_.list_with)) +
      "</tbody></table>";
  // What one pool of each size would save and cost, from the exact curve.
  Plot plot{.title = "Money against size",
            .x_label = "bytes for blocks (one pool, log)",
            .y_label = "$ a day",
            .log_x = true,
            .x_text = BytesText,
            .y_text = [](double usd) { return UsdText(usd); }};
  PlotSeries saved{"GPU saved", "c2", {}}, dram{"cost as DRAM", "c1", {}},
      ssd{"cost as SSD", "c5", {}};
  const double per_rate = days_ > 0 && f_.hit_rate() > 0 ? money_.saved / days_ / f_.hit_rate() : 0;
  double best_net = 0, best_bytes = 0;
  for (const CurvePoint& point : study_.lru) {
    const auto bytes = static_cast<double>(point.bytes);
    const double day = 86'400;
    const double worth = point.hit_rate * per_rate;
    const double cost = bytes * costs_.profile().dram_usd_per_byte_second() * day;
    saved.points.emplace_back(bytes, worth);
    dram.points.emplace_back(bytes, cost);
    ssd.points.emplace_back(bytes, bytes * costs_.profile().ssd_usd_per_byte_second() * day);
    if (worth - cost > best_net) {
      best_net = worth - cost;
      best_bytes = bytes;
    }
  }
  plot.series = {saved, dram, ssd};
  return HtmlSection(
      "Money",
      best_bytes > 0 ? "As DRAM alone, " + BytesText(best_bytes) +
                           " earn the most: " + UsdText(best_net) + " a day."
                     : "No size of DRAM earns what it costs on this trace.",
      table + plot.Svg(), "",
      "Saved: GPU rent for the operations that hits did not need. Held: price times " +
          std::to_string(costs_.profile().holding_overhead).substr(0, 4) +
          " over the hardware's life. The sliders above price the table anew.");
}

std::string StudySections::Wear() const {
  const Json run = RunJson(study_.run, costs_);
  const double writes = run["ssd_writes_per_day"];
  std::vector<WorthCells> rows = {
      {"written", FormatBytes(f_.blocks.ssd_bytes_written)},
      {"read", FormatBytes(f_.blocks.ssd_bytes_read)},
      {"drive writes a day", PercentText(writes, 3) + " of the capacity"},
      {"drive is sold for", PercentText(costs_.profile().ssd.drive_writes_per_day, 0) + " a day"},
      {"life at this rate",
       run["ssd_life_years"].is_null()
           ? "unlimited"
           : CountText(static_cast<uint64_t>(run["ssd_life_years"].get<double>())) + " years"},
      {"writing pays from a chance of reuse of", PercentText(costs_.SsdAdmissionProbability(), 3)}};
  return HtmlSection(
      "SSD wear", "This load writes " + PercentText(writes, 2) + " of the SSD's capacity a day.",
      HtmlTable({"", ""}, rows), "",
      "Regions are written whole and in sequence, so flash writes little more than we "
      "do.");
}

std::string StudySections::OverTime() const {
  StackedPlot plot{
      .title = "Input tokens over time",
      .x_label = "time",
      .y_label = "million tokens",
      .x_text = HoursText,
      .y_text =
          [](double value) {
            char text[32];
            std::snprintf(text, sizeof(text), "%.3g", value / 1e6);
            return std::string(text);
          },
      .x = {},
      .layers = {{"HBM", "c3", {}}, {"DRAM", "c0", {}}, {"SSD", "c5", {}}, {"computed", "c1", {}}}};
  StackedPlot seconds{
      .title = "GPU time over time",
      .x_label = "time",
      .y_label = "GPU time",
      .x_text = HoursText,
      .y_text = [](double value) { return SecondsText(value); },
      .x = {},
      .layers = {{"computed", "c1", {}}, {"replayed", "c4", {}}, {"saved", "c2", {}}}};
  Plot bytes{.title = "Bytes over time",
             .x_label = "time",
             .y_label = "GB",
             .x_text = HoursText,
             .y_text = GigabytesText};
  PlotSeries windows{"window pool", "c4", {}, true}, written{"written to SSD by then", "c7", {}},
      read{"read from DRAM and SSD by then", "c0", {}}, dram{"DRAM in use", "c3", {}, true},
      ssd{"SSD in use", "c5", {}, true};
  double total_read = 0;
  double total_written = 0;
  std::vector<WorthCells> rows;
  for (const TimeBucket& bucket : study_.buckets) {
    plot.x.push_back(bucket.begin_hours);
    plot.layers[0].values.push_back(static_cast<double>(bucket.hit.hbm));
    plot.layers[1].values.push_back(static_cast<double>(bucket.hit.dram));
    plot.layers[2].values.push_back(static_cast<double>(bucket.hit.ssd));
    plot.layers[3].values.push_back(
        static_cast<double>(bucket.input_tokens - std::min(bucket.hit.all(), bucket.input_tokens)));
    seconds.x.push_back(bucket.begin_hours);
    seconds.layers[0].values.push_back(bucket.computed_gpu_seconds);
    seconds.layers[1].values.push_back(bucket.replayed_gpu_seconds);
    seconds.layers[2].values.push_back(bucket.saved_gpu_seconds);
    total_written += static_cast<double>(bucket.ssd_bytes_written);
    total_read +=
        static_cast<double>(bucket.hit.dram + bucket.hit.ssd) * costs_.model().bytes_per_token();
    read.points.emplace_back(bucket.begin_hours, total_read);
    dram.points.emplace_back(bucket.begin_hours, static_cast<double>(bucket.dram_bytes));
    ssd.points.emplace_back(bucket.begin_hours, static_cast<double>(bucket.ssd_bytes));
    windows.points.emplace_back(bucket.begin_hours, static_cast<double>(bucket.window_bytes));
    written.points.emplace_back(bucket.begin_hours, total_written);
    rows.push_back({HoursText(bucket.begin_hours), CountText(bucket.requests),
                    CountText(bucket.input_tokens),
                    PercentText(Ratio(static_cast<double>(bucket.hit.all()),
                                      static_cast<double>(bucket.input_tokens))),
                    CountText(bucket.replayed_hits), FormatBytes(bucket.ssd_bytes_written),
                    FormatBytes(bucket.window_bytes)});
  }
  bytes.series = {windows, dram, ssd, written, read};
  return HtmlSection(
      "Over time",
      CountText(f_.blocks.dram_evictions) + " blocks left DRAM and " +
          CountText(f_.blocks.evicted_for_good) + " left the last tier.",
      plot.Svg() + seconds.Svg() + bytes.Svg(),
      HtmlTable({"from", "requests", "input tokens", "hit rate", "replays", "SSD written",
                 "windows", "evicted", "GPU computed", "GPU saved", "loading"},
                rows),
      "The warm-up, when there is one, is in these plots and not in the figures.");
}

std::string StudySections::Sessions() const {
  if (study_.sessions.empty()) return "";
  std::vector<WorthCells> rows;
  for (const SessionTotal& total : study_.sessions) {
    rows.push_back({std::to_string(total.session), CountText(total.requests),
                    CountText(total.input_tokens),
                    CountText(total.input_tokens - std::min(total.input_tokens, total.hit_tokens)),
                    PercentText(Ratio(static_cast<double>(total.hit_tokens),
                                      static_cast<double>(total.input_tokens)))});
  }
  return HtmlSection(
      "Who misses most",
      "Of " + CountText(study_.session_count) + " sessions, these compute the most tokens.",
      HtmlTable({"session", "requests", "input tokens", "computed", "hit rate"}, rows), "",
      "Sessions by the order of their first request.");
}

std::string StudySections::Sweep() const {
  if (study_.sweep.empty()) return "";
  const std::vector<const Setting*> varied = SettingsThatDiffer(study_.sweep);
  WorthCells head;
  for (const Setting* setting : varied) head.emplace_back(setting->name);
  for (const char* name : {"hit rate", "of the ceiling", "exact", "replayed", "SSD written",
                           "first token p95", "saved", "spent"}) {
    head.emplace_back(name);
  }
  std::vector<WorthCells> rows;
  const SimulatedRun* best = &study_.sweep[0];
  for (const SimulatedRun& run : study_.sweep) {
    WorthCells row;
    for (const Setting* setting : varied) row.push_back(setting->get(run.settings));
    const double rate = run.figures.hit_rate();
    for (const std::string& cell :
         {PercentText(rate), PercentText(Ratio(rate, study_.ceiling)),
          CountText(run.figures.exact_hits), CountText(run.figures.replayed_hits),
          FormatBytes(run.figures.blocks.ssd_bytes_written),
          SecondsText(run.figures.first_token[1]), UsdText(run.money.saved),
          UsdText(run.money.spent())}) {
      row.push_back(cell);
    }
    rows.push_back(std::move(row));
    const auto net = [](const SimulatedRun& one) { return one.money.saved - one.money.spent(); };
    if (net(run) > net(*best)) best = &run;
  }
  std::string chosen;
  for (const Setting* setting : varied) {
    chosen += (chosen.empty() ? "" : ", ") + std::string(setting->name) + " " +
              setting->get(best->settings);
  }
  return HtmlSection("Sweep",
                     "Of " + CountText(study_.sweep.size()) + " configurations, " + chosen +
                         " leaves the most money.",
                     HtmlTable(head, rows), "",
                     "Each a full simulation; everything else as above.");
}

}  // namespace reprise
