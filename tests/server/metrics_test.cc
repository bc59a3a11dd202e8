#include "server/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

namespace reprise::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MetricsSnapshot TwoShards() {
  MetricsSnapshot snapshot;
  snapshot.version = "1.2";
  snapshot.model = "nano";
  snapshot.arena_pages = "small";
  snapshot.ready = true;
  snapshot.startup_seconds = 1.5;
  snapshot.record_bytes = 1000;
  snapshot.dram_budget_bytes = 5000;
  snapshot.shards.resize(2);
  snapshot.shards[0].blocks.dram_blocks = 2;
  snapshot.shards[1].blocks.dram_blocks = 1;
  snapshot.shards[1].blocks.failed_checks = 7;
  snapshot.shards[0].log.regions_free = 9;
  snapshot.shards[0].windows.evicted = 4;
  snapshot.shards[1].recovery.regions_scanned = 3;
  snapshot.shards[0].requests.exact_hits = 10;
  snapshot.shards[1].requests.exact_hits = 11;
  snapshot.shards[0].requests.sent_bytes[static_cast<size_t>(TransportKind::kTcp)] = 64;
  snapshot.shards[0].requests.Count(wire::Opcode::kLookup, Outcome::kOk, 3 * kMicrosecond);
  snapshot.shards[1].requests.Count(wire::Opcode::kLookup, Outcome::kOk, 100 * kSecond);
  snapshot.shards[1].requests.Count(wire::Opcode::kPut, Outcome::kHashMismatch, kMillisecond);
  return snapshot;
}

