#include "storage/window_pool.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "protocol/base/checksum.h"
#include "tests/storage/vector_memory.h"

namespace reprise::storage {
namespace {

using Absence = WindowPool::Absence;
constexpr uint32_t kFirst = 40;
constexpr uint32_t kSlotBytes = 256;

wire::WindowKey Key(uint64_t position) {
  return {.prefix = {.low = position * 3, .high = 8}, .position = position};
}

// Bytes that name their snapshot.
std::vector<std::byte> Contents(uint64_t name, uint32_t bytes) {
  std::vector<std::byte> contents(bytes);
  for (uint32_t i = 0; i < bytes; ++i) contents[i] = static_cast<std::byte>(name * 31 + i * 7);
  return contents;
}

class WindowPoolTest : public testing::Test {
 protected:
  void Start(uint32_t window_slots, WindowPool::Options options = {}) {
    options_ = options;
    memory_ = std::make_unique<VectorMemory>(kFirst, window_slots + 2, kSlotBytes);
    slots_ = std::make_unique<SlotPool>(memory_.get(), kFirst, 2, window_slots);
    pool_ = std::make_unique<WindowPool>(options, slots_.get());
  }

  Outcome Put(uint64_t position, uint32_t bytes = kSlotBytes, uint64_t session = 0,
              uint16_t name_space = 0) {
    const std::vector<std::byte> contents = Contents(position, bytes);
    const ConstBytes pieces[] = {contents};
    return pool_->Put(name_space, Key(position), session, pieces, bytes, Crc32c(contents), now_);
  }
  bool Has(uint64_t position, uint16_t name_space = 0) {
    return pool_->Probe(name_space, Key(position), now_) != 0;
  }
  Absence Why(uint64_t position, uint16_t name_space = 0) {
    return pool_->Explain(name_space, Key(position), now_);
  }
  WindowPool::View Acquire(uint64_t position) {
    WindowPool::View view;
    EXPECT_EQ(pool_->Acquire(0, Key(position), now_, &view), Outcome::kOk) << position;
    return view;
  }
  std::vector<std::byte> Read(const WindowPool::View& view) {
    std::vector<std::byte> contents;
    for (const uint32_t slot : view.slots) {
      const Bytes bytes = slots_->bytes(slot);
      contents.insert(contents.end(), bytes.begin(), bytes.end());
    }
    contents.resize(view.bytes);
    return contents;
  }
  uint32_t used() const { return slots_->used(SlotPool::Use::kWindow); }

