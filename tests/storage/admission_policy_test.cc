#include "storage/admission_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "protocol/base/prng.h"
#include "tests/storage/counting_new.h"
#include "tests/storage/numbered_key.h"

namespace reprise::storage {
namespace {

using testing::HasSubstr;

std::unique_ptr<AdmissionPolicy> MakeAdmission(std::string_view name, uint64_t capacity) {
  auto policy = MakeAdmissionPolicy(name, capacity);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

TEST(AdmissionPolicy, UnknownNameListsTheKnownOnes) {
  for (const char* name : {"", "ALL", "lru"}) {
    const auto policy = MakeAdmissionPolicy(name, 4);
    ASSERT_FALSE(policy.ok());
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(policy.status()), HasSubstr("\"" + std::string(name) + "\""));
    EXPECT_THAT(Message(policy.status()), HasSubstr("all or tinylfu"));
  }
}

TEST(AdmissionPolicy, AllAdmitsWhatItNeverSaw) {
  const auto policy = MakeAdmission("all", 0);
  EXPECT_TRUE(policy->Admit(Key(1)));
}

TEST(TinyLfu, TooLargeACapacityIsRefusedWithAWayOut) {
  const auto policy = MakeAdmissionPolicy("tinylfu", uint64_t{1} << 32);
  ASSERT_FALSE(policy.ok());
  EXPECT_THAT(Message(policy.status()), HasSubstr("use more shards"));
}

TEST(TinyLfu, SecondSightEnters) {
  for (const uint64_t capacity : {0u, 1u, 15u, 16u, 17u, 1000u}) {
    const auto policy = MakeAdmission("tinylfu", capacity);
    EXPECT_FALSE(policy->Admit(Key(1)));
    policy->Record(Key(1));
    EXPECT_FALSE(policy->Admit(Key(1)));
    policy->Record(Key(1));
    EXPECT_TRUE(policy->Admit(Key(1))) << capacity;
    EXPECT_FALSE(policy->Admit(Key(2)));
  }
}

TEST(TinyLfu, AdmitDoesNotCountAsASight) {
  const auto policy = MakeAdmission("tinylfu", 100);
  policy->Record(Key(1));
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(policy->Admit(Key(1)));
}

TEST(TinyLfu, KeysThatDifferInEitherHalfAreTwo) {
  const auto policy = MakeAdmission("tinylfu", 100);
  for (int i = 0; i < 2; ++i) policy->Record({.low = 5, .high = 9});
  EXPECT_TRUE(policy->Admit({.low = 5, .high = 9}));
  EXPECT_FALSE(policy->Admit({.low = 9, .high = 5}));
  EXPECT_FALSE(policy->Admit({.low = 5, .high = 8}));
}

TEST(TinyLfu, OneHitWondersAreRefused) {
  constexpr uint64_t kCapacity = 1000;
  const auto policy = MakeAdmission("tinylfu", kCapacity);
  uint32_t admitted = 0;
  constexpr uint32_t kWonders = 50'000;
  for (uint32_t i = 0; i < kWonders; ++i) {
    policy->Record(Key(i));
    admitted += policy->Admit(Key(i)) ? 1 : 0;
  }
  EXPECT_LT(admitted, kWonders * 4 / 100);
}

// A full working set in the sketch, each key seen 4 times: what comes back enters, wonders mostly
// not.
TEST(TinyLfu, OneHitWondersAreRefusedBesideAFullWorkingSet) {
  constexpr uint64_t kCapacity = 10'000;
  const auto policy = MakeAdmission("tinylfu", kCapacity);
  for (int round = 0; round < 4; ++round) {
    for (uint64_t i = 0; i < kCapacity; ++i) policy->Record(Key(i));
  }
  uint32_t refused = 0;
  for (uint64_t i = 0; i < kCapacity; ++i) {
    EXPECT_TRUE(policy->Admit(Key(i)));
    const BlockKey wonder = Key(1'000'000 + i);
    if (i < kCapacity / 2) policy->Record(wonder);
    refused += policy->Admit(wonder) ? 0 : 1;
  }
  EXPECT_GT(refused, kCapacity * 5 / 6 - kCapacity / 50);
}

TEST(TinyLfu, AgingForgets) {
  constexpr uint64_t kCapacity = 100;
  const auto policy = MakeAdmission("tinylfu", kCapacity);
  policy->Record(Key(1));
  policy->Record(Key(1));
  for (int i = 0; i < 10; ++i) policy->Record(Key(2));
  ASSERT_TRUE(policy->Admit(Key(1)));
  // Up to the 1,000 records of a sample nothing ages; the next one halves the counts and empties
  // the doorkeeper.
  for (uint64_t i = 12; i < 10 * kCapacity; ++i) policy->Record(Key(3));
  EXPECT_TRUE(policy->Admit(Key(1)));
  policy->Record(Key(3));
  EXPECT_FALSE(policy->Admit(Key(1)));  // 1 of the sketch became 0.
  EXPECT_TRUE(policy->Admit(Key(2)));   // 9 became 4.
  // 4, 2, 1: after two more samples key 2 has to be seen again.
  for (uint64_t i = 0; i < 20 * kCapacity; ++i) policy->Record(Key(3));
  EXPECT_FALSE(policy->Admit(Key(2)));
  policy->Record(Key(2));
  EXPECT_TRUE(policy->Admit(Key(2)));
}

// Counts are exact enough to be forgotten on time: 2 becomes 1, and 15 becomes 0 in four steps,
// with neighbours in the same words.
TEST(TinyLfu, AgingForgetsEachKeyOnItsOwn) {
  struct Case {
    int sights;
    int agings;
  };
  constexpr uint64_t kCapacity = 10'000;
  for (const Case c : {Case{3, 1}, Case{9, 4}}) {
    const auto policy = MakeAdmission("tinylfu", kCapacity);
    uint64_t records = 0;
    for (int sight = 0; sight < c.sights; ++sight) {
      for (uint64_t i = 0; i < kCapacity; ++i, ++records) policy->Record(Key(i));
    }
    const uint64_t sample = 10 * kCapacity;
    const BlockKey filler = Key(1'000'000);
    for (; records < sample * c.agings + 1; ++records) policy->Record(filler);
    uint32_t admitted = 0;
    for (uint64_t i = 0; i < kCapacity; ++i) admitted += policy->Admit(Key(i)) ? 1 : 0;
    EXPECT_LT(admitted, kCapacity / 100) << c.sights << " sights, " << c.agings << " agings";
  }
}

TEST(TinyLfu, ManyFirstSightsAgeSooner) {
  constexpr uint64_t kCapacity = 1000;
  const auto policy = MakeAdmission("tinylfu", kCapacity);
  policy->Record(Key(1));
  policy->Record(Key(1));
  for (uint64_t i = 0; i < 2 * kCapacity + 200; ++i) policy->Record(Key(1'000'000 + i));
  EXPECT_FALSE(policy->Admit(Key(1)));
}

TEST(TinyLfu, CountsDoNotOverflow) {
  const auto policy = MakeAdmission("tinylfu", 1'000'000);
  for (int i = 0; i < 1000; ++i) {
    policy->Record(Key(1));
    ASSERT_EQ(policy->Admit(Key(1)), i > 0) << i;
  }
  for (uint64_t i = 2; i < 200; ++i) EXPECT_FALSE(policy->Admit(Key(i)));  // Neighbours untouched.
}

TEST(TinyLfu, MemoryIsFourBytesABlockAndFixed) {
  constexpr uint64_t kCapacity = 1'000'000;
  const size_t before = AllocatedBytes();
  const auto policy = MakeAdmission("tinylfu", kCapacity);
  const size_t constructed = AllocatedBytes();
  EXPECT_LE(constructed - before, 4 * kCapacity + 4096);
  Prng random(3);
  for (int i = 0; i < 100'000; ++i) {
    const BlockKey key = Key(random.Next());
    policy->Record(key);
    policy->Admit(key);
  }
  EXPECT_EQ(AllocatedBytes(), constructed);
}

}  // namespace
}  // namespace reprise::storage
