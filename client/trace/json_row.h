#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"

namespace reprise {

// One line of a JSON-lines trace: an object of numbers, texts and arrays of whole numbers. Values
// of other kinds may be there, and cannot be read. Memory is reused from row to row.
class JsonRow {
 public:
  // Refuses what is not exactly one JSON object, and a name that comes twice.
  absl::Status Parse(std::string_view line);

  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  // A field that is there, of the kind asked for, in [min, max]; the error says what it is instead.
  absl::StatusOr<int64_t> Integer(std::string_view name, int64_t min, int64_t max) const;
  absl::StatusOr<double> Number(std::string_view name, double min, double max) const;
  // An array of whole numbers of 0 or more. The view ends with the next Parse.
  absl::StatusOr<std::span<const uint64_t>> Integers(std::string_view name) const;

 private:
  friend class JsonRowHandler;

  enum class Kind : uint8_t { kOther, kInteger, kReal, kArray };
  struct Field {
    std::string name;
    Kind kind = Kind::kOther;
    int64_t integer = 0;
    double real = 0;
    std::vector<uint64_t> items;
    std::string problem;  // Of the first item that is not a whole number of 0 or more.
  };

  const Field* Find(std::string_view name) const;
  absl::StatusOr<const Field*> Need(std::string_view name) const;

  std::vector<Field> fields_;
  size_t field_count_ = 0;  // Fields of this row; the rest of fields_ is spare.
};

}  // namespace reprise
