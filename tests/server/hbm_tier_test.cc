// The HBM tier's policy, without an engine: who is pinned, who leaves, and when copies count.
#include "server/serving/hbm_tier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace reprise::server {
namespace {

using testing::ElementsAre;

constexpr uint64_t kSlotBytes = 64;

// Slots in ordinary memory; copies are done when the test says so.
class TestSlots final : public engine::KvSlots {
 public:
  explicit TestSlots(uint32_t slots) : memory_(slots * kSlotBytes), slots_(slots) {}

  uint64_t slot_bytes() const override { return kSlotBytes; }
  uint32_t slots() const override { return slots_; }
  std::byte* data(uint32_t slot) const override {
    return const_cast<std::byte*>(memory_.data()) + slot * kSlotBytes;
  }
  uint32_t SlotOf(const std::byte* data) const override {
    return static_cast<uint32_t>(static_cast<size_t>(data - memory_.data()) / kSlotBytes);
  }
  absl::StatusOr<uint64_t> Load(std::span<const engine::SlotCopy> copies) override {
    if (fails) return absl::InternalError("the device is gone");
    for (const auto& copy : copies) std::memcpy(data(copy.slot), copy.host, kSlotBytes);
    return ++loads;
  }
  absl::StatusOr<uint64_t> Store(std::span<const engine::SlotCopy> copies) override {
    for (const auto& copy : copies) std::memcpy(copy.host, data(copy.slot), kSlotBytes);
    return ++stores;
  }
  absl::StatusOr<bool> LoadDone(uint64_t number) override { return number <= loads_done; }
  absl::StatusOr<bool> StoreDone(uint64_t number) override { return number <= stores_done; }
  absl::Status Clear(std::span<const uint32_t> slots) override {
    for (const uint32_t slot : slots) std::memset(data(slot), 0, kSlotBytes);
    return absl::OkStatus();
  }
  absl::StatusOr<engine::SlotsExport> Export() const override {
    return engine::SlotsExport{.kind = engine::SlotsExport::Kind::kHostTest,
                               .stride_bytes = kSlotBytes,
                               .devices = {{.handle = "memory"}}};
  }

  uint64_t loads = 0, stores = 0, loads_done = 0, stores_done = 0;
  bool fails = false;

 private:
  std::vector<std::byte> memory_;
  uint32_t slots_;
};

class HbmTierTest : public testing::Test {
 protected:
  static constexpr uint32_t kSlots = 4;

  HbmTierTest() {
    auto slots = std::make_unique<TestSlots>(kSlots);
    slots_ = slots.get();
    tier_ = std::make_unique<HbmTier>(std::move(slots));
    EXPECT_TRUE(tier_->Reserve(kSlots));
  }
  static BlockKey Key(uint64_t number) { return {number, number}; }
  // A block that was computed, stored, and that nobody uses.
  void Cache(uint64_t number, bool derived = false,
             std::optional<HbmTier::Unstored> unstored = std::nullopt) {
    std::byte* data = tier_->Take();
    tier_->Name(data, Key(number), derived, std::move(unstored));
    tier_->Unpin(data);
  }
  std::vector<uint64_t> Held() const {
    std::vector<uint64_t> held;
    for (uint64_t number = 0; number < 16; ++number) {
      if (tier_->Has(Key(number))) held.push_back(number);
    }
    return held;
  }

