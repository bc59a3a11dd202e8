#include <set>

#include "gmock/gmock.h"
#include "tests/storage/log_fixture.h"

namespace reprise::storage {
namespace {

TEST(Recovery, EmptyDeviceHoldsNothing) {
  LogFixture f({});
  const auto stats = f.Restart();
  ASSERT_TRUE(stats.ok());
  EXPECT_EQ(stats->regions_free, 4u);
  EXPECT_EQ(stats->blocks, 0u);
  EXPECT_EQ(stats->bytes_read, 4 * kPageBytes);
  EXPECT_EQ(f.Put(1), 0);
}

// Every durable append that was acknowledged is found and verifies; relaxed ones may be missing;
// whatever is found verifies.
TEST(Recovery, AcknowledgedDurableRecordsSurvivePowerCuts) {
  sim::SimDevice::Counts total;
  uint32_t relaxed_lost = 0;
  uint32_t torn = 0;
  uint32_t scanned = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    LogFixture f({.slots = 8,
                  .region_count = 16,
                  .seed = seed,
                  .faults = {.latency_ticks_max = 1 + static_cast<uint32_t>(seed % 10)}});
    Prng prng(seed ^ 0x5eed);
    const uint32_t count = 1 + static_cast<uint32_t>(prng.Below(70));
    std::map<uint32_t, bool> known;  // Number -> must be found.
    for (uint32_t i = 0; i < count; ++i) {
      f.Start(i, prng.Chance(500));
      for (uint64_t turns = prng.Below(4); turns > 0; --turns) f.Turn();
    }
    for (uint64_t turns = prng.Below(40); turns > 0; --turns) f.Turn();
    for (const auto& op : f.appends_) {
      if (op->finished && op->result == 0) known[op->number] = op->durable;
    }
    const auto stats = f.CrashAndRestart();
    ASSERT_TRUE(stats.ok()) << "seed " << seed << ": " << stats.status();
    torn += stats->records_torn;
    scanned += stats->regions_scanned;
    for (const auto& [number, durable] : known) {
      const Outcome outcome = f.Load(number);
      if (durable) {
        ASSERT_EQ(outcome, Outcome::kOk) << "seed " << seed << " record " << number;
      }
      if (outcome == Outcome::kNotFound) ++relaxed_lost;
    }
    for (uint32_t i = 0; i < count; ++i) {
      const Outcome outcome = f.Load(i);
      ASSERT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kNotFound)
          << "seed " << seed << ": a torn record was found: " << OutcomeName(outcome);
    }
    // A second power cut, without anything in between, loses nothing more.
    const size_t before = f.index_.size();
    ASSERT_TRUE(f.CrashAndRestart().ok());
    EXPECT_EQ(f.index_.size(), before) << "seed " << seed;
    total.kept_old += f.device_->counts().kept_old;
    total.kept_new += f.device_->counts().kept_new;
    total.torn += f.device_->counts().torn;
  }
  EXPECT_GT(total.kept_old, 100u);
  EXPECT_GT(total.kept_new, 100u);
  EXPECT_GT(total.torn, 100u);
  EXPECT_GT(relaxed_lost, 10u);
  EXPECT_GT(torn, 10u);
  EXPECT_GT(scanned, 10u);
}

// The same through reclaim: blocks leave and move while the power fails at any time.
TEST(Recovery, PowerCutsDuringReclaim) {
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    LogFixture f({.slots = 4,
                  .region_count = 3 + static_cast<uint32_t>(seed % 4),
                  .seed = seed,
                  .faults = {.latency_ticks_max = 1 + static_cast<uint32_t>(seed % 7)}});
    Prng prng(seed ^ 0xc4a5);
    uint32_t number = 0;
    for (uint32_t life = 0; life < 4; ++life) {
      for (uint32_t i = 0; i < 20; ++i, ++number) {
        if (prng.Chance(400)) f.hot_[TestKey(number)] = true;
        f.Start(number, true);
        for (uint64_t turns = prng.Below(12); turns > 0; --turns) f.Turn();
      }
      // Acknowledged and not announced as reclaimed when the power fails.
      const auto durable = f.index_;
      ASSERT_TRUE(f.CrashAndRestart().ok());
      for (const auto& [key, location] : durable) {
        ASSERT_TRUE(f.index_.contains(key)) << "seed " << seed << " life " << life;
      }
      for (uint32_t i = 0; i < number; ++i) {
        const Outcome outcome = f.Load(i);
        ASSERT_TRUE(outcome == Outcome::kOk || outcome == Outcome::kNotFound) << "seed " << seed;
      }
    }
  }
}

