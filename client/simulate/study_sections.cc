// Where tokens come from, and when they come back.
#include "client/simulate/study_sections.h"

#include <algorithm>
#include <cmath>

#include "client/simulate/html.h"
#include "client/simulate/study_report.h"
#include "client/simulate/svg_plot.h"
#include "protocol/base/units.h"

namespace reprise {
namespace {

using economics::ReuseStudy;
using Cells = HtmlCells;

}  // namespace

StudySections::StudySections(const Study& study, const ReuseStudy& reuse,
                             const WindowEconomics& windows, const Costs& costs)
    : study_(study),
      reuse_(reuse),
      windows_(windows),
      costs_(costs),
      f_(study.run.figures),
      money_(study.run.money),
      settings_(study.run.settings),
      days_(static_cast<double>(f_.span_ns) / (86'400.0 * kSecond)) {}

std::string StudySections::Capacity() const {
  Plot plot{.title = "Hit rate against bytes",
            .x_label = "bytes for blocks (one pool, log)",
            .y_label = "tokens hit",
            .log_x = true,
            .y_max = std::min(1.0, std::max(0.05, study_.ceiling * 1.08)),
            .x_text = BytesText,
            .y_text = WholePercent};
  const auto points = [](const std::vector<CurvePoint>& curve) {
    std::vector<std::pair<double, double>> out;
    for (const CurvePoint& point : curve) {
      out.emplace_back(static_cast<double>(point.bytes), point.hit_rate);
    }
    return out;
  };
  if (!study_.lru.empty()) {
    const auto first = static_cast<double>(study_.lru.front().bytes);
    const auto last = static_cast<double>(study_.lru.back().bytes);
    plot.series.push_back(
        {"ceiling", "c6 dash", {{first, study_.ceiling}, {last, study_.ceiling}}});
  }
  if (!study_.belady.empty()) plot.series.push_back({"Belady", "c2", points(study_.belady)});
  plot.series.push_back({"lru", "c0", points(study_.lru)});
  plot.series.push_back({"naive lru", "c1 dash", points(study_.naive)});
  if (settings_.dram_bytes > 0) {
    plot.markers.push_back({static_cast<double>(settings_.dram_bytes), "DRAM"});
  }
  if (settings_.ssd_bytes > 0) {
    plot.markers.push_back({static_cast<double>(settings_.ssd_bytes), "SSD"});
  }
  Plot speed{.title = "Ideal prefill speed-up",
             .x_label = plot.x_label,
             .y_label = "1 / (1 - h)",
             .log_x = true,
             .x_text = BytesText,
             .y_text = [](double value) {
               char text[32];
               std::snprintf(text, sizeof(text), "%.3gx", value);
               return std::string(text);
             }};
  PlotSeries speed_up{"lru", "c0", {}};
  std::vector<Cells> rows;
  for (size_t i = 0; i < study_.lru.size(); ++i) {
    const CurvePoint& point = study_.lru[i];
    speed_up.points.emplace_back(static_cast<double>(point.bytes), 1 / (1 - point.hit_rate));
    if (i % 8 != 0 && i + 1 != study_.lru.size()) continue;
    rows.push_back({FormatBytes(point.bytes), PercentText(point.hit_rate),
                    PercentText(Ratio(point.hit_rate, study_.ceiling)), SpeedText(point.hit_rate)});
  }
  speed.series.push_back(std::move(speed_up));
  const double gap = study_.ceiling - f_.hit_rate();
  return HtmlSection(
      "Hit rate against size",
      "Without limits " + PercentText(study_.ceiling) +
          " of the input would hit; this configuration misses " + PercentText(std::max(0.0, gap)) +
          " of it.",
      plot.Svg() + speed.Svg(),
      HtmlTable({"bytes", "hit rate", "of the ceiling", "speed-up"}, rows),
      "LRU is exact for every size: stack distances of one pass, whole prompts touched tail first. "
      "The gap below Belady is the policy's, the gap above it the capacity's. Naive LRU touches "
      "head first and evicts in between." +
          std::string(study_.belady.empty() ? " Belady was left out: --belady computes it." : ""));
}

std::string StudySections::SpeedText(double rate) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.2fx", 1 / std::max(1e-9, 1 - rate));
  return text;
}

std::string StudySections::Waterfall() const {
  const uint64_t hit = f_.hit_tokens.all();
  const uint64_t computed = f_.input_tokens - std::min(hit, f_.input_tokens);
  ShareBar bar{.title = "Where input tokens came from", .parts = {}};
  const auto part = [&](const char* name, const char* css, uint64_t value) {
    if (value > 0) bar.parts.push_back({name, css, static_cast<double>(value)});
  };
  part("HBM", "c3", f_.hit_tokens.hbm);
  part("DRAM", "c0", f_.hit_tokens.dram);
  part("SSD", "c5", f_.hit_tokens.ssd);
  part("computed", "c1", computed);
  const double per_token = costs_.model().bytes_per_token();
  const auto row = [&](const std::string& name, uint64_t tokens, double bandwidth) {
    const double bytes = static_cast<double>(tokens) * per_token;
    return Cells{
        name, CountText(tokens),
        PercentText(Ratio(static_cast<double>(tokens), static_cast<double>(f_.input_tokens))),
        bandwidth > 0 ? BytesText(bytes) : "",
        bandwidth > 0 ? SecondsText(bytes / (bandwidth * 1e9)) : ""};
  };
  const CostProfile& p = costs_.profile();
  std::vector<Cells> rows = {
      row("HBM", f_.hit_tokens.hbm, 0), row("DRAM", f_.hit_tokens.dram, p.dram.gb_per_second),
      row("SSD", f_.hit_tokens.ssd, p.ssd.read_gb_per_second), row("computed", computed, 0),
      row("replayed on top", f_.replayed_tokens, 0)};
  rows[3].back() = SecondsText(f_.compute_gpu_seconds) + " of GPU";
  rows[4].back() = SecondsText(f_.replay_gpu_seconds) + " of GPU";
  return HtmlSection(
      "Where tokens came from",
      PercentText(Ratio(static_cast<double>(f_.hit_tokens.ssd),
                        static_cast<double>(std::max<uint64_t>(hit, 1)))) +
          " of the hits are read from SSD; " + CountText(f_.replayed_tokens) +
          " tokens are replayed.",
      bar.Svg() + HtmlTable({"from", "tokens", "of input", "bytes", "seconds"}, rows), "",
      "Bytes are tokens times the model's bytes a token; seconds are at the profile's "
      "bandwidths, one request at a time.");
}

std::string StudySections::Reuse() const {
  Plot plot{.title = "How soon tokens are used again",
            .x_label = "interval (log)",
            .y_label = "within",
            .log_x = true,
            .y_max = 1,
            .x_text = [](double seconds) { return SecondsText(seconds); },
            .y_text = WholePercent,
            .shade_from = static_cast<double>(f_.span_ns) / kSecond};
  PlotSeries tokens{"of reused tokens", "c0", {}}, tips{"of hits' ends", "c4", {}},
      rate{"hit rate with this TTL", "c2 dash", {}};
  Plot working{.title = "Working set",
               .x_label = "used within (log)",
               .y_label = "GB, mean",
               .log_x = true,
               .x_text = plot.x_text,
               .y_text = GigabytesText,
               .shade_from = plot.shade_from};
  PlotSeries set{"bytes in use", "c7", {}};
  uint64_t token_sum = 0, tip_sum = 0;
  std::vector<Cells> rows;
  for (const ReuseStudy::Bin& bin : reuse_.bins()) {
    token_sum += bin.tokens;
    tip_sum += bin.tips;
    if (bin.upto_ns == kNever) continue;
    const double seconds = static_cast<double>(bin.upto_ns) / kSecond;
    const double share =
        Ratio(static_cast<double>(token_sum), static_cast<double>(reuse_.reused_tokens()));
    const double tip_share =
        Ratio(static_cast<double>(tip_sum), static_cast<double>(reuse_.hits()));
    tokens.points.emplace_back(seconds, share);
    tips.points.emplace_back(seconds, tip_share);
    const double set_bytes =
        reuse_.WorkingSetTokens(bin.upto_ns, f_.span_ns) * costs_.model().bytes_per_token();
    set.points.emplace_back(seconds, set_bytes);
    rate.points.emplace_back(seconds, share * study_.ceiling);
    if (rows.empty() || std::fmod(std::log2(seconds) + 1e-9, 1) < 0.01) {
      rows.push_back({SecondsText(seconds), PercentText(share), PercentText(tip_share),
                      PercentText(share * study_.ceiling), BytesText(set_bytes)});
    }
  }
  plot.series = {tokens, tips, rate};
  working.series = {set};
  const double ttl = static_cast<double>(settings_.window_ttl_ns) / kSecond;
  plot.markers.push_back({ttl, "window TTL"});
  return HtmlSection(
      "When what was used is used again",
      PercentText(ShareWithin(ttl)) + " of the reused tokens come back within the window TTL of " +
          SecondsText(ttl) + ".",
      plot.Svg() + working.Svg(),
      HtmlTable({"within", "of tokens", "of hits' ends", "hit rate", "working set"}, rows),
      "Of a cache without limits: time since any request contained the block. The trace spans " +
          SecondsText(static_cast<double>(f_.span_ns) / kSecond) +
          ": longer intervals cannot show (shaded).");
}

double StudySections::ShareWithin(double seconds) const {
  uint64_t sum = 0;
  for (const ReuseStudy::Bin& bin : reuse_.bins()) {
    if (static_cast<double>(bin.upto_ns) / kSecond <= seconds) sum += bin.tokens;
  }
  return Ratio(static_cast<double>(sum), static_cast<double>(reuse_.reused_tokens()));
}

std::string StudySections::Windows() const {
  if (costs_.model().window_bytes() == 0) return "";
  Plot found{.title = "Windows found by TTL",
             .x_label = "TTL (log)",
             .y_label = "of hits",
             .log_x = true,
             .y_max = 1,
             .x_text = [](double seconds) { return SecondsText(seconds); },
             .y_text = WholePercent,
             .shade_from = static_cast<double>(f_.span_ns) / kSecond};
  PlotSeries share{"found", "c2", {}}, hazard{"", "", {}};
  Plot live{.title = "Bytes of live windows by TTL",
            .x_label = "TTL (log)",
            .y_label = "GB, mean",
            .log_x = true,
            .x_text = found.x_text,
            .y_text = GigabytesText};
  PlotSeries bytes{"unlimited pool", "c4", {}};
  std::vector<Cells> rows;
  const double span = std::max(1e-9, static_cast<double>(f_.span_ns) / kSecond);
  double last_seconds = 0;
  uint64_t last_found = 0;
  for (const ReuseStudy::Bin& bin : reuse_.bins()) {
    if (bin.upto_ns == kNever) break;
    const double seconds = static_cast<double>(bin.upto_ns) / kSecond;
    if (seconds > 4 * span) break;
    const ReuseStudy::AtTtl at = reuse_.At(bin.upto_ns);
    const double mean_bytes =
        at.snapshot_seconds / span * static_cast<double>(costs_.model().window_bytes());
    const double found_share =
        Ratio(static_cast<double>(at.found), static_cast<double>(reuse_.hits()));
    share.points.emplace_back(seconds, found_share);
    bytes.points.emplace_back(seconds, mean_bytes);
    if (std::fmod(std::log2(seconds) + 1e-9, 1) < 0.01) {
      // The chance of a use, of those that still wait, in an hour.
      const auto waiting = static_cast<double>(reuse_.snapshot_intervals().size() - last_found +
                                               reuse_.snapshots_unused());
      const double per_hour = Ratio(static_cast<double>(at.found - last_found), waiting) /
                              std::max(1e-9, seconds - last_seconds) * 3600;
      rows.push_back({SecondsText(seconds), CountText(at.found), PercentText(found_share),
                      CountText((reuse_.hits() - at.found) * costs_.model().replay_tokens()),
                      BytesText(mean_bytes), PercentText(per_hour, 1)});
      last_seconds = seconds;
      last_found = at.found;
    }
  }
  found.series = {share};
  live.series = {bytes};
  const double ttl = static_cast<double>(settings_.window_ttl_ns) / kSecond;
  for (Plot* plot : {&found, &live}) {
    plot->markers.push_back({ttl, "configured"});
    if (windows_.ttl_seconds > 0) plot->markers.push_back({windows_.ttl_seconds, "cheapest"});
  }
  const uint64_t hits = f_.exact_hits + f_.replayed_hits;
  return HtmlSection(
      "Windows: found or replayed",
      PercentText(Ratio(static_cast<double>(f_.exact_hits), static_cast<double>(hits))) +
          " of hits find their windows, " + CountText(f_.replayed_hits) + " are replayed (" +
          CountText(f_.fork_hits) +
          " of them at forks, where no TTL helps); the TTL that costs least is " +
          SecondsText(windows_.ttl_seconds) + ".",
      found.Svg() + live.Svg() +
          HtmlTable(
              {"way", "bytes", "cost"},
              {{"pool at the configured TTL", FormatBytes(f_.window_pool_peak_bytes) + " peak",
                UsdText(windows_.configured_usd)},
               {"pool at the cheapest TTL, " + SecondsText(windows_.ttl_seconds), "",
                UsdText(windows_.ttl_usd)},
               {"no pool, always replayed", "0 B", UsdText(windows_.no_pool_usd)},
               {"windows persisted on SSD instead",
                FormatBytes(windows_.persisted_bytes) + " written",
                UsdText(windows_.persisted_usd)}}),
      HtmlTable({"TTL", "found", "of hits", "replayed tokens", "live bytes", "uses an hour"}, rows),
      "Plots: a pool without a limit of bytes. Keeping a snapshot pays while its chance of a use "
      "exceeds " +
          PercentText(costs_.WindowHazardPerSecond() * 3600, 1) +
          " an hour (holding its bytes against replaying). Windows are worth their DRAM in latency "
          "and bit-exactness more than in GPU time.");
}

}  // namespace reprise
