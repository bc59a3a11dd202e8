#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reprise::engine {

// Lines of cells under one another, for a terminal.
class TextTable {
 public:
  // A letter for each column: 'l' or 'r', the side its cells stand at.
  explicit TextTable(std::string sides) : sides_(std::move(sides)) {}

  // Missing cells at the end are empty.
  void Row(std::vector<std::string> cells);
  // Dashes across the columns from `first` on: below them stand their sums.
  void SumLine(size_t first);
  // Lines indented by two, columns two apart, no blanks at ends of lines.
  std::string Text() const;

 private:
  struct Line {
    std::vector<std::string> cells;
    size_t dashes_from = SIZE_MAX;
  };

  std::string sides_;
  std::vector<Line> lines_;
};

// 1351680 as "1,351,680".
std::string Grouped(uint64_t value);
// A count of parameters with three digits that matter: "7.90 B", "377 M", "5,120".
std::string Rounded(uint64_t count);

}  // namespace reprise::engine
