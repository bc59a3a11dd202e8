#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "client/drive/driver.h"
#include "client/trace/trace.h"
#include "protocol/record/record.h"
#include "tests/client/fake_drive_store.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The six hand-checked requests of the toy trace, with blocks of 128 instead of 4.
std::vector<ListTrace::Row> ToyRows() {
  return {{0, -1, 384, {1, 2, 3}},      {10, -1, 512, {1, 2, 3, 4}}, {20, -1, 256, {1, 5}},
          {400, -1, 576, {1, 2, 3, 4}}, {410, -1, 256, {6, 7}},      {420, -1, 384, {1, 5, 8}}};
}

class DriveTest : public ::testing::Test {
 protected:
  DriveTest() : maker_(&store_) {
    options_.request = {.name_space = TestNamespace(),
                        .payload_bytes = kPayloadBytes,
                        .window_bytes = kWindowBytes};
  }
  absl::StatusOr<DriveFigures> Run(TraceReader* trace) {
    return Drive(trace, &maker_, options_, &clock_);
  }
  DriveFigures RunToy() {
    ListTrace trace(128, ToyRows());
    const auto figures = Run(&trace);
    EXPECT_TRUE(figures.ok()) << figures.status();
    return figures.ok() ? *figures : DriveFigures();
  }

  FakeStore store_;
  FakeMaker maker_;
  DriveOptions options_;
  TestClock clock_;
};

TEST_F(DriveTest, ToyTraceByHand) {
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.requests, 6u);
  EXPECT_EQ(figures.input_tokens, 74u * 32);
  EXPECT_EQ(figures.hit_tokens, 40u * 32);  // 3 + 1 + 4 + 2 blocks.
  EXPECT_EQ(figures.hit_tokens_by_tier[static_cast<size_t>(Tier::kDram)], 40u * 32);
  // Row 2 ends where row 1 did, row 4 where row 2 did, row 6 where row 3 did; row 3 forks after one
  // block.
  EXPECT_EQ(figures.exact_hits, 3u);
  EXPECT_EQ(figures.replayed_hits, 1u);
  EXPECT_EQ(figures.misses, 2u);
  EXPECT_EQ(figures.replayed_tokens, 128u);
  EXPECT_EQ(figures.blocks_put, 8u);
  EXPECT_EQ(figures.blocks_existing, 0u);
  EXPECT_EQ(figures.put_bytes, 8u * 4096);
  EXPECT_EQ(figures.loaded_bytes, 10u * 4096);
  EXPECT_EQ(figures.window_loaded_bytes, 3u * kWindowBytes);
  EXPECT_EQ(figures.wrong_bytes, 0u);
  EXPECT_TRUE(figures.errors.empty());
  EXPECT_EQ(figures.latencies[static_cast<size_t>(DriveCall::kLookup)].count(), 6u);
  EXPECT_EQ(figures.latencies[static_cast<size_t>(DriveCall::kAcquireDram)].count(), 4u);
  EXPECT_THAT(store_.window_sessions, ::testing::Each(0u));
}

TEST_F(DriveTest, ReplayDerivedBlocksAreMarked) {
  RunToy();
  uint32_t derived = 0;
  for (const auto& [key, record] : store_.blocks) {
    derived += (LoadRecordHeader(record).flags & kReplayDerived) != 0 ? 1 : 0;
  }
  EXPECT_EQ(derived, 1u);  // Block [1, 5], whose window at [1] had to be replayed.
}

TEST_F(DriveTest, WithoutWindowsEveryHitIsReplayed) {
  options_.request.window_bytes = 0;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.replayed_hits, 4u);
  EXPECT_EQ(figures.replayed_tokens, 512u);
  EXPECT_TRUE(store_.windows.empty());
}

