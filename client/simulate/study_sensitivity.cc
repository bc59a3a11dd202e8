// How much the answer depends on what was assumed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include "client/simulate/html.h"
#include "client/simulate/study_report.h"
#include "client/simulate/study_sections.h"

namespace reprise {
namespace {

// Inputs that a reader may doubt, and how the page calls them.
struct Doubt {
  const char* name;
  double* (*at)(CostProfile& profile);
};

constexpr Doubt kDoubts[] = {
    {"GPU rent", [](CostProfile& p) { return &p.gpu.usd_per_hour; }},
    {"prefill rate", [](CostProfile& p) { return &p.gpu.prefill_tokens_per_second; }},
    {"DRAM price", [](CostProfile& p) { return &p.dram.usd_per_gb; }},
    {"SSD price", [](CostProfile& p) { return &p.ssd.usd_per_gb; }},
    {"SSD endurance", [](CostProfile& p) { return &p.ssd.drive_writes_per_day; }},
    {"hardware life", [](CostProfile& p) { return &p.hardware_life_years; }},
    {"holding overhead", [](CostProfile& p) { return &p.holding_overhead; }},
};

// A cell whose colour says how much is earned (or lost), between nothing and `most`.
std::string HeatCell(double usd, double most) {
  const double share = most == 0 ? 0 : std::clamp(std::abs(usd) / most, 0.0, 1.0);
  char style[128];
  std::snprintf(style, sizeof(style),
                "<td style=\"background:color-mix(in srgb, var(--%s) %.0f%%, transparent)\">",
                usd < 0 ? "c1" : "c2", 8 + 52 * share);
  return style + UsdText(usd) + "</td>";
}

}  // namespace

// GPU seconds follow the rate, money the rest: MoneyOf with the figures scaled.
double StudySections::NetUnder(const CostProfile& profile) const {
  SimulationFigures figures = f_;
  const double slower =
      costs_.profile().gpu.prefill_tokens_per_second / profile.gpu.prefill_tokens_per_second;
  figures.cold_gpu_seconds *= slower;
  figures.compute_gpu_seconds *= slower;
  figures.replay_gpu_seconds *= slower;
  const Money money = MoneyOf(settings_, figures, Costs(costs_.model(), profile));
  return money.saved - money.spent();
}

std::string StudySections::Sensitivity() const {
  const double days = std::max(days_, 1e-9);
  const double base = NetUnder(costs_.profile()) / days;
  struct Row {
    std::string name;
    double half, twice;
    double swing() const { return std::abs(twice - half); }
  };
  std::vector<Row> rows;
  for (const Doubt& doubt : kDoubts) {
    CostProfile half = costs_.profile(), twice = costs_.profile();
    *doubt.at(half) /= 2;
    *doubt.at(twice) *= 2;
    rows.push_back({doubt.name, NetUnder(half) / days, NetUnder(twice) / days});
  }
  std::sort(rows.begin(), rows.end(),
            [](const Row& a, const Row& b) { return a.swing() > b.swing(); });
  const double most = rows.front().swing();
  std::string tornado =
      "<div class=\"scroll\"><table><thead><tr><th>net saving a day</th>"
      "<th>at half</th><th>at twice</th><th></th></tr></thead><tbody>";
  for (const Row& row : rows) {
    char bar[128];
    std::snprintf(bar, sizeof(bar),
                  "<td style=\"width:40%%\"><div style=\"height:10px;width:%.1f%%;"
                  "background:var(--c0)\"></div></td>",
                  most == 0 ? 0 : 100 * row.swing() / most);
    tornado += "<tr><td>" + EscapeHtml(row.name) + "</td><td>" + UsdText(row.half) + "</td><td>" +
               UsdText(row.twice) + "</td>" + bar + "</tr>";
  }
  tornado += "</tbody></table></div>";

  constexpr double kSteps[] = {0.25, 0.5, 1, 2, 4};
  std::vector<std::vector<double>> nets;
  double largest = 0;
  for (const double rent : kSteps) {
    nets.emplace_back();
    for (const double rate : kSteps) {
      CostProfile profile = costs_.profile();
      profile.gpu.usd_per_hour *= rent;
      profile.gpu.prefill_tokens_per_second *= rate;
      nets.back().push_back(NetUnder(profile) / days);
      largest = std::max(largest, std::abs(nets.back().back()));
    }
  }
  std::string heat =
      "<div class=\"scroll\"><table><thead><tr><th>$ a GPU hour, tokens/s and GPU</th>";
  for (const double rate : kSteps) {
    heat +=
        "<th>" +
        CountText(static_cast<uint64_t>(costs_.profile().gpu.prefill_tokens_per_second * rate)) +
        "</th>";
  }
  heat += "</tr></thead><tbody>";
  for (size_t i = 0; i < nets.size(); ++i) {
    heat += "<tr><td>" + UsdText(costs_.profile().gpu.usd_per_hour * kSteps[i]) + "</td>";
    for (const double net : nets[i]) heat += HeatCell(net, largest);
    heat += "</tr>";
  }
  heat += "</tbody></table></div>";
  return HtmlSection(
      "What the answer depends on",
      "The net saving is " + UsdText(base) + " a day; the " + rows.front().name + " moves it most.",
      tornado + heat, "",
      "Each input halved and doubled, the others as they are; then GPU rent against "
      "prefill rate. What hits does not depend on any of them.");
}

}  // namespace reprise