  WindowPool::Options options_;
  std::unique_ptr<VectorMemory> memory_;
  std::unique_ptr<SlotPool> slots_;
  std::unique_ptr<WindowPool> pool_;
  Instant now_ = 1000 * kSecond;
};

TEST_F(WindowPoolTest, WhatIsPutIsReadBack) {
  for (const uint32_t bytes : {1u, kSlotBytes - 1, kSlotBytes, kSlotBytes + 1, 4 * kSlotBytes}) {
    Start(4);
    ASSERT_EQ(Put(bytes, bytes), Outcome::kOk);
    EXPECT_EQ(pool_->Probe(0, Key(bytes), now_), bytes);
    const WindowPool::View view = Acquire(bytes);
    EXPECT_EQ(view.bytes, bytes);
    EXPECT_EQ(view.slots.size(), DivideUp(bytes, kSlotBytes));
    EXPECT_EQ(Read(view), Contents(bytes, bytes));
    EXPECT_EQ(view.crc, Crc32c(Contents(bytes, bytes)));
    EXPECT_EQ(slots_->pinned(), view.slots.size());
    pool_->Release(view.handle);
    EXPECT_EQ(slots_->pinned(), 0u);
    EXPECT_EQ(pool_->stats().bytes, bytes);
  }
}

TEST_F(WindowPoolTest, PiecesAreJoinedWhereverTheyAreCut) {
  constexpr uint32_t kBytes = 3 * kSlotBytes + 5;
  const std::vector<std::byte> contents = Contents(1, kBytes);
  const ConstBytes whole = contents;
  for (const uint32_t cut : {1u, 5u, kSlotBytes - 1, kSlotBytes, kSlotBytes + 1, kBytes - 1}) {
    Start(4);
    const ConstBytes pieces[] = {whole.first(cut), {}, whole.subspan(cut)};
    ASSERT_EQ(pool_->Put(0, Key(1), 0, pieces, kBytes, Crc32c(contents), now_), Outcome::kOk);
    EXPECT_EQ(Read(Acquire(1)), contents) << cut;
  }
}

TEST_F(WindowPoolTest, KeysDifferInNamespacePrefixAndPosition) {
  Start(8);
  const wire::WindowKey key{.prefix = {1, 2}, .position = 128};
  const std::vector<std::byte> contents = Contents(0, 10);
  const ConstBytes pieces[] = {contents};
  ASSERT_EQ(pool_->Put(3, key, 0, pieces, 10, Crc32c(contents), now_), Outcome::kOk);
  EXPECT_EQ(pool_->Probe(3, key, now_), 10u);
  EXPECT_EQ(pool_->Probe(4, key, now_), 0u);
  EXPECT_EQ(pool_->Probe(3, {.prefix = {1, 3}, .position = 128}, now_), 0u);
  EXPECT_EQ(pool_->Probe(3, {.prefix = {1, 2}, .position = 130}, now_), 0u);
}

TEST_F(WindowPoolTest, CorruptIsRefusedAndLeavesNothing) {
  Start(4);
  const std::vector<std::byte> contents = Contents(1, 600);
  const ConstBytes pieces[] = {contents};
  EXPECT_EQ(pool_->Put(0, Key(1), 7, pieces, 600, Crc32c(contents) + 1, now_), Outcome::kCorrupt);
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(pool_->stats().corrupt, 1u);
  EXPECT_EQ(pool_->stats().puts, 0u);
  EXPECT_EQ(Put(1, 600, 7), Outcome::kOk);
}

TEST_F(WindowPoolTest, EmptyOrMiscountedIsInvalid) {
  Start(4);
  const std::vector<std::byte> contents = Contents(1, 600);
  const ConstBytes pieces[] = {contents};
  EXPECT_EQ(pool_->Put(0, Key(1), 0, {}, 0, 0, now_), Outcome::kInvalid);
  EXPECT_EQ(pool_->Put(0, Key(1), 0, pieces, 599, 0, now_), Outcome::kInvalid);
  EXPECT_EQ(pool_->Put(0, Key(1), 0, pieces, 601, 0, now_), Outcome::kInvalid);
  EXPECT_EQ(used(), 0u);
}

TEST_F(WindowPoolTest, BeyondTheBudgetIsRejectedAndNothingLeavesForIt) {
  Start(4);
  ASSERT_EQ(Put(1), Outcome::kOk);
  EXPECT_EQ(Put(2, 4 * kSlotBytes + 1), Outcome::kRejected);
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(pool_->stats().rejected, 1u);
  EXPECT_EQ(Put(2, 4 * kSlotBytes), Outcome::kOk);
  EXPECT_FALSE(Has(1));
}

TEST_F(WindowPoolTest, NoBudgetRejectsEverything) {
  for (const bool no_slots : {true, false}) {
    WindowPool::Options options;
    if (!no_slots) options.snapshots_max = 0;
    Start(no_slots ? 0 : 4, options);
    EXPECT_EQ(Put(1, 1), Outcome::kRejected);
    WindowPool::View view;
    EXPECT_EQ(pool_->Acquire(0, Key(1), now_, &view), Outcome::kNotFound);
    EXPECT_EQ(Why(1), Absence::kNeverStored);
    EXPECT_EQ(pool_->Expire(now_), kNever);
    EXPECT_EQ(pool_->stats().snapshots, 0u);
  }
}

TEST_F(WindowPoolTest, TtlCountsFromTheLastUse) {
  WindowPool::Options options;
  options.ttl_ns = 10 * kSecond;
  Start(4, options);
  ASSERT_EQ(Put(1), Outcome::kOk);
  const Instant start = now_;
  now_ = start + 9 * kSecond;
  EXPECT_TRUE(Has(1));  // Probing does not renew.
  pool_->Release(Acquire(1).handle);
  now_ = start + 18 * kSecond;
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(Put(1), Outcome::kExists);  // Renews.
  now_ = start + 28 * kSecond - 1;
  EXPECT_TRUE(Has(1));
  EXPECT_EQ(Why(1), Absence::kPresent);
  now_ = start + 28 * kSecond;  // No timer ran: it is not found all the same.
  EXPECT_FALSE(Has(1));
  EXPECT_EQ(Why(1), Absence::kExpired);
  EXPECT_EQ(used(), 1u);
  WindowPool::View view;
  EXPECT_EQ(pool_->Acquire(0, Key(1), now_, &view), Outcome::kNotFound);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(pool_->stats().expired, 1u);
}

TEST_F(WindowPoolTest, ExpiresByTimerWithoutAnyLookup) {
  WindowPool::Options options;
  options.ttl_ns = 10 * kSecond;
  Start(4, options);
  const Instant start = now_;
  EXPECT_EQ(pool_->Expire(now_), kNever);
  ASSERT_EQ(Put(1), Outcome::kOk);
  now_ += 4 * kSecond;
  ASSERT_EQ(Put(2, 2 * kSlotBytes), Outcome::kOk);
  EXPECT_EQ(pool_->Expire(now_), start + 10 * kSecond);
  EXPECT_EQ(pool_->Expire(start + 10 * kSecond - 1), start + 10 * kSecond);
  EXPECT_EQ(used(), 3u);
  EXPECT_EQ(pool_->Expire(start + 10 * kSecond), start + 14 * kSecond);
  EXPECT_EQ(used(), 2u);
  EXPECT_EQ(pool_->Expire(start + 20 * kSecond), kNever);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(pool_->stats().expired, 2u);
  EXPECT_EQ(pool_->stats().bytes, 0u);
}

// What the next process gets: least recently used first, each with the rest of its time.
TEST_F(WindowPoolTest, IsHandedOnWithTheRestOfItsTime) {
  Start(8, {.ttl_ns = 10 * kSecond});
  ASSERT_EQ(Put(1, 300, 5), Outcome::kOk);
  now_ += 4 * kSecond;
  ASSERT_EQ(Put(2, 200, 6, 3), Outcome::kOk);
  now_ += 2 * kSecond;
  const Instant written_at = now_;
  std::vector<std::pair<WindowPool::Stored, std::vector<std::byte>>> copies;
  pool_->ForEach(now_, [&](const WindowPool::Stored& stored) {
    copies.emplace_back(stored, Read({.bytes = stored.bytes, .slots = stored.slots}));
  });
  ASSERT_EQ(copies.size(), 2u);
  EXPECT_EQ(copies[0].first.key, Key(1));
  EXPECT_EQ(copies[0].first.age_ns, 6 * kSecond);
  EXPECT_EQ(copies[0].first.session_id, 5u);
  EXPECT_EQ(copies[1].first.name_space, 3);
  Start(8, {.ttl_ns = 10 * kSecond});
  now_ = written_at + kSecond;  // The next one starts a second later.
  for (const auto& [stored, contents] : copies) {
    const ConstBytes piece(contents);
    ASSERT_EQ(pool_->Put(stored.name_space, stored.key, stored.session_id, {&piece, 1},
                         stored.bytes, stored.crc, now_, stored.age_ns + kSecond),
              Outcome::kOk);
  }
  EXPECT_TRUE(Has(1));
  now_ += 3 * kSecond;
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2, 3));
  pool_->ForEach(now_, [](const WindowPool::Stored& stored) { EXPECT_EQ(stored.key, Key(2)); });
  now_ += 4 * kSecond;
  EXPECT_FALSE(Has(2, 3));
}

