// What ranks need on the host: their parts, their gate, their threads. No GPU.
#include <gmock/gmock.h>

#include <atomic>

#include "gpu/cuda/rank_threads.h"
#include "gpu/cuda/weights.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

TEST(Shards, PartsFollowOneAnotherInWholeUnits) {
  for (const uint64_t total : {8u, 64u, 288u, 384u, 129280u}) {
    for (const uint32_t ranks : {1u, 2u, 3u, 8u}) {
      for (const uint64_t unit : {1u, 64u}) {
        uint64_t next = 0, most = 0, least = UINT64_MAX;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
          const Shard::Part part = Shard{rank, ranks}.PartOf(total, unit);
          EXPECT_EQ(part.first, next);
          EXPECT_TRUE(part.first % unit == 0 || part.count == 0);
          next += part.count;
          most = std::max(most, part.count);
          least = std::min(least, part.count);
        }
        EXPECT_EQ(next, total);
        EXPECT_LE(most - least, 2 * unit - 1);
      }
    }
  }
}

TEST(Shards, AModelThatDoesNotDivideIsRefused) {
  const ModelConfig& nano = NanoGeometry().config;
  EXPECT_TRUE(CheckShards(nano, 1).ok());
  EXPECT_TRUE(CheckShards(nano, 2).ok());
  EXPECT_THAT(Message(CheckShards(nano, 4)),
              testing::HasSubstr("4 GPUs cannot share the model: its o_groups of 2"));
}

TEST(StepGates, AllGoOnOrNone) {
  constexpr uint32_t kRanks = 4;
  constexpr int kTurns = 2000;
  RankThreads threads(kRanks);
  StepGate gate(kRanks);
  std::atomic<int> wrong = 0;
  const auto results = threads.Run([&](uint32_t rank) {
    for (int turn = 0; turn < kTurns; ++turn) {
      // Every third turn one rank fails.
      const bool fails = turn % 3 == 0 && static_cast<uint32_t>(turn) / 3 % kRanks == rank;
      const absl::Status own = fails ? InvalidArgument("no") : absl::OkStatus();
      const absl::StatusCode want = fails           ? absl::StatusCode::kInvalidArgument
                                    : turn % 3 == 0 ? absl::StatusCode::kAborted
                                                    : absl::StatusCode::kOk;
      if (gate.Meet(own).code() != want) ++wrong;
    }
    return absl::OkStatus();
  });
  EXPECT_EQ(wrong, 0);
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok());
}

TEST(RankThreadsTest, EachRunsEveryTurnOnItsOwnThread) {
  constexpr uint32_t kRanks = 3;
  RankThreads threads(kRanks);
  std::vector<std::thread::id> ids(kRanks);
  for (int turn = 0; turn < 500; ++turn) {
    const auto results = threads.Run([&](uint32_t rank) -> absl::Status {
      if (turn > 0 && ids[rank] != std::this_thread::get_id()) return InvalidArgument("another");
      ids[rank] = std::this_thread::get_id();
      return rank == 2 && turn == 7 ? absl::InternalError("one failed") : absl::OkStatus();
    });
    ASSERT_EQ(results.size(), kRanks);
    EXPECT_TRUE(results[0].ok() && results[1].ok());
    EXPECT_EQ(results[2].ok(), turn != 7);
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
