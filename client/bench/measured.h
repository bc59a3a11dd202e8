#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "client/drive/latency_histogram.h"
#include "protocol/base/clock.h"

namespace reprise::bench {

// What was done in a stretch of time. `latency` is of single operations: a record on SSD, a batch
// with a daemon.
struct Measured {
  uint64_t records = 0;
  uint64_t bytes = 0;
  Nanos elapsed_ns = 0;
  LatencyHistogram latency;

  double seconds() const { return static_cast<double>(elapsed_ns) * 1e-9; }
  double records_per_second() const { return PerSecond(records); }
  double bytes_per_second() const { return PerSecond(bytes); }

  void Merge(const Measured& other) {
    records += other.records;
    bytes += other.bytes;
    elapsed_ns += other.elapsed_ns;
    latency.Merge(other.latency);
  }

 private:
  double PerSecond(uint64_t count) const {
    return elapsed_ns == 0 ? 0 : static_cast<double>(count) / seconds();
  }
};

// One figure, measured in several rounds.
class Series {
 public:
  void Add(double value) { values_.push_back(value); }
  bool empty() const { return values_.empty(); }
  double min() const { return empty() ? 0 : *std::min_element(values_.begin(), values_.end()); }
  double max() const { return empty() ? 0 : *std::max_element(values_.begin(), values_.end()); }
  double median() const {
    if (empty()) return 0;
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    const size_t middle = sorted.size() / 2;
    return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

 private:
  std::vector<double> values_;
};

}  // namespace reprise::bench