TEST_F(WindowPoolTest, ATtlWithoutEndNeverExpires) {
  WindowPool::Options options;
  options.ttl_ns = INT64_MAX;
  Start(4, options);
  ASSERT_EQ(Put(1), Outcome::kOk);
  EXPECT_EQ(pool_->Expire(now_), kNever);
  EXPECT_EQ(pool_->Expire(INT64_MAX - 1), kNever);
  now_ = INT64_MAX - 1;
  EXPECT_TRUE(Has(1));
}

TEST_F(WindowPoolTest, OldestUseIsEvictedFirstEvenWhenTheClockStandsStill) {
  Start(3);
  for (const uint64_t position : {1, 2, 3}) ASSERT_EQ(Put(position), Outcome::kOk);
  pool_->Release(Acquire(1).handle);
  EXPECT_TRUE(Has(2));  // A probe is not a use.
  ASSERT_EQ(Put(4), Outcome::kOk);
  EXPECT_FALSE(Has(2));
  EXPECT_EQ(Put(3), Outcome::kExists);
  ASSERT_EQ(Put(5), Outcome::kOk);
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(3) && Has(4) && Has(5));
  EXPECT_EQ(Why(1), Absence::kEvicted);
  EXPECT_EQ(pool_->stats().evicted, 2u);
  EXPECT_EQ(used(), 3u);
}