TEST_F(DriveTest, TiersAreTheVerdicts) {
  RunToy();
  for (const auto& [key, record] : store_.blocks) {
    if (LoadRecordHeader(record).block_index == 0) store_.tiers[key] = Tier::kSsd;
  }
  ListTrace again(128, ToyRows());
  const auto figures = Run(&again);
  ASSERT_TRUE(figures.ok());
  EXPECT_EQ(figures->hit_tokens_by_tier[static_cast<size_t>(Tier::kSsd)], 6u * 128);
  EXPECT_EQ(figures->hit_tokens, 18u * 128);
  EXPECT_EQ(figures->latencies[static_cast<size_t>(DriveCall::kAcquireSsd)].count(), 6u);
}

// A session whose prompts end inside blocks: snapshots at exact positions are asked for and found.
TEST_F(DriveTest, ExactWindowInsideABlock) {
  ListTrace trace(64,
                  {{0, 5, 200, {1, 2, 3}},             // 1 block; snapshot at 192.
                   {1, 5, 330, {1, 2, 3, 4, 5}},       // Hit 128, exact at 192; snapshot at 320.
                   {2, 5, 400, {1, 2, 3, 4, 5, 6}},    // Hit 256, exact at 320.
                   {3, 6, 400, {1, 2, 3, 9, 5, 6}}});  // Another session: hit 128, not asked for.
  const auto figures = Run(&trace);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->hit_tokens, 128u + 256 + 128);
  EXPECT_EQ(figures->exact_hits, 2u);
  EXPECT_EQ(figures->replayed_hits, 1u);
  EXPECT_EQ(figures->misses, 1u);
  EXPECT_THAT(store_.window_sessions, ElementsAre(6, 6, 6, 7));
  EXPECT_EQ(figures->wrong_bytes, 0u);
}

TEST_F(DriveTest, WrongBytesAreCounted) {
  store_.bend_records = store_.bend_windows = true;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.wrong_bytes, 10u + 3);
  EXPECT_EQ(figures.wrong_records, 10u + 3);

  FakeStore other;
  FakeMaker maker(&other);
  other.bend_records = true;
  options_.request.verify = false;
  ListTrace trace(128, ToyRows());
  EXPECT_EQ(Drive(&trace, &maker, options_, &clock_)->wrong_bytes, 0u);
}

TEST_F(DriveTest, BusyIsTriedAgain) {
  store_.busy_puts = 3;
  store_.busy_acquires = 2;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.retries, 5u);
  EXPECT_EQ(figures.blocks_put, 8u);
  EXPECT_EQ(figures.hit_tokens, 40u * 32);
  EXPECT_TRUE(figures.errors.empty());
}

TEST_F(DriveTest, BusyForTooLongIsAnError) {
  store_.busy_puts = UINT32_MAX;
  const DriveFigures figures = RunToy();
  EXPECT_THAT(figures.errors, ElementsAre(::testing::Pair("put/busy", ::testing::Gt(0u))));
  EXPECT_GT(figures.misses, 2u);
}

TEST_F(DriveTest, RefusedPutsAreErrorsByOutcome) {
  store_.put_outcome = Outcome::kRejected;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.misses, 6u);
  EXPECT_THAT(figures.errors, ElementsAre(::testing::Pair("put/rejected", 18u)));
}

TEST_F(DriveTest, LostBlocksAndWindowsShortenTheHit) {
  store_.forget_after_lookup = true;
  DriveFigures figures = RunToy();
  EXPECT_EQ(figures.hit_tokens, (40u - 4 * 4) * 32);
  EXPECT_EQ(figures.lost_blocks, 4u);
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.errors["acquire/not_found"], 4u);
  EXPECT_EQ(figures.blocks_existing, 4u);

  FakeStore other;
  FakeMaker maker(&other);
  other.forget_windows = true;
  ListTrace trace(128, ToyRows());
  figures = *Drive(&trace, &maker, options_, &clock_);
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.replayed_hits, 4u);
  EXPECT_EQ(figures.lost_windows, 3u);
}

TEST_F(DriveTest, TimeoutsDegradeToMisses) {
  store_.lookups_until_timeout = 3;
  DriveFigures figures = RunToy();
  EXPECT_EQ(figures.misses, 3u);
  EXPECT_EQ(figures.errors["lookup/deadline_exceeded"], 1u);
  EXPECT_EQ(figures.blocks_existing, 4u);
}