// One flipped bit in every sector of a full log: each record is right, or missed, or fails its
// check.
TEST(Recovery, AnyFlippedBitIsNoticed) {
  for (const bool with_rows : {true, false}) {
    LogFixture f({.slots = 4, .region_count = 6});
    for (uint32_t i = 0; i < 6; ++i) ASSERT_EQ(f.Put(i, true), 0);  // One sealed, one open.
    ASSERT_TRUE(f.Settle());
    ASSERT_EQ(f.log_->stats().regions_sealed, 1u);
    f.device_->MakeDurable();
    const std::vector<std::byte> image(f.device_->view().begin(), f.device_->view().end());
    const auto saved_rows = f.Rows();
    Prng prng(7);
    uint32_t missing = 0;
    uint32_t failed = 0;
    for (uint64_t sector = 0; sector < image.size() / 512; ++sector) {
      f.meta_ = std::make_unique<MemoryMetaStore>();
      if (with_rows) {
        for (const RegionRow& row : saved_rows) f.meta_->PutRegion(row);
      }
      std::memcpy(f.device_->mutable_view().data(), image.data(), image.size());
      f.device_->MakeDurable();
      f.device_->FlipBit(sector * 512 + prng.Below(512), static_cast<uint32_t>(prng.Below(8)));
      const auto stats = f.Restart();
      ASSERT_TRUE(stats.ok()) << "sector " << sector << ": " << stats.status();
      uint32_t bad = 0;
      for (uint32_t i = 0; i < 6; ++i) {
        const Outcome outcome = f.Load(i);  // Checks the bytes themselves, too.
        missing += outcome == Outcome::kNotFound ? 1 : 0;
        failed += outcome == Outcome::kCorrupt ? 1 : 0;
        bad += outcome != Outcome::kOk ? 1 : 0;
      }
      ASSERT_LE(bad, 1u) << "sector " << sector << ": one bit costs at most one record";
    }
    EXPECT_GT(missing, 0u);
    EXPECT_GT(failed, 0u);
  }
}

// First byte of a state page that matters: every byte of the struct, all bits.
TEST(Recovery, FlippedStatePageBitsLoseNothing) {
  LogFixture f({.slots = 4, .region_count = 6});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(f.Put(i, true), 0);
  ASSERT_TRUE(f.Settle());
  f.device_->MakeDurable();
  const uint32_t region = f.index_.begin()->second / 4;
  const std::vector<std::byte> image(f.device_->view().begin(), f.device_->view().end());
  const uint64_t page = f.geometry_.RegionOffset(region) + f.geometry_.state_offset;
  for (uint64_t bit = 0; bit < 8 * sizeof(RegionStatePage); ++bit) {
    std::memcpy(f.device_->mutable_view().data(), image.data(), image.size());
    f.device_->MakeDurable();
    f.device_->FlipBit(page + bit / 8, static_cast<uint32_t>(bit % 8));
    const auto stats = f.Restart();
    ASSERT_TRUE(stats.ok()) << bit << stats.status();
    EXPECT_EQ(stats->regions_scanned, 1u);
    ASSERT_EQ(f.index_.size(), 4u) << bit;
    // It was sealed anew: the next start need not scan.
    EXPECT_EQ(f.Restart()->regions_scanned, 0u);
    EXPECT_EQ(f.index_.size(), 4u);
  }
}