TEST_F(WindowPoolTest, EvictsAsManyAsTheSlotsNeeded) {
  Start(4);
  for (const uint64_t position : {1, 2, 3, 4}) ASSERT_EQ(Put(position), Outcome::kOk);
  ASSERT_EQ(Put(5, 2 * kSlotBytes + 1), Outcome::kOk);
  EXPECT_FALSE(Has(1) || Has(2) || Has(3));
  EXPECT_TRUE(Has(4) && Has(5));
}

TEST_F(WindowPoolTest, TheBookkeepingIsBounded) {
  WindowPool::Options options;
  options.snapshots_max = 2;
  Start(10, options);
  for (const uint64_t position : {1, 2, 3}) ASSERT_EQ(Put(position), Outcome::kOk);
  EXPECT_FALSE(Has(1));
  EXPECT_TRUE(Has(2) && Has(3));
  const WindowPool::View second = Acquire(2);
  const WindowPool::View third = Acquire(3);
  EXPECT_EQ(Put(4), Outcome::kBusy);  // Slots are free, places are not.
  pool_->Release(second.handle);
  EXPECT_EQ(Put(4), Outcome::kOk);
  EXPECT_TRUE(Has(3));
  pool_->Release(third.handle);
}

TEST_F(WindowPoolTest, ASessionKeepsItsNewestPositions) {
  Start(20);
  for (const uint64_t position : {10, 30, 20, 40}) {
    ASSERT_EQ(Put(position, kSlotBytes, 7), Outcome::kOk);
  }
  EXPECT_FALSE(Has(10));
  EXPECT_EQ(Why(10), Absence::kSuperseded);
  EXPECT_EQ(Put(30, kSlotBytes, 7), Outcome::kExists);  // The session is here again.
  ASSERT_EQ(Put(50, kSlotBytes, 7), Outcome::kOk);
  EXPECT_FALSE(Has(20));  // Put before 40 and, now, before 30.
  EXPECT_TRUE(Has(30) && Has(40) && Has(50));
  EXPECT_EQ(pool_->stats().superseded, 2u);
  EXPECT_EQ(used(), 3u);
}

TEST_F(WindowPoolTest, SessionsDoNotSupersedeEachOther) {
  Start(40);
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_EQ(Put(i, kSlotBytes, 1), Outcome::kOk);
    ASSERT_EQ(Put(100 + i, kSlotBytes, 2), Outcome::kOk);
    ASSERT_EQ(Put(200 + i, kSlotBytes, 0), Outcome::kOk);     // No session: no limit.
    ASSERT_EQ(Put(300 + i, kSlotBytes, 1, 9), Outcome::kOk);  // Somebody else's session 1.
  }
  for (uint64_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(Has(i), i > 2) << i;
    EXPECT_EQ(Has(100 + i), i > 2) << i;
    EXPECT_TRUE(Has(200 + i)) << i;
    EXPECT_EQ(Has(300 + i, 9), i > 2) << i;
  }
}

