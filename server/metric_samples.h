#pragma once

#include <prometheus/metric_family.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "server/metrics.h"

// The samples of one metric, as its row of the table in metrics.cc collects them.
namespace reprise::server {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

// Takes the samples of one metric.
class Samples {
 public:
  explicit Samples(MetricFamily* family) : family_(family) {}

  void Add(Labels labels, double value) {
    ClientMetric sample;
    sample.label = std::move(labels);
    (family_->type == MetricType::Counter ? sample.counter.value : sample.gauge.value) = value;
    family_->metric.push_back(std::move(sample));
  }
  void Add(Labels labels, uint64_t value) { Add(std::move(labels), static_cast<double>(value)); }

  void Add(Labels labels, const LatencyHistogram& histogram) {
    ClientMetric sample;
    sample.label = std::move(labels);
    sample.histogram.sample_count = histogram.count();
    sample.histogram.sample_sum = static_cast<double>(histogram.sum_ns()) * 1e-9;
    uint64_t cumulative = 0;
    for (size_t i = 0; i < LatencyHistogram::kBounds; ++i) {
      cumulative += histogram.bucket(i);
      sample.histogram.bucket.push_back(
          {cumulative, static_cast<double>(LatencyHistogram::UpperBound(i)) * 1e-9});
    }
    sample.histogram.bucket.push_back({histogram.count(), HUGE_VAL});
    family_->metric.push_back(std::move(sample));
  }

 private:
  MetricFamily* family_;
};

// `value` of every shard, labelled with the shard's number and what `labels` adds.
template <typename Value>
void PerShard(const MetricsSnapshot& snapshot, Samples* out, Value value,
              const Labels& labels = {}) {
  for (size_t i = 0; i < snapshot.shards.size(); ++i) {
    Labels all = {{"shard", std::to_string(i)}};
    all.insert(all.end(), labels.begin(), labels.end());
    out->Add(std::move(all), static_cast<uint64_t>(value(snapshot.shards[i])));
  }
}

template <typename Value>
uint64_t Sum(const MetricsSnapshot& snapshot, Value value) {
  uint64_t sum = 0;
  for (const ShardMetrics& shard : snapshot.shards) sum += static_cast<uint64_t>(value(shard));
  return sum;
}

}  // namespace reprise::server