TEST(Recovery, RowsMissingOlderNewerOrWrong) {
  struct Case {
    const char* name;
    void (*change)(MemoryMetaStore*, RegionRow);
    bool from_index;
  };
  const Case cases[] = {
      {"as written", [](MemoryMetaStore* m, RegionRow row) { m->PutRegion(row); }, true},
      {"missing", [](MemoryMetaStore*, RegionRow) {}, false},
      {"older",
       [](MemoryMetaStore* m, RegionRow row) {
         --row.sequence;
         m->PutRegion(row);
       },
       false},
      {"newer",
       [](MemoryMetaStore* m, RegionRow row) {
         row.sequence += 9;
         m->PutRegion(row);
       },
       false},
      {"nonsense",
       [](MemoryMetaStore* m, RegionRow row) {
         row.sequence = ~0ull;
         m->PutRegion(row);
       },
       false},
      {"short",
       [](MemoryMetaStore* m, RegionRow row) {
         row.entries.resize(64);
         m->PutRegion(row);
       },
       false},
      {"uneven",
       [](MemoryMetaStore* m, RegionRow row) {
         row.entries += "x";
         m->PutRegion(row);
       },
       false},
      {"damaged",
       [](MemoryMetaStore* m, RegionRow row) {
         row.entries[5] ^= 1;
         m->PutRegion(row);
       },
       false},
      {"out of range",
       [](MemoryMetaStore* m, RegionRow row) {
         row.region = 77;
         m->PutRegion(row);
       },
       false},
      {"other shard",
       [](MemoryMetaStore* m, RegionRow row) {
         row.shard = 1;
         m->PutRegion(row);
       },
       false},
  };
  for (const Case& c : cases) {
    LogFixture f({.slots = 4, .region_count = 6});
    for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(f.Put(i, true), 0);
    ASSERT_TRUE(f.Settle());
    const RegionRow row = f.Rows().at(0);
    f.meta_ = std::make_unique<MemoryMetaStore>();
    c.change(f.meta_.get(), row);
    const auto stats = f.Restart();
    ASSERT_TRUE(stats.ok()) << c.name;
    EXPECT_EQ(stats->regions_from_index, c.from_index ? 1u : 0u) << c.name;
    EXPECT_EQ(stats->regions_from_trailer, c.from_index ? 0u : 1u) << c.name;
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(f.Load(i), Outcome::kOk) << c.name;
    ASSERT_EQ(f.Restart()->regions_from_index, 1u) << c.name << ": the row was not mended";
    // Sequences go on above everything seen.
    for (uint32_t i = 4; i < 8; ++i) ASSERT_EQ(f.Put(i), 0);
    ASSERT_TRUE(f.Settle());
    std::set<uint64_t> sequences;
    for (const RegionRow& r : f.Rows()) {
      if (r.region < 6) sequences.insert(r.sequence);
    }
    EXPECT_EQ(sequences.size(), 2u) << c.name;
  }
}

TEST(Recovery, ForeignRegionIsRefusedWithBothUuids) {
  LogFixture f({});
  ASSERT_EQ(f.Put(1, true), 0);
  ASSERT_TRUE(f.Settle());
  f.uuid_.fill(std::byte{0x22});
  const auto stats = f.Restart();
  ASSERT_FALSE(stats.ok());
  EXPECT_THAT(Message(stats.status()), testing::HasSubstr("11111111-1111-1111-1111-111111111111"));
  EXPECT_THAT(Message(stats.status()), testing::HasSubstr("22222222-2222-2222-2222-222222222222"));
}

TEST(Recovery, RegionOfAnotherPlaceIsRefused) {
  LogFixture f({.slots = 4, .region_count = 6});
  ASSERT_EQ(f.Put(1, true), 0);
  ASSERT_TRUE(f.Settle());
  const uint64_t bytes = f.geometry_.region_bytes;
  const uint32_t region = f.index_.begin()->second / 4;
  const Bytes image = f.device_->mutable_view();
  std::memcpy(image.data() + ((region + 1) % 6) * bytes, image.data() + region * bytes, bytes);
  const auto stats = f.Restart();
  ASSERT_FALSE(stats.ok());
  EXPECT_THAT(Message(stats.status()), testing::HasSubstr("says that it is region"));
}

TEST(Recovery, DeviceErrorOnAStatePageIsNamed) {
  LogFixture f({});
  f.device_->FailRange(f.geometry_.RegionOffset(2) + f.geometry_.state_offset, 1);
  const auto stats = f.Restart();
  ASSERT_FALSE(stats.ok());
  EXPECT_THAT(Message(stats.status()), testing::HasSubstr("region 2 of shard 3"));
}

TEST(Recovery, DeviceErrorOnATrailerOrRecordCostsOnlyThat) {
  LogFixture f({.slots = 4, .region_count = 6});
  for (uint32_t i = 0; i < 4; ++i) ASSERT_EQ(f.Put(i, true), 0);
  ASSERT_TRUE(f.Settle());
  f.meta_ = std::make_unique<MemoryMetaStore>();
  const uint32_t region = f.index_.begin()->second / 4;
  f.device_->FailNext(DeviceOp::Kind::kRead, 0, 0);
  // The trailer is damaged and one record cannot be read.
  f.device_->FlipBit(f.geometry_.RegionOffset(region) + f.geometry_.entries_offset, 0);
  f.device_->FailRange(f.geometry_.SlotOffset(region, 2), 1);
  const auto stats = f.Restart();
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->regions_scanned, 1u);
  EXPECT_EQ(stats->blocks, 3u);
}

