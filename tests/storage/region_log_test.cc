#include "storage/region_log.h"

#include <set>

#include "gmock/gmock.h"
#include "tests/storage/log_fixture.h"

namespace reprise::storage {
namespace {

using Kind = DeviceOp::Kind;

TEST(RegionLog, ReadsBackWhatItAppended) {
  LogFixture f({.slots = 8, .region_count = 8});
  for (uint32_t i = 0; i < 30; ++i) ASSERT_EQ(f.Put(i, i % 3 == 0), 0) << i;
  for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(f.Load(i), Outcome::kOk) << i;
  const RegionLog::Stats stats = f.log_->stats();
  EXPECT_EQ(stats.appended, 30u);
  EXPECT_EQ(stats.reads, 30u);
  EXPECT_EQ(stats.regions_sealed, 3u);
  EXPECT_EQ(stats.regions_open, 1u);
  EXPECT_EQ(stats.regions_sealed + stats.regions_open + stats.regions_free, 8u);
}

TEST(RegionLog, SealingTellsTheMetaStore) {
  LogFixture f({.slots = 4, .region_count = 8});
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(f.Put(i), 0);
  ASSERT_TRUE(f.Settle());
  const auto rows = f.Rows();
  ASSERT_EQ(rows.size(), 2u);
  for (const RegionRow& row : rows) {
    EXPECT_EQ(row.entries.size(), 4 * sizeof(TrailerEntry));
    EXPECT_GT(row.sequence, 0u);
  }
}

TEST(RegionLog, NothingCompletesInsideACall) {
  LogFixture f({});
  LogFixture::Append* op = f.Start(1, true);
  EXPECT_FALSE(op->finished);
  ASSERT_TRUE(f.Settle());
  EXPECT_TRUE(op->finished);
  op = f.Start(2, false);
  EXPECT_FALSE(op->finished);
  ASSERT_TRUE(f.Settle());
  EXPECT_TRUE(op->finished);
}

TEST(RegionLog, ManyAppendsAtOnceKeepSlotOrder) {
  LogFixture f({.slots = 16, .region_count = 8, .faults = {.latency_ticks_max = 20}});
  std::vector<LogFixture::Append*> ops;
  for (uint32_t i = 0; i < 60; ++i) ops.push_back(f.Start(i, false));
  ASSERT_TRUE(f.Settle());
  for (size_t i = 1; i < ops.size(); ++i) {
    ASSERT_EQ(ops[i]->result, 0);
    if (i % 16 != 0) {
      EXPECT_EQ(ops[i]->location, ops[i - 1]->location + 1) << i;
    }
  }
  for (uint32_t i = 0; i < 60; ++i) EXPECT_EQ(f.Load(i), Outcome::kOk);
}

TEST(RegionLog, DurableAppendsOfOneTurnShareASync) {
  LogFixture f({.slots = 64, .region_count = 4, .faults = {.latency_ticks_max = 1}});
  ASSERT_EQ(f.Put(0, true), 0);
  ASSERT_TRUE(f.Settle());
  const uint64_t before = f.log_->stats().syncs;
  for (uint32_t i = 1; i <= 32; ++i) f.Start(i, true);
  ASSERT_TRUE(f.Settle());
  EXPECT_EQ(f.log_->stats().syncs, before + 1);
}

TEST(RegionLog, SyncCoversEverythingAppendedBefore) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    LogFixture f(
        {.slots = 8, .region_count = 8, .seed = seed, .faults = {.latency_ticks_max = 30}});
    for (uint32_t i = 0; i < 20; ++i) f.Start(i, false);
    struct Synced : RegionLog::SyncOp {
      bool finished = false;
    } sync;
    sync.done = [](Completion* self, int32_t result) {
      RP_CHECK(result == 0);
      static_cast<Synced*>(self)->finished = true;
    };
    while (f.log_->stats().appends_waiting > 0) f.Turn();
    f.log_->Sync(&sync);
    while (!sync.finished) f.Turn();
    ASSERT_TRUE(f.CrashAndRestart().ok());
    for (uint32_t i = 0; i < 20; ++i) ASSERT_EQ(f.Load(i), Outcome::kOk) << "seed " << seed;
  }
}

class RegionLogEviction : public testing::TestWithParam<std::string> {};

TEST_P(RegionLogEviction, ReclaimsAndKeepsHotBlocks) {
  for (const uint32_t region_count : {3u, 4u, 5u, 8u, 17u}) {
    LogFixture f({.slots = 8, .region_count = region_count, .eviction = GetParam()});
    // Two blocks stay hot for ever: under each policy they must outlive their regions.
    f.hot_[TestKey(0)] = f.hot_[TestKey(1)] = true;
    for (uint32_t i = 0; i < 400; ++i) ASSERT_EQ(f.Put(i, i % 5 == 0), 0) << region_count;
    ASSERT_TRUE(f.Settle());
    EXPECT_EQ(f.Load(0), Outcome::kOk);
    EXPECT_EQ(f.Load(1), Outcome::kOk);
    EXPECT_EQ(f.Load(399), Outcome::kOk);
    EXPECT_GT(f.moved_, 0u);
    EXPECT_GT(f.log_->stats().reclaimed_regions, 400 / 8 - region_count - 1);
    EXPECT_EQ(f.index_.size() + f.reclaimed_, 400u) << "every block is known or was announced";
    for (uint32_t i = 0; i < 400; ++i) {
      const Outcome outcome = f.Load(i);
      EXPECT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kNotFound) << i;
    }
    ASSERT_TRUE(f.CrashAndRestart().ok());
    EXPECT_EQ(f.Load(0), Outcome::kOk) << "a moved copy is durable before its source goes";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, RegionLogEviction, testing::Values("fifo", "lru", "s3fifo"));

