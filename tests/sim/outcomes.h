#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace reprise::sim {

// How often a run came to each end that it is meant to reach. A simulation that never evicts, never
// tears a record and never answers busy proves nothing, so main.cc demands that each happened.
class Outcomes {
 public:
  void Count(std::string_view name, uint64_t by = 1) {
    if (by > 0) counts_[std::string(name)] += by;
  }
  void Add(const Outcomes& other) {
    for (const auto& [name, count] : other.counts_) counts_[name] += count;
  }
  uint64_t count(std::string_view name) const {
    const auto found = counts_.find(std::string(name));
    return found == counts_.end() ? 0 : found->second;
  }
  const std::map<std::string, uint64_t>& all() const { return counts_; }

  // Those that must be reached by a hundred seeds.
  static std::vector<std::string_view> Required();

  // "name count\n" for each, and back.
  std::string ToText() const;
  static Outcomes FromText(std::string_view text);

 private:
  std::map<std::string, uint64_t> counts_;
};

}  // namespace reprise::sim
