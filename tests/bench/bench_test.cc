// The benchmarks work, and notice what they promise to notice. What they measure is not asserted.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "client/bench/bench_chain.h"
#include "client/bench/daemon_bench.h"
#include "client/bench/ssd_bench.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "protocol/record/record.h"

namespace reprise::bench {
namespace {

namespace fs = std::filesystem;

class SsdBenchTest : public testing::Test {
 protected:
  SsdBenchTest() {
    std::string name = testing::TempDir() + "ssd-bench-XXXXXX";
    RP_CHECK(mkdtemp(name.data()) != nullptr);
    options_ = {.dir = name,
                .size_bytes = 16_MiB,
                .region_bytes = 1_MiB,
                .record_bytes = 8'192,
                .queue_depth = 8,
                .duration_ns = 30 * kMillisecond,
                .warm_up_ns = 0};
  }
  ~SsdBenchTest() override { fs::remove_all(options_.dir); }

  absl::StatusOr<SsdBenchFigures> Run() { return RunSsdBench(options_, clock_); }

  SsdBenchOptions options_;
  SystemClock clock_;
};

TEST_F(SsdBenchTest, MeasuresEveryPhaseAndLeavesNothing) {
  const auto figures = Run();
  ASSERT_TRUE(figures.ok()) << figures.status();
  for (const Measured* measured : {&figures->append, &figures->append_durable, &figures->read}) {
    EXPECT_GT(measured->records, 0u);
    EXPECT_EQ(measured->bytes, measured->records * options_.record_bytes);
    EXPECT_EQ(measured->latency.count(), measured->records);
  }
  EXPECT_GT(figures->syncs, 0u);
  EXPECT_EQ(figures->wrong_records, 0u);
  EXPECT_EQ(figures->recovered_records, 0u);
  EXPECT_TRUE(fs::is_empty(options_.dir));
}

TEST_F(SsdBenchTest, AKeptFileIsRecoveredAndDamageIsNoticed) {
  options_.keep = true;
  options_.append = options_.append_durable = false;
  ASSERT_TRUE(Run().ok());
  const auto again = Run();
  ASSERT_TRUE(again.ok()) << again.status();
  // Twelve regions of 16 are laid out, each with 126 records.
  EXPECT_GE(again->recovered_records, 12u * 126);
  EXPECT_EQ(again->wrong_records, 0u);

  const int fd = open(SsdBenchFile(options_).c_str(), O_WRONLY);
  ASSERT_GE(fd, 0);
  for (off_t record = 0; record < 126; ++record) {  // One byte of each payload of a region.
    ASSERT_EQ(pwrite(fd, "damage", 6, record * options_.record_bytes + 100), 6);
  }
  ASSERT_EQ(fsync(fd), 0);
  close(fd);
  const auto damaged = Run();
  ASSERT_TRUE(damaged.ok()) << damaged.status();
  EXPECT_GT(damaged->wrong_records, 0u);
}

TEST_F(SsdBenchTest, RefusesWhatCannotWorkAndSaysWhatWould) {
  struct Case {
    const char* name;
    void (*change)(SsdBenchOptions*);
    const char* says;
  };
  const Case cases[] = {
      {"odd record", [](SsdBenchOptions* o) { o->record_bytes = 5'000; }, "--record-bytes 5000"},
      {"record of one page", [](SsdBenchOptions* o) { o->record_bytes = 4'096; }, "two or more"},
      {"small file", [](SsdBenchOptions* o) { o->size_bytes = 7_MiB; }, "--size 7"},
      {"no depth", [](SsdBenchOptions* o) { o->queue_depth = 0; }, "--queue-depth 0"},
      {"deep", [](SsdBenchOptions* o) { o->queue_depth = 1'025; }, "--queue-depth 1025"},
      {"no folder", [](SsdBenchOptions* o) { o->dir += "/none"; }, "/none/"},
  };
  const SsdBenchOptions good = options_;
  for (const Case& c : cases) {
    c.change(&options_);
    const auto figures = Run();
    options_ = good;
    ASSERT_FALSE(figures.ok()) << c.name;
    EXPECT_THAT(Message(figures.status()), testing::HasSubstr(c.says)) << c.name;
  }
}

TEST_F(SsdBenchTest, DoesNotTouchAFileItWasNotGiven) {
  const int fd = open(SsdBenchFile(options_).c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(write(fd, "mine", 4), 4);
  close(fd);
  const auto figures = Run();
  ASSERT_FALSE(figures.ok());
  EXPECT_THAT(Message(figures.status()), testing::HasSubstr("--keep"));
  EXPECT_EQ(fs::file_size(SsdBenchFile(options_)), 4u);
}

TEST(BenchChain, FollowsFromNamespaceAndSeed) {
  Hash256 name_space;
  name_space.bytes.fill(std::byte{3});
  const BenchChain chain(name_space, kV41PayloadBytes, 5, 3);
  const BenchChain same(name_space, kV41PayloadBytes, 5, 3);
  const BenchChain other(name_space, kV41PayloadBytes, 6, 3);
  EXPECT_EQ(chain.keys()[2], same.keys()[2]);
  EXPECT_NE(chain.keys()[0], other.keys()[0]);

  std::vector<std::byte> record(kV41RecordBytes);
  chain.Build(1, 42, record);
  EXPECT_EQ(VerifyRecord(record, chain.keys()[1]), Outcome::kOk);
  EXPECT_EQ(same.CountErrors(1, record), 0u);
  EXPECT_GT(chain.CountErrors(2, record), 0u);
  record[1'000] ^= std::byte{1};
  EXPECT_EQ(chain.CountErrors(1, record), 1u);
}

TEST(LookupBench, FillsTheIndexAndFindsEveryBlock) {
  const SystemClock clock;
  LookupBenchFigures figures;
  const DaemonBenchOptions options{.duration_ns = 20 * kMillisecond, .rounds = 2};
  ASSERT_TRUE(RunIndexLookups(options, {2'048, 100'000}, clock, &figures).ok());
  ASSERT_EQ(figures.in_process.size(), 2u);
  for (const auto& index : figures.in_process) {
    EXPECT_GT(index.measured.records, 0u);
    EXPECT_EQ(index.measured.records % kLookupChainBlocks, 0u);
  }
  EXPECT_LE(figures.in_process[1].index_bytes_per_block, 48);
  EXPECT_FALSE(RunIndexLookups(options, {1'023}, clock, &figures).ok());
}

TEST(Series, MedianOfRounds) {
  Series series;
  EXPECT_EQ(series.median(), 0);
  for (const double value : {5.0, 1.0, 9.0}) series.Add(value);
  EXPECT_EQ(series.median(), 5);
  series.Add(7);
  EXPECT_EQ(series.median(), 6);
  EXPECT_EQ(series.min(), 1);
  EXPECT_EQ(series.max(), 9);
}

}  // namespace
}  // namespace reprise::bench
