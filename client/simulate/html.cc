#include "client/simulate/html.h"

namespace reprise {

std::string EscapeHtml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string HtmlTable(const HtmlCells& head, const std::vector<HtmlCells>& rows) {
  std::string html = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& cell : head) html += "<th>" + EscapeHtml(cell) + "</th>";
  html += "</tr></thead><tbody>";
  for (const HtmlCells& row : rows) {
    html += "<tr>";
    for (const std::string& cell : row) html += "<td>" + EscapeHtml(cell) + "</td>";
    html += "</tr>";
  }
  return html + "</tbody></table></div>";
}

std::string HtmlFolded(const std::string& summary, const std::string& content) {
  return "<details><summary>" + EscapeHtml(summary) + "</summary>" + content + "</details>";
}

std::string HtmlSection(const std::string& title, const std::string& sentence,
                        const std::string& plot, const std::string& table, const std::string& how) {
  return "<section><h2>" + EscapeHtml(title) + "</h2><p>" + EscapeHtml(sentence) + "</p>" + plot +
         (table.empty() ? "" : HtmlFolded("the numbers", table)) + "<p class=\"soft\">" +
         EscapeHtml(how) + "</p></section>\n";
}

}  // namespace reprise