TEST_F(WindowPoolTest, ASnapshotPutByAnotherSessionIsThatOnesNewest) {
  Start(20);
  for (const uint64_t position : {1, 2, 3}) {
    ASSERT_EQ(Put(position, kSlotBytes, 7), Outcome::kOk);
    ASSERT_EQ(Put(10 + position, kSlotBytes, 8), Outcome::kOk);
  }
  EXPECT_EQ(Put(1, kSlotBytes, 8), Outcome::kExists);
  EXPECT_FALSE(Has(11));
  ASSERT_EQ(Put(4, kSlotBytes, 7), Outcome::kOk);  // Session 7 has room now.
  EXPECT_TRUE(Has(1) && Has(2) && Has(3) && Has(4) && Has(12) && Has(13));
  EXPECT_EQ(Put(1, kSlotBytes, 0), Outcome::kExists);  // Stays with session 8.
  ASSERT_EQ(Put(14, kSlotBytes, 8), Outcome::kOk);
  ASSERT_EQ(Put(15, kSlotBytes, 8), Outcome::kOk);
  ASSERT_EQ(Put(16, kSlotBytes, 8), Outcome::kOk);
  EXPECT_FALSE(Has(1));
}

TEST_F(WindowPoolTest, PositionsPerSessionOfZeroIsNoLimit) {
  WindowPool::Options options;
  options.positions_per_session = 0;
  Start(20, options);
  for (uint64_t i = 1; i <= 20; ++i) ASSERT_EQ(Put(i, kSlotBytes, 7), Outcome::kOk);
  EXPECT_EQ(pool_->stats().superseded, 0u);
}

// Whatever makes a snapshot leave while it is leased, its bytes stay until the last release.
TEST_F(WindowPoolTest, ALeaseOutlivesEveryWayToLeave) {
  struct Case {
    const char* name;
    std::function<void()> leave;
    Absence why;
  };
  const Case cases[] = {
      {"expired", [&] { pool_->Expire(now_ += options_.ttl_ns); }, Absence::kExpired},
      {"superseded",
       [&] {
         for (const uint64_t position : {2, 3, 4}) Put(position, 1, 7);
       },
       Absence::kSuperseded},
      {"dropped", [&] { pool_->DropNamespace(0); }, Absence::kNeverStored},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Start(6);
    ASSERT_EQ(Put(1, 2 * kSlotBytes, 7), Outcome::kOk);
    const WindowPool::View first = Acquire(1);
    const WindowPool::View second = Acquire(1);
    c.leave();
    EXPECT_FALSE(Has(1));
    EXPECT_EQ(Why(1), c.why);
    // The same snapshot comes anew, in other slots.
    ASSERT_EQ(Put(1, 2 * kSlotBytes, 0), Outcome::kOk);
    EXPECT_EQ(Read(first), Contents(1, 2 * kSlotBytes));
    pool_->Release(first.handle);
    EXPECT_EQ(Read(second), Contents(1, 2 * kSlotBytes));
    const uint32_t before = used();
    pool_->Release(second.handle);
    EXPECT_EQ(used(), before - 2);
    EXPECT_TRUE(Has(1));
    EXPECT_EQ(pool_->stats().leased, 0u);
  }
}

TEST_F(WindowPoolTest, EvictionPassesOverLeases) {
  Start(3);
  for (const uint64_t position : {1, 2, 3}) ASSERT_EQ(Put(position), Outcome::kOk);
  const WindowPool::View first = Acquire(1);
  const WindowPool::View second = Acquire(2);
  ASSERT_EQ(Put(4), Outcome::kOk);
  EXPECT_TRUE(Has(1) && Has(2) && Has(4));
  EXPECT_EQ(Put(5, 2 * kSlotBytes), Outcome::kBusy);
  EXPECT_TRUE(Has(4));  // Did not leave in vain.
  EXPECT_EQ(pool_->stats().busy, 1u);
  pool_->Release(first.handle);
  EXPECT_EQ(Put(5, 2 * kSlotBytes), Outcome::kOk);
  EXPECT_EQ(Read(second), Contents(2, kSlotBytes));
  pool_->Release(second.handle);
}

TEST_F(WindowPoolTest, SetAsideSnapshotsCountAgainstTheBudget) {
  Start(2);
  ASSERT_EQ(Put(1, 2 * kSlotBytes), Outcome::kOk);
  const WindowPool::View view = Acquire(1);
  pool_->DropNamespace(0);
  EXPECT_EQ(Put(2), Outcome::kBusy);
  EXPECT_EQ(pool_->stats().snapshots, 1u);
  EXPECT_EQ(pool_->stats().leased, 1u);
  pool_->Release(view.handle);
  EXPECT_EQ(Put(2), Outcome::kOk);
}

