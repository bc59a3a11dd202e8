#pragma once

#include <string>
#include <vector>

// Pieces of HTML that the page is made of.
namespace reprise {

using HtmlCells = std::vector<std::string>;

std::string EscapeHtml(const std::string& text);
std::string HtmlTable(const HtmlCells& head, const std::vector<HtmlCells>& rows);
// Behind a line that opens it.
std::string HtmlFolded(const std::string& summary, const std::string& content);
// One sentence that states the result, the plot, its table, how it was computed.
std::string HtmlSection(const std::string& title, const std::string& sentence,
                        const std::string& plot, const std::string& table, const std::string& how);

}  // namespace reprise