  TestSlots* slots_ = nullptr;
  std::unique_ptr<HbmTier> tier_;
};

TEST_F(HbmTierTest, TheLeastRecentlyUsedLeavesFirst) {
  for (const uint64_t number : {1, 2, 3, 4}) Cache(number);
  tier_->Unpin(tier_->Pin(Key(1), false));  // Used again.
  Cache(5);
  EXPECT_THAT(Held(), ElementsAre(1, 3, 4, 5));
  Cache(6);
  EXPECT_THAT(Held(), ElementsAre(1, 4, 5, 6));
  EXPECT_EQ(tier_->counters().evictions, 2u);
}

TEST_F(HbmTierTest, WhatIsPinnedStays) {
  for (const uint64_t number : {1, 2, 3, 4}) Cache(number);
  std::byte* one = tier_->Pin(Key(1), false);
  EXPECT_EQ(tier_->Pin(Key(1), false), one);  // By another sequence.
  Cache(5);
  Cache(6);
  Cache(7);
  EXPECT_THAT(Held(), ElementsAre(1, 5, 6, 7));
  tier_->Unpin(one);
  Cache(8);
  EXPECT_THAT(Held(), ElementsAre(1, 6, 7, 8));
  tier_->Unpin(one);
  EXPECT_EQ(tier_->pinned(), 0u);
}

TEST_F(HbmTierTest, ASlotWithoutAKeyIsFreeAtOnce) {
  for (const uint64_t number : {1, 2, 3}) Cache(number);
  for (int i = 0; i < 10; ++i) tier_->Unpin(tier_->Take());
  EXPECT_THAT(Held(), ElementsAre(1, 2, 3));
  EXPECT_EQ(tier_->counters().evictions, 0u);
}

TEST_F(HbmTierTest, TheBudgetIsHard) {
  EXPECT_FALSE(tier_->Reserve(1));
  tier_->Unreserve(2);
  EXPECT_TRUE(tier_->Reserve(1));
  EXPECT_FALSE(tier_->Reserve(2));
}

TEST_F(HbmTierTest, AnExactBlockTakesThePlaceOfADerivedOne) {
  Cache(1, true);
  EXPECT_EQ(tier_->Pin(Key(1), true), nullptr);
  std::byte* derived = tier_->Pin(Key(1), false);
  EXPECT_TRUE(tier_->replay_derived(derived));
  Cache(1, false);  // While the other is in use.
  std::byte* exact = tier_->Pin(Key(1), true);
  EXPECT_NE(exact, derived);
  EXPECT_FALSE(tier_->replay_derived(exact));
  tier_->Unpin(derived);
  tier_->Unpin(exact);
  Cache(1, true);  // Not the other way.
  exact = tier_->Pin(Key(1), true);
  EXPECT_NE(exact, nullptr);
  tier_->Unpin(exact);
  Cache(2, true);
  Cache(2, false);  // While nobody uses it.
  EXPECT_THAT(Held(), ElementsAre(1, 2));
  Cache(3);
  Cache(4);
  EXPECT_THAT(Held(), ElementsAre(1, 2, 3, 4));
}

TEST_F(HbmTierTest, WhatTheStoreDidNotTakeIsStoredOut) {
  std::vector<std::string> out;
  tier_->set_store_out([&](const std::byte* data, const HbmTier::Unstored& record) {
    out.push_back(std::to_string(static_cast<int>(*data)) + "/" +
                  std::to_string(record.tail.size()));
  });
  std::byte* data = tier_->Take();
  *data = std::byte{42};
  tier_->Name(data, Key(1), false, HbmTier::Unstored{{}, std::vector<std::byte>(768)});
  tier_->Unpin(data);
  tier_->Forget(Key(1));  // The store says it has none: that was known.
  for (const uint64_t number : {2, 3, 4}) Cache(number);
  EXPECT_THAT(out, ElementsAre());
  Cache(5);
  EXPECT_THAT(out, ElementsAre("42/768"));
  Cache(6);
  EXPECT_EQ(out.size(), 1u);
  EXPECT_EQ(tier_->counters().stored_out, 1u);
}

TEST_F(HbmTierTest, ForgottenBlocksAreFree) {
  Cache(1);
  Cache(2);
  std::byte* two = tier_->Pin(Key(2), false);
  tier_->Forget(Key(1));
  tier_->Forget(Key(2));
  tier_->Forget(Key(3));
  EXPECT_THAT(Held(), ElementsAre());
  tier_->Unpin(two);
  for (const uint64_t number : {4, 5, 6, 7}) Cache(number);
  EXPECT_EQ(tier_->counters().evictions, 0u);
}

TEST_F(HbmTierTest, WhoeverSharesALoadWaitsForIt) {
  std::vector<std::byte> host(kSlotBytes, std::byte{9});
  std::string log;
  const auto note = [&log](const char* what) {
    return [&log, what](const absl::Status& status) { log += status.ok() ? what : "!"; };
  };
  std::byte* first = tier_->Take();
  std::byte* second = tier_->Take();
  const HbmTier::Copy one{first, host.data()}, two{second, host.data()};
  tier_->Load({&one, 1}, note("a"));
  tier_->Load({&two, 1}, note("b"));
  tier_->AfterLoads({{first}}, note("c"));
  tier_->AfterLoads({{first, second}}, note("d"));
  tier_->Store({&one, 1}, note("s"));
  tier_->Poll();
  EXPECT_EQ(log, "");
  EXPECT_TRUE(tier_->copying());
  slots_->loads_done = 1;
  tier_->Poll();
  EXPECT_EQ(log, "ac");
  slots_->loads_done = 2;
  slots_->stores_done = 1;
  tier_->Poll();
  EXPECT_EQ(log, "acbds");
  tier_->AfterLoads({{first, second}}, note("e"));
  EXPECT_EQ(log, "acbdse");
  slots_->fails = true;
  tier_->Load({&one, 1}, note("x"));
  EXPECT_EQ(log, "acbdse!");
  EXPECT_FALSE(tier_->copying());
  EXPECT_EQ(tier_->counters().loads, 2u);
  tier_->Unpin(first);
  tier_->Unpin(second);
}

// Whoever was told of a slot can tell whether it has other bytes since.
TEST_F(HbmTierTest, GenerationsChangeWithTheBytes) {
  Cache(1);
  std::byte* data = tier_->Pin(Key(1), false);
  const uint32_t slot = tier_->SlotOf(data), generation = tier_->generation(data);
  tier_->Unpin(data);
  for (uint64_t number = 2; number <= kSlots; ++number) Cache(number);
  EXPECT_EQ(tier_->Pin(Key(1), false), data);
  EXPECT_EQ(tier_->generation(data), generation);
  tier_->Unpin(data);
  for (uint64_t number = 5; number < 5 + kSlots; ++number) Cache(number);
  EXPECT_FALSE(tier_->Has(Key(1)));
  EXPECT_EQ(tier_->SlotOf(data), slot);
  EXPECT_NE(tier_->generation(data), generation);
}

TEST(HbmTierLendTest, SomeSlotsAreAlwaysLeftToRequests) {
  const HbmTier tier(std::make_unique<TestSlots>(10));
  EXPECT_EQ(*tier.SlotsToLend(6 * kSlotBytes + 5), 6u);
  EXPECT_THAT(std::string(tier.SlotsToLend(7 * kSlotBytes).status().message()),
              testing::HasSubstr("at least are requests'"));
  EXPECT_THAT(std::string(tier.SlotsToLend(kSlotBytes - 1).status().message()),
              testing::HasSubstr("holds no block"));
  EXPECT_EQ(tier.Export()->stride_bytes, kSlotBytes);
}

}  // namespace
}  // namespace reprise::server
