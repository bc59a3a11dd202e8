#include <algorithm>
#include <cmath>

#include "server/metrics.h"

namespace reprise::server {

std::string_view TransportKindName(TransportKind kind) {
  static constexpr std::array<std::string_view, kTransportKinds> kNames = {"local", "unix", "tcp",
                                                                           "rdma"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view OpcodeName(wire::Opcode opcode) {
  static constexpr std::array<std::string_view, wire::kOpcodeMax + 1> kNames = {
      "unknown", "hello",        "open_namespace", "lookup",         "acquire",    "get",
      "release", "put",          "window_put",     "window_acquire", "window_get", "control",
      "fetch",   "window_fetch", "slot_acquire"};
  const auto index = static_cast<size_t>(opcode);
  return kNames[index < kNames.size() ? index : 0];
}

void LatencyHistogram::Record(Nanos duration_ns) {
  size_t i = 0;
  while (i < kBounds && duration_ns > UpperBound(i)) ++i;
  ++buckets_[i];
  ++count_;
  sum_ns_ += std::max<Nanos>(duration_ns, 0);
}

void LatencyHistogram::Add(const LatencyHistogram& other) {
  for (size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ns_ += other.sum_ns_;
}

Nanos LatencyHistogram::Quantile(double q) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::ceil(q * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBounds; ++i) {
    seen += buckets_[i];
    if (seen >= rank) return UpperBound(i);
  }
  return UpperBound(kBounds);
}

}  // namespace reprise::server