// The sync of the moved copies fails, and the power goes some turns later, before or after the next
// one: the old copy must be there as long as the new one may be lost.
TEST(RegionLog, HotBlocksOutliveAFailedSyncOfTheirCopies) {
  uint32_t cut_while_unsynced = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    LogFixture f({.slots = 4, .region_count = 4, .seed = seed, .faults = {.latency_ticks_max = 8}});
    f.hot_[TestKey(0)] = true;
    ASSERT_EQ(f.Put(0, true), 0);
    uint32_t number = 1;
    while (f.moved_ == 0) f.Start(number++, false), f.Turn();
    f.device_->FailNext(Kind::kSync, 1, EIO);
    for (uint64_t turn = 0; turn < seed % 60; ++turn) f.Turn();
    if (f.log_->stats().reclaimed_regions == 0) ++cut_while_unsynced;
    f.device_->FailNext(Kind::kSync, 0, 0);  // The disk is well again.
    const auto restarted = f.CrashAndRestart();
    ASSERT_TRUE(restarted.ok()) << "seed " << seed << ": " << restarted.status();
    ASSERT_EQ(f.Load(0), Outcome::kOk) << "seed " << seed;
  }
  EXPECT_GT(cut_while_unsynced, 50u);
}

TEST(RegionLog, EverythingHotStillMakesProgress) {
  for (const uint32_t percent : {0u, 1u, 10u, 50u}) {
    for (const uint32_t slots : {1u, 2u, 3u, 8u}) {
      LogFixture f({.slots = slots, .region_count = 3, .reinsert_percent_max = percent});
      for (uint32_t i = 0; i < 60; ++i) f.hot_[TestKey(i)] = true;
      for (uint32_t i = 0; i < 60; ++i) f.Start(i, false);
      ASSERT_TRUE(f.Settle()) << percent << " % of " << slots;
      EXPECT_EQ(f.log_->stats().appended, 60u + f.log_->stats().reinserted);
      EXPECT_EQ(f.Load(59), Outcome::kOk);
    }
  }
}

TEST(RegionLog, ReadersHoldBackTheErase) {
  LogFixture f({.slots = 4, .region_count = 3, .faults = {.latency_ticks_max = 200}});
  for (uint32_t i = 0; i < 40; ++i) {
    ASSERT_EQ(f.Put(i), 0);
    // Loads that race with reclaim see the record or know that it is gone.
    for (uint32_t j = i >= 6 ? i - 6 : 0; j <= i; ++j) {
      const Outcome outcome = f.Load(j);
      ASSERT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kNotFound);
    }
  }
}

TEST(RegionLog, FailedWriteKillsItsSlotAndSealsEarly) {
  LogFixture f({.slots = 8, .region_count = 6});
  ASSERT_EQ(f.Put(0, true), 0);
  f.device_->FailNext(Kind::kWrite, 1, EIO);
  EXPECT_EQ(f.Put(1, true), -EIO);
  ASSERT_TRUE(f.Settle());
  EXPECT_EQ(f.log_->stats().regions_sealed, 1u);
  EXPECT_EQ(f.log_->stats().append_errors, 1u);
  ASSERT_EQ(f.Put(2, true), 0);
  EXPECT_EQ(f.Load(0), Outcome::kOk);
  EXPECT_EQ(f.Load(2), Outcome::kOk);
  ASSERT_TRUE(f.CrashAndRestart().ok());
  EXPECT_EQ(f.Load(0), Outcome::kOk);
  EXPECT_EQ(f.Load(1), Outcome::kNotFound);
  EXPECT_EQ(f.Load(2), Outcome::kOk);
}

TEST(RegionLog, FailedOpeningPageFailsDurableAppendsOnly) {
  LogFixture f({.slots = 8, .region_count = 8});
  for (uint32_t i = 0; i < 300; ++i) f.Turn();  // Regions are free: an opening page is next.
  f.device_->FailNext(Kind::kWrite, 1, EIO);
  LogFixture::Append* durable = f.Start(1, true);
  ASSERT_TRUE(f.Settle());
  EXPECT_EQ(durable->result, -EIO);
  EXPECT_EQ(f.Put(2, true), 0);
  ASSERT_TRUE(f.Settle());
  ASSERT_TRUE(f.CrashAndRestart().ok());
  EXPECT_EQ(f.Load(2), Outcome::kOk);
}

