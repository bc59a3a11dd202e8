#include "client/simulate/study_page.h"

#include "client/simulate/html.h"
#include "client/simulate/page_style.h"
#include "client/simulate/study_report.h"
#include "client/simulate/study_sections.h"

namespace reprise {
namespace {

class Page {
 public:
  Page(const Study& study, const Costs& costs)
      : study_(study),
        costs_(costs),
        f_(study.run.figures),
        money_(study.run.money),
        days_(static_cast<double>(f_.span_ns) / (86'400.0 * kSecond)) {}

  std::string Html(const StudySections& sections) const {
    std::string html =
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
        "<title>Prefix hits: " +
        EscapeHtml(study_.trace) + "</title><style>" + kPageStyle + "</style></head><body><main>\n";
    html += "<h1>Prefix-hit economics of " + EscapeHtml(study_.trace) + "</h1>";
    html += "<p class=\"soft\">" + EscapeHtml(costs_.model().name()) + ", " +
            CountText(f_.requests) + " requests over " +
            EscapeHtml(SecondsText(static_cast<double>(f_.span_ns) / kSecond)) + "</p>";
    html += "<p class=\"verdict\">" + EscapeHtml(StudyVerdict(study_, costs_)) + "</p>\n";
    html += Tiles() + Prices();
    html += sections.Capacity() + sections.Waterfall() + sections.Reuse() + sections.Windows() +
            sections.FirstToken() + sections.MoneyAgainstSize() + sections.Sensitivity() +
            sections.Wear() + sections.OverTime() + sections.Sessions() + sections.Sweep();
    html += Assumptions();
    html += "<script type=\"application/json\" id=\"base\">" + Base() + "</script><script>" +
            kPageScript + "</script></main></body></html>\n";
    return html;
  }

 private:
  std::string Tiles() const {
    const auto tile = [](const std::string& value, const std::string& what) {
      return "<div class=\"tile\"><b>" + value + "</b><span>" + EscapeHtml(what) + "</span></div>";
    };
    return "<div class=\"tiles\">" +
           tile(PercentText(f_.hit_rate(), 1),
                "of input tokens hit, " + PercentText(Ratio(f_.hit_rate(), study_.ceiling), 1) +
                    " of the ceiling") +
           tile(EscapeHtml(SecondsText(f_.saved_gpu_seconds())),
                "of GPU time saved, of " + SecondsText(f_.cold_gpu_seconds)) +
           tile("<span data-usd=\"net_day\" style=\"font-size:inherit;color:inherit\">" +
                    UsdText(days_ > 0 ? (money_.saved - money_.spent()) / days_ : 0) + "</span>",
                "net saving a day") +
           tile(EscapeHtml(SecondsText(f_.first_token[1])),
                "to the first token at p95, " + SecondsText(f_.first_token_cold[1]) + " cold") +
           "</div>\n";
  }

  std::string Prices() const {
    const CostProfile& p = costs_.profile();
    const auto slider = [](const char* name, const char* label, double value) {
      char text[32];
      std::snprintf(text, sizeof(text), value >= 1000 ? "%.0f" : "%.3g", value);
      return std::string("<label>") + label + " <b id=\"v-" + name + "\">" + text +
             "</b><input type=\"range\" name=\"" + name +
             "\" min=\"-2\" max=\"2\" step=\"0.05\" value=\"0\"></label>";
    };
    return "<div class=\"prices\">" + slider("gpu", "GPU, $ an hour", p.gpu.usd_per_hour) +
           slider("rate", "prefill, tokens/s and GPU", p.gpu.prefill_tokens_per_second) +
           slider("dram", "DRAM, $ a GB", p.dram.usd_per_gb) +
           slider("ssd", "SSD, $ a GB", p.ssd.usd_per_gb) + "</div>\n";
  }

  std::string Assumptions() const {
    std::vector<HtmlCells> definitions;
    for (const Definition& definition : Definitions()) {
      definitions.push_back({definition.term, definition.meaning});
    }
    std::string html = "<section><h2>Definitions and assumptions</h2><table>";
    for (const HtmlCells& row : definitions) {
      html += "<tr><td>" + EscapeHtml(row[0]) + "</td><td style=\"text-align:left\">" +
              EscapeHtml(row[1]) + "</td></tr>";
    }
    html += "</table>";
    const Json rules = RulesJson(costs_);
    html += HtmlFolded("rules that follow from model and prices",
                       "<pre>" + EscapeHtml(rules.dump(2)) + "</pre>");
    html += HtmlFolded(
        "the cost profile, with sources",
        "<pre style=\"white-space:pre-wrap\">" + EscapeHtml(costs_.profile().ToToml()) + "</pre>");
    std::vector<HtmlCells> config;
    for (const Setting& setting : AllSettings()) {
      config.push_back({std::string(setting.name), setting.get(study_.run.settings)});
    }
    html += HtmlFolded("the configuration", HtmlTable({"setting", "value"}, config));
    html += "<p class=\"soft\">Trace: " + EscapeHtml(study_.trace) + ", format " +
            EscapeHtml(study_.format) + ", " + CountText(study_.skipped_lines) +
            " broken lines left out, SHA-256 <code>" +
            (study_.fingerprint.empty() ? "none (generated)" : study_.fingerprint) +
            "</code>.</p><p class=\"soft\">Again: <code>" + EscapeHtml(study_.command) +
            "</code></p></section>\n";
    return html;
  }

  // For the script: sums that prices scale.
  std::string Base() const {
    const CostProfile& p = costs_.profile();
    return Json{{"gpu", p.gpu.usd_per_hour},
                {"rate", p.gpu.prefill_tokens_per_second},
                {"dram", p.dram.usd_per_gb},
                {"ssd", p.ssd.usd_per_gb},
                {"days", days_},
                {"saved", money_.saved},
                {"replay", money_.replay},
                {"held_hbm", money_.hbm},
                {"held_dram", money_.dram},
                {"held_window", money_.window},
                {"held_ssd", money_.ssd},
                {"wear", money_.ssd_wear}}
        .dump();
  }

  const Study& study_;
  const Costs& costs_;
  const SimulationFigures& f_;
  const Money& money_;
  double days_;
};

}  // namespace

std::string StudyPage(const Study& study, const economics::ReuseStudy& reuse,
                      const WindowEconomics& windows, const Costs& costs) {
  return Page(study, costs).Html(StudySections(study, reuse, windows, costs));
}

}  // namespace reprise