TEST_F(WindowPoolTest, DropNamespaceDropsOnlyThat) {
  Start(10);
  for (const uint16_t name_space : {0, 1, 2}) {
    for (const uint64_t position : {1, 2}) {
      ASSERT_EQ(Put(position, kSlotBytes, 7, name_space), Outcome::kOk);
    }
  }
  pool_->DropNamespace(1);
  EXPECT_TRUE(Has(1, 0) && Has(2, 0) && Has(1, 2) && Has(2, 2));
  EXPECT_FALSE(Has(1, 1) || Has(2, 1));
  EXPECT_EQ(Why(1, 1), Absence::kNeverStored);
  EXPECT_EQ(used(), 4u);
  pool_->DropNamespace(5);
  EXPECT_EQ(used(), 4u);
}

TEST_F(WindowPoolTest, AStaleHandleIsABug) {
  Start(1);
  ASSERT_EQ(Put(1), Outcome::kOk);
  const WindowPool::View view = Acquire(1);
  EXPECT_NE(view.handle, 0u);
  pool_->Release(view.handle);
  EXPECT_DEATH(pool_->Release(view.handle), "check failed");  // Twice.
  ASSERT_EQ(Put(2), Outcome::kOk);                            // In the place of 1.
  const WindowPool::View newer = Acquire(2);
  EXPECT_NE(newer.handle, view.handle);
  EXPECT_DEATH(pool_->Release(view.handle), "check failed");
  EXPECT_DEATH(pool_->Release(UINT32_MAX), "check failed");
  EXPECT_DEATH(pool_->Release(0), "check failed");
  pool_->Release(newer.handle);
}

TEST_F(WindowPoolTest, HandlesStayValidAfterManyGenerations) {
  Start(1);
  for (uint64_t i = 1; i <= 10'000; ++i) {
    ASSERT_EQ(Put(i), Outcome::kOk);
    const WindowPool::View view = Acquire(i);
    ASSERT_NE(view.handle, 0u);
    pool_->Release(view.handle);
  }
  EXPECT_EQ(pool_->stats().evicted, 9'999u);
}

TEST_F(WindowPoolTest, StatsAreExact) {
  WindowPool::Options options;
  options.ttl_ns = 10 * kSecond;
  Start(4, options);
  Put(1, 100);
  Put(2, 300);
  Put(2, 300);
  pool_->Release(Acquire(1).handle);
  WindowPool::View view;
  pool_->Acquire(0, Key(3), now_, &view);
  now_ += 10 * kSecond;
  pool_->Expire(now_);
  Put(4, 50);
  const WindowPool::Stats stats = pool_->stats();
  EXPECT_EQ(stats.snapshots, 1u);
  EXPECT_EQ(stats.bytes, 50u);
  EXPECT_EQ(stats.bytes_peak, 400u);
  EXPECT_EQ(stats.puts, 3u);
  EXPECT_EQ(stats.found, 1u);
  EXPECT_EQ(stats.absent, 1u);
  EXPECT_EQ(stats.expired, 2u);
  EXPECT_EQ(stats.evicted, 0u);
}

TEST_F(WindowPoolTest, WhatLeftIsRememberedInABoundedMemory) {
  Start(1);
  constexpr uint64_t kSnapshots = 5'000;
  for (uint64_t i = 1; i <= kSnapshots; ++i) ASSERT_EQ(Put(i), Outcome::kOk);
  uint64_t remembered = 0;
  for (uint64_t i = 1; i < kSnapshots; ++i) {
    const Absence why = Why(i);
    EXPECT_TRUE(why == Absence::kEvicted || why == Absence::kNeverStored);
    remembered += why == Absence::kEvicted ? 1 : 0;
  }
  EXPECT_GT(remembered, 900u);
  EXPECT_LE(remembered, 1024u);
  EXPECT_EQ(Why(kSnapshots - 1), Absence::kEvicted);
}

}  // namespace
}  // namespace reprise::storage
