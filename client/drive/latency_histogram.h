#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "protocol/base/clock.h"

namespace reprise {

// Counts of durations in log-linear buckets: 64 to an octave, so a percentile is at most 1.6 %
// above the truth, at any scale, in 30 KiB.
class LatencyHistogram {
 public:
  void Add(Nanos duration_ns) {
    const uint64_t value = duration_ns < 0 ? 0 : static_cast<uint64_t>(duration_ns);
    ++buckets_[Index(value)];
    ++count_;
    sum_ns_ += value;
    if (value > max_ns_) max_ns_ = value;
  }
  void Merge(const LatencyHistogram& other);

  uint64_t count() const { return count_; }
  Nanos max_ns() const { return static_cast<Nanos>(max_ns_); }
  double mean_ns() const;
  // The smallest bucket's end that `share` (0 to 1) of the durations do not exceed; 0 when empty.
  Nanos Percentile(double share) const;

 private:
  static constexpr uint32_t kSubBits = 6;
  static constexpr uint32_t kSubBuckets = 1u << kSubBits;

  static constexpr uint32_t Index(uint64_t value) {
    if (value < kSubBuckets) return static_cast<uint32_t>(value);
    const uint32_t octave = static_cast<uint32_t>(std::bit_width(value)) - 1 - kSubBits;
    return (octave << kSubBits) + static_cast<uint32_t>(value >> octave);
  }
  // The largest value of a bucket.
  static constexpr uint64_t Last(uint32_t index) {
    if (index < 2 * kSubBuckets) return index;
    const uint32_t octave = (index >> kSubBits) - 1;
    return ((uint64_t{index & (kSubBuckets - 1)} + kSubBuckets + 1) << octave) - 1;
  }

  std::array<uint64_t, (65 - kSubBits) * kSubBuckets> buckets_{};
  uint64_t count_ = 0;
  uint64_t sum_ns_ = 0;
  uint64_t max_ns_ = 0;
};

}  // namespace reprise