TEST(RegionLog, FailedSyncIsToldToAllThatWaitedForIt) {
  LogFixture f({.slots = 8, .region_count = 6});
  ASSERT_EQ(f.Put(0, true), 0);
  ASSERT_TRUE(f.Settle());
  f.device_->FailNext(Kind::kSync, 1, EIO);
  LogFixture::Append* a = f.Start(1, true);
  LogFixture::Append* b = f.Start(2, false);
  ASSERT_TRUE(f.Settle());
  EXPECT_EQ(a->result, -EIO);
  EXPECT_EQ(b->result, 0);
  EXPECT_EQ(f.Put(3, true), 0);
}

TEST(RegionLog, ReadErrorIsTheReadersAlone) {
  LogFixture f({});
  ASSERT_EQ(f.Put(0), 0);
  f.device_->FailNext(Kind::kRead, 1, EIO);
  EXPECT_EQ(f.Load(0), Outcome::kIo);
  EXPECT_EQ(f.Load(0), Outcome::kOk);
  EXPECT_EQ(f.log_->stats().read_errors, 1u);
}

TEST(RegionLog, NoSpaceWhenNothingCanBeErasedAndWorksAgainAfterwards) {
  LogFixture f({.slots = 4, .region_count = 3});
  sim::SimDevice::Options broken{.size_bytes = f.device_->size_bytes(),
                                 .erase_error_per_mille = 1'000};
  sim::SimDevice::Options sound{.size_bytes = f.device_->size_bytes()};
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(f.Put(i), 0);
  f.device_->set_options(broken);
  int32_t result = 0;
  for (uint32_t i = 8; i < 40 && result == 0; ++i) result = f.Put(i);
  EXPECT_EQ(result, -ENOSPC);
  ASSERT_TRUE(f.Settle());
  f.device_->set_options(sound);
  EXPECT_EQ(f.Put(100), 0);
  EXPECT_EQ(f.Load(100), Outcome::kOk);
}

TEST(RegionLog, DamagedTrailerIsReclaimedByItsTails) {
  LogFixture f({.slots = 8, .region_count = 4});
  for (uint32_t i = 0; i < 8; ++i) ASSERT_EQ(f.Put(i), 0);
  ASSERT_TRUE(f.Settle());
  const uint32_t region = f.index_.begin()->second / 8;
  f.device_->FlipBit(f.geometry_.RegionOffset(region) + f.geometry_.entries_offset + 70, 3);
  for (uint32_t i = 8; i < 64; ++i) ASSERT_EQ(f.Put(i), 0);
  ASSERT_TRUE(f.Settle());
  EXPECT_EQ(f.index_.size() + f.reclaimed_, 64u);
  EXPECT_EQ(f.Load(0), Outcome::kNotFound);
}

TEST(RegionLog, RandomFaultsNeverHangNorServeWrongBytes) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    LogFixture f({.slots = 6,
                  .region_count = 3 + static_cast<uint32_t>(seed % 5),
                  .seed = seed,
                  .eviction = seed % 2 == 0 ? "fifo" : "s3fifo",
                  .faults = {.latency_ticks_max = 1 + static_cast<uint32_t>(seed % 13),
                             .read_error_per_mille = 30,
                             .write_error_per_mille = 30,
                             .sync_error_per_mille = 30,
                             .erase_error_per_mille = 100,
                             .no_space_per_mille = 20}});
    Prng prng(seed);
    uint32_t stored = 0;
    for (uint32_t i = 0; i < 200; ++i) {
      if (prng.Chance(300)) f.hot_[TestKey(i)] = true;
      f.Start(i, prng.Chance(400));
      for (uint64_t turns = prng.Below(6); turns > 0; --turns) f.Turn();
      (void)f.Load(static_cast<uint32_t>(prng.Below(i + 1)));
    }
    ASSERT_TRUE(f.Settle()) << "seed " << seed;
    for (const auto& op : f.appends_) {
      ASSERT_TRUE(op->finished) << "seed " << seed;
      stored += op->result == 0 ? 1 : 0;
    }
    EXPECT_GT(stored, 50u) << "seed " << seed;
  }
}

TEST(RegionLog, ValidateNamesWhatIsWrong) {
  LogFixture f({});
  EXPECT_TRUE(RegionLog::Validate(f.options()).ok());
  struct Case {
    void (*change)(RegionLog::Options*);
    const char* message;
  };
  const Case cases[] = {
      {[](auto* o) { o->region_count = 2; }, "2 regions of"},
      {[](auto* o) { o->region_count = 400; }, "do not fit"},
      {[](auto* o) { o->geometry = CutRegion(1 << 20, 1 << 20); }, "no room for a record"},
      {[](auto* o) { o->reinsert_percent_max = 51; }, "re-inserting 51 %"},
      {[](auto* o) { o->eviction = "magic"; }, "magic"},
  };
  for (const Case& c : cases) {
    RegionLog::Options options = f.options();
    c.change(&options);
    const absl::Status status = RegionLog::Validate(options);
    EXPECT_FALSE(status.ok()) << c.message;
    EXPECT_THAT(Message(status), testing::HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace reprise::storage
