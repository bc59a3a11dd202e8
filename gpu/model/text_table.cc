#include "gpu/model/text_table.h"

#include <algorithm>
#include <cstdio>

namespace reprise::engine {

void TextTable::Row(std::vector<std::string> cells) {
  cells.resize(sides_.size());
  lines_.push_back({std::move(cells)});
}

void TextTable::SumLine(size_t first) {
  lines_.push_back({std::vector<std::string>(sides_.size()), first});
}

std::string TextTable::Text() const {
  std::vector<size_t> widths(sides_.size());
  for (const Line& line : lines_) {
    for (size_t i = 0; i < widths.size(); ++i)
      widths[i] = std::max(widths[i], line.cells[i].size());
  }
  std::string text;
  for (const Line& line : lines_) {
    std::string row;
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = i < line.dashes_from ? line.cells[i] : std::string(widths[i], '-');
      const std::string blanks(widths[i] - cell.size(), ' ');
      row += "  " + (sides_[i] == 'r' ? blanks + cell : cell + blanks);
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += row + "\n";
  }
  return text;
}

std::string Grouped(uint64_t value) {
  std::string digits = std::to_string(value);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string Rounded(uint64_t count) {
  if (count < 100'000) return Grouped(count);
  const bool billions = count >= 1'000'000'000;
  const double value = static_cast<double>(count) / (billions ? 1e9 : 1e6);
  char text[32];
  std::snprintf(text, sizeof(text),
                value < 10    ? "%.2f %s"
                : value < 100 ? "%.1f %s"
                              : "%.0f %s",
                value, billions ? "B" : "M");
  return text;
}

}  // namespace reprise::engine