TEST(Recovery, HigherSequenceComesLast) {
  LogFixture f({.slots = 2, .region_count = 8});
  for (const uint32_t number : {1u, 2u, 3u, 1u, 4u, 5u}) ASSERT_EQ(f.Put(number, true), 0);
  const RegionLog::Location newest = f.index_.at(TestKey(1));
  ASSERT_TRUE(f.Settle());
  ASSERT_TRUE(f.Restart().ok());
  EXPECT_EQ(std::count(f.found_.begin(), f.found_.end(), TestKey(1)), 2);
  EXPECT_EQ(f.index_.at(TestKey(1)), newest);
}

TEST(Recovery, ErasedRecordsStayGone) {
  // In the open region, in a sealed one, and across power cuts.
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    LogFixture f({.slots = 4, .region_count = 6, .seed = seed});
    for (uint32_t i = 0; i < 6; ++i) ASSERT_EQ(f.Put(i, true), 0);
    if (seed % 2 == 0) {
      ASSERT_TRUE(f.Settle());
    }
    ASSERT_EQ(f.Remove(1), 0);
    ASSERT_EQ(f.Remove(5), 0);
    ASSERT_EQ(f.Remove(2), 0);
    if (seed % 3 == 0) {
      for (uint32_t i = 6; i < 9; ++i) ASSERT_EQ(f.Put(i, true), 0);  // Seals the second.
    }
    ASSERT_TRUE(f.CrashAndRestart().ok());
    for (uint32_t i = 0; i < 6; ++i) {
      const bool gone = i == 1 || i == 2 || i == 5;
      EXPECT_EQ(f.Load(i), gone ? Outcome::kNotFound : Outcome::kOk) << "seed " << seed << " " << i;
    }
    ASSERT_TRUE(f.Restart().ok());
    EXPECT_EQ(f.Restart()->regions_scanned, 0u);
    EXPECT_EQ(f.Load(1), Outcome::kNotFound);
  }
}

TEST(Recovery, AFailedRecordOfAMarkedRegionStaysDead) {
  LogFixture f({.slots = 4, .region_count = 6});
  ASSERT_EQ(f.Put(0), 0);
  ASSERT_EQ(f.Put(1), 0);
  f.device_->FailNext(DeviceOp::Kind::kWrite, 1, EIO);
  ASSERT_EQ(f.Put(2), -EIO);
  ASSERT_TRUE(f.Settle());
  ASSERT_EQ(f.Remove(0), 0);  // Recovery reads tails only from here on.
  const RegionLog::Location failed = f.index_.at(TestKey(1)) + 1;
  const PageBuffer record = MakeTestRecord(2);
  std::byte* slot = f.device_->mutable_view().data() +
                    f.geometry_.SlotOffset(failed / f.geometry_.slots, failed % f.geometry_.slots);
  std::memcpy(slot, record.data(), record.size());
  slot[100] ^= std::byte{1};  // What a torn write may leave: a whole tail, and half a payload.
  f.device_->MakeDurable();
  ASSERT_TRUE(f.Restart().ok());
  EXPECT_EQ(f.found_, std::vector<BlockKey>{TestKey(1)});
}

TEST(Recovery, HostileImagesNeverTripAnything) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    LogFixture f({.slots = 4, .region_count = 4, .seed = seed});
    Prng prng(seed);
    for (uint32_t i = 0; i < 10; ++i) ASSERT_EQ(f.Put(i), 0);
    ASSERT_TRUE(f.Settle());
    const Bytes image = f.device_->mutable_view();
    for (uint32_t i = 0; i < 40; ++i) {
      const uint64_t at = prng.Below(image.size() - 64);
      for (uint32_t j = 0; j < 64; ++j) image[at + j] = std::byte(prng.Next() & 0xff);
    }
    // Valid checksums over hostile fields, too.
    RegionStatePage page{.shard = 3,
                         .region = 1,
                         .sequence = prng.Next(),
                         .state = static_cast<RegionState>(prng.Below(4)),
                         .entry_count = static_cast<uint32_t>(prng.Next()),
                         .entries_crc = static_cast<uint32_t>(prng.Next()),
                         .flags = static_cast<uint32_t>(prng.Below(3))};
    std::memcpy(page.uuid, f.uuid_.data(), 16);
    page.crc = CrcOf(page);
    StoreLe(image.data() + f.geometry_.RegionOffset(1) + f.geometry_.state_offset, page);
    f.device_->MakeDurable();
    ASSERT_TRUE(f.Restart().ok()) << "seed " << seed;
    for (uint32_t i = 0; i < 10; ++i) (void)f.Load(i);
    EXPECT_EQ(f.Put(50), 0);
  }
}

}  // namespace
}  // namespace reprise::storage