TEST(Metrics, TextHoldsTheSnapshot) {
  const std::string text = MetricsText(TwoShards());
  for (const char* line : {
           "reprise_build_info{version=\"1.2\",model=\"nano\",arena_pages=\"small\"} 1\n",
           "# TYPE reprise_ready gauge\nreprise_ready 1\n",
           "reprise_startup_seconds 1.5\n",
           "reprise_budget_bytes{tier=\"dram\"} 5000\n",
           "reprise_used_bytes{tier=\"dram\"} 3000\n",
           "reprise_dram_blocks{shard=\"0\"} 2\n",
           "reprise_failed_checks_total{shard=\"1\"} 7\n",
           "reprise_regions{shard=\"0\",state=\"free\"} 9\n",
           "reprise_window_events_total{shard=\"0\",event=\"evicted\"} 4\n",
           "reprise_recovery_regions{shard=\"1\",source=\"scan\"} 3\n",
           "reprise_verdicts_total{kind=\"exact\"} 21\n",
           "reprise_transfer_bytes_total{transport=\"tcp\",direction=\"sent\"} 64\n",
           "reprise_requests_total{opcode=\"lookup\",outcome=\"ok\"} 2\n",
           "reprise_requests_total{opcode=\"put\",outcome=\"ok\"} 0\n",
           "reprise_requests_total{opcode=\"put\",outcome=\"hash_mismatch\"} 1\n",
           "reprise_request_seconds_count{opcode=\"lookup\"} 2\n",
           "reprise_request_seconds_bucket{opcode=\"lookup\",le=\"+Inf\"} 2\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
  EXPECT_THAT(text, Not(HasSubstr("outcome=\"corrupt\"")));
}

// A sample line taken apart: name{labels} value.
struct Sample {
  std::string name, labels;
  double value = 0;
  bool well_formed = false;
};

Sample Parse(const std::string& line) {
  Sample sample;
  const size_t name_end = line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_");
  if (name_end == std::string::npos || name_end == 0) return sample;
  sample.name = line.substr(0, name_end);
  size_t value_at = name_end;
  if (line[name_end] == '{') {
    const size_t close = line.rfind('}');
    if (close == std::string::npos) return sample;
    sample.labels = line.substr(name_end + 1, close - name_end - 1);
    value_at = close + 1;
  }
  if (line[value_at] != ' ') return sample;
  char* end = nullptr;
  sample.value = std::strtod(line.c_str() + value_at + 1, &end);
  sample.well_formed = end == line.c_str() + line.size();
  return sample;
}

TEST(Metrics, BucketsAreCumulativeAndRise) {
  std::istringstream lines(MetricsText(TwoShards()));
  const std::string prefix = "opcode=\"lookup\",le=\"";
  double last_bound = 0, last_count = 0;
  int buckets = 0;
  for (std::string line; std::getline(lines, line);) {
    const Sample sample = Parse(line);
    if (sample.name != "reprise_request_seconds_bucket" || !sample.labels.starts_with(prefix))
      continue;
    ++buckets;
    const double bound =
        std::strtod(sample.labels.c_str() + prefix.size(), nullptr);  // "+Inf" too.
    EXPECT_GT(bound, last_bound);
    EXPECT_GE(sample.value, last_count);
    EXPECT_EQ(sample.value, bound < 3e-6 ? 0 : bound < 100 ? 1 : 2) << bound;
    last_bound = bound;
    last_count = sample.value;
  }
  EXPECT_EQ(buckets, 26);
}

TEST(Metrics, EveryLineIsWellFormedAndNamesAreConventional) {
  std::istringstream lines(MetricsText(TwoShards()));
  std::set<std::string> families, samples;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# HELP reprise_")) continue;
    if (line.starts_with("# TYPE ")) {
      std::istringstream words(line.substr(7));
      std::string name, type;
      words >> name >> type;
      EXPECT_TRUE(name.starts_with("reprise_")) << line;
      EXPECT_TRUE(families.insert(name).second) << line << " twice";
      EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
      continue;
    }
    const Sample sample = Parse(line);
    EXPECT_TRUE(sample.well_formed) << line;
    EXPECT_TRUE(samples.insert(sample.name + "{" + sample.labels).second) << line << " twice";
  }
  EXPECT_GT(families.size(), 40u);
}

TEST(Metrics, WithoutShardsNothingBreaks) {
  EXPECT_THAT(MetricsText(MetricsSnapshot{}), HasSubstr("reprise_ready 0\n"));
}

// RP_UPDATE_PAGES=1 rewrites the page from the table.
TEST(Metrics, ThePageIsWhatTheTableSays) {
  const std::string path = std::string(RP_SOURCE_DIR) + "/server/METRICS.md";
  if (std::getenv("RP_UPDATE_PAGES") != nullptr) std::ofstream(path) << MetricsPage();
  std::ifstream file(path);
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_EQ(page.str(), MetricsPage()) << "run this test once with RP_UPDATE_PAGES=1";
}

TEST(LatencyHistogram, BoundsAreInclusiveAndNothingIsLost) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  for (const Nanos duration :
       {Nanos{-5}, Nanos{0}, kMicrosecond, kMicrosecond + 1, 2 * kMicrosecond, kNever / 4}) {
    histogram.Record(duration);
  }
  EXPECT_EQ(histogram.bucket(0), 3u);
  EXPECT_EQ(histogram.bucket(1), 2u);
  EXPECT_EQ(histogram.bucket(LatencyHistogram::kBounds), 1u);
  EXPECT_EQ(histogram.count(), 6u);
  EXPECT_EQ(histogram.sum_ns(), kMicrosecond * 4 + 1 + kNever / 4);
  EXPECT_EQ(histogram.Quantile(0.5), kMicrosecond);
  EXPECT_EQ(histogram.Quantile(0.6), 2 * kMicrosecond);
  EXPECT_EQ(histogram.Quantile(1.0), LatencyHistogram::UpperBound(LatencyHistogram::kBounds));
  LatencyHistogram sum;
  sum.Add(histogram);
  sum.Add(histogram);
  EXPECT_EQ(sum.count(), 12u);
  EXPECT_EQ(sum.bucket(1), 4u);
}

TEST(Metrics, EveryOpcodeAndTransportHasAName) {
  std::set<std::string_view> names;
  for (uint8_t opcode = 1; opcode <= wire::kOpcodeMax; ++opcode) {
    EXPECT_TRUE(names.insert(OpcodeName(static_cast<wire::Opcode>(opcode))).second);
  }
  EXPECT_EQ(OpcodeName(wire::Opcode::kHello), "hello");
  EXPECT_EQ(OpcodeName(wire::Opcode::kControl), "control");
  EXPECT_EQ(OpcodeName(static_cast<wire::Opcode>(200)), "unknown");
  EXPECT_EQ(TransportKindName(TransportKind::kRdma), "rdma");
}

}  // namespace
}  // namespace reprise::server