TEST_F(DriveTest, ALostConnectionIsMadeAgain) {
  store_.lookups_until_lost = 2;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.reconnects, 1u);
  EXPECT_EQ(figures.requests, 6u);
  EXPECT_EQ(figures.errors.at("lookup/unavailable"), 1u);
  EXPECT_EQ(figures.exact_hits + figures.replayed_hits + figures.misses, 5u);
}

TEST_F(DriveTest, ADaemonThatStaysAwayEndsTheRun) {
  store_.lookups_until_lost = 2;
  store_.refuse_connects_from = 1;
  ListTrace trace(128, ToyRows());
  const auto figures = Run(&trace);
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(figures.status()), HasSubstr("is the daemon still running"));
}

TEST_F(DriveTest, LimitsOfRequestsAndSessions) {
  std::vector<ListTrace::Row> rows;
  for (int i = 0; i < 30; ++i) rows.push_back({i * 1.0, i % 3, 128, {static_cast<uint64_t>(i)}});
  options_.requests_max = 7;
  ListTrace first(128, rows);
  EXPECT_EQ(Run(&first)->requests, 7u);
  options_.requests_max = 0;
  options_.sessions_max = 2;
  ListTrace second(128, rows);
  EXPECT_EQ(Run(&second)->requests, 20u);
}

TEST_F(DriveTest, SpeedFollowsTheTrace) {
  options_.speed = 2;
  const DriveFigures figures = RunToy();
  EXPECT_GE(figures.elapsed_ns, 210 * kSecond);
  EXPECT_LT(figures.elapsed_ns, 211 * kSecond);
}

TEST_F(DriveTest, ManyConnectionsGiveTheSameFiguresForSessions) {
  const std::string spec =
      "generated:sessions=12,turns=6,seed=3,system=900,append=300,fork_per_mille=0";
  DriveFigures by_connections[2];
  for (const uint32_t connections : {1u, 4u}) {
    FakeStore store;
    FakeMaker maker(&store);
    options_.connections = connections;
    auto trace = OpenTrace(spec, {});
    const auto figures = Drive(trace->get(), &maker, options_, &clock_);
    ASSERT_TRUE(figures.ok()) << figures.status();
    EXPECT_EQ(figures->wrong_bytes, 0u);
    EXPECT_EQ(store.connects, connections);
    EXPECT_EQ(figures->exact_hits + figures->replayed_hits + figures->misses, figures->requests);
    by_connections[connections > 1] = *figures;
  }
  // Only who comes first with a shared system prompt may differ.
  EXPECT_EQ(by_connections[0].requests, by_connections[1].requests);
  EXPECT_EQ(by_connections[0].input_tokens, by_connections[1].input_tokens);
  EXPECT_GT(by_connections[1].exact_hits, by_connections[1].requests / 2);
}

TEST_F(DriveTest, TraceErrorsEndTheRun) {
  const std::string path = ::testing::TempDir() + "/drive_test." + std::to_string(::getpid());
  std::ofstream(path)
      << "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\nx\n";
  auto trace = OpenTrace(path, {});
  ASSERT_TRUE(trace.ok());
  EXPECT_THAT(Message(Run(trace->get()).status()), HasSubstr(":2: "));
  std::filesystem::remove(path);
}

// The kept traces lie beside the project, and are not part of it.
TEST_F(DriveTest, AgentTraceAgainstMemory) {
  const std::string path = std::string(RP_SOURCE_DIR) + "/../shared/traces/cc48.jsonl.zst";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  auto trace = OpenTrace(path, {.block_tokens = 64});
  ASSERT_TRUE(trace.ok());
  options_.requests_max = 40;
  const auto figures = Run(trace->get());
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->wrong_bytes, 0u);
  EXPECT_TRUE(figures->errors.empty());
  EXPECT_GT(figures->exact_hits, 25u);
}

}  // namespace
}  // namespace reprise
