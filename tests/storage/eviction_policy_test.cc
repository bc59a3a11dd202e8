#include "storage/eviction_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "protocol/base/prng.h"
#include "tests/storage/counting_new.h"
#include "tests/storage/numbered_key.h"

namespace reprise::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<EvictionPolicy> MakeEviction(std::string_view name, uint32_t capacity) {
  auto policy = MakeEvictionPolicy(name, capacity);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

// Evicts everything that is tracked.
std::vector<uint32_t> Drain(EvictionPolicy* policy) {
  std::vector<uint32_t> order;
  while (policy->tracked() > 0) order.push_back(policy->Evict());
  EXPECT_EQ(policy->Evict(), EvictionPolicy::kNoVictim);
  return order;
}

// A cache of `capacity` blocks over a policy, as the DRAM tier drives it: one id a block in
// residence.
class TinyCache {
 public:
  TinyCache(std::string_view name, uint32_t capacity) : policy_(MakeEviction(name, capacity)) {
    for (uint32_t id = capacity; id > 0; --id) free_.push_back(id - 1);
  }
  bool Request(uint64_t block) {
    if (const auto found = resident_.find(block); found != resident_.end()) {
      policy_->Touch(found->second);
      return true;
    }
    if (free_.empty()) {
      const uint32_t id = policy_->Evict();
      resident_.erase(held_.at(id));
      held_.erase(id);
      free_.push_back(id);
    }
    const uint32_t id = free_.back();
    free_.pop_back();
    resident_[block] = id;
    held_[id] = block;
    policy_->Track(id, Key(block));
    return false;
  }

 private:
  std::unique_ptr<EvictionPolicy> policy_;
  std::vector<uint32_t> free_;
  std::map<uint64_t, uint32_t> resident_;
  std::map<uint32_t, uint64_t> held_;
};

TEST(EvictionPolicy, UnknownNameListsTheKnownOnes) {
  for (const char* name : {"", "LRU", "clock"}) {
    const auto policy = MakeEvictionPolicy(name, 4);
    ASSERT_FALSE(policy.ok());
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Message(policy.status()), HasSubstr("\"" + std::string(name) + "\""));
    EXPECT_THAT(Message(policy.status()), HasSubstr("fifo, lru or s3fifo"));
  }
}

class EveryPolicy : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(, EveryPolicy, testing::Values("fifo", "lru", "s3fifo"),
                         [](const auto& param) { return std::string(param.param); });

TEST_P(EveryPolicy, EvictsNothingWhenNothingIsTracked) {
  for (const uint32_t capacity : {0u, 1u, 2u, 9u, 10u, 11u}) {
    const auto policy = MakeEviction(GetParam(), capacity);
    EXPECT_EQ(policy->tracked(), 0u);
    EXPECT_EQ(policy->Evict(), EvictionPolicy::kNoVictim);
  }
}

TEST_P(EveryPolicy, UntouchedIdsLeaveInOrderOfTrack) {
  for (const uint32_t capacity : {1u, 2u, 9u, 10u, 11u, 100u}) {
    const auto policy = MakeEviction(GetParam(), capacity);
    std::vector<uint32_t> order(capacity);
    for (uint32_t i = 0; i < capacity; ++i) {
      order[i] = capacity - 1 - i;
      policy->Track(order[i], Key(i));
    }
    EXPECT_EQ(policy->tracked(), capacity);
    EXPECT_EQ(Drain(policy.get()), order);
  }
}

TEST_P(EveryPolicy, SetAsideIsNeverEvictedAndKeepsItsPlace) {
  const auto policy = MakeEviction(GetParam(), 4);
  for (uint32_t id = 0; id < 4; ++id) policy->Track(id, Key(id));
  policy->Untrack(1);
  EXPECT_EQ(policy->tracked(), 3u);
  EXPECT_EQ(policy->Evict(), 0u);  // 1 was not met yet: it keeps its place, before 2.
  policy->TrackAgain(1, Key(1));
  EXPECT_EQ(policy->Evict(), 1u);
  policy->Untrack(2);
  policy->Untrack(3);
  EXPECT_EQ(policy->Evict(), EvictionPolicy::kNoVictim);
  policy->TrackAgain(3, Key(3));
  policy->TrackAgain(2, Key(2));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(2, 3));
}

TEST_P(EveryPolicy, ABlockWhoseTurnCameWhileSetAsideIsNextToLeave) {
  const auto policy = MakeEviction(GetParam(), 4);
  for (uint32_t id = 0; id < 4; ++id) policy->Track(id, Key(id));
  policy->Untrack(0);
  EXPECT_EQ(policy->Evict(), 1u);
  policy->Track(1, Key(11));
  policy->TrackAgain(0, Key(0));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(0, 2, 3, 1));
}

TEST_P(EveryPolicy, ANewBlockInAnIdThatWasSetAsideIsANewcomer) {
  const auto policy = MakeEviction(GetParam(), 3);
  for (const bool again : {false, true}) {
    for (uint32_t id = 0; id < 3; ++id) policy->Track(id, Key(id));
    for (int i = 0; i < 3; ++i) policy->Touch(0);
    policy->Untrack(0);  // Withdrawn.
    if (again) {
      policy->TrackAgain(0, Key(7));  // Set aside with another key.
    } else {
      policy->Track(0, Key(7));
    }
    EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 2, 0)) << "again " << again;
  }
}

TEST_P(EveryPolicy, TrackAgainOfAnIdNeverSeenIsTrack) {
  const auto policy = MakeEviction(GetParam(), 2);
  policy->TrackAgain(1, Key(1));
  policy->TrackAgain(0, Key(0));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 0));
}

// Every id is at all times in one of three states; nothing is lost, nothing comes twice.
TEST_P(EveryPolicy, RandomCallsNeverLoseAnId) {
  constexpr uint64_t kSeed = 20240611;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Prng random(kSeed);
  for (const uint32_t capacity : {1u, 3u, 10u, 64u}) {
    const auto policy = MakeEviction(GetParam(), capacity);
    enum State { kFree, kTracked, kAside };
    std::vector<State> states(capacity, kFree);
    std::vector<uint64_t> keys(capacity);
    for (int step = 0; step < 20'000; ++step) {
      const auto id = static_cast<uint32_t>(random.Below(capacity));
      switch (random.Below(5)) {
        case 0:
          if (states[id] == kTracked) break;
          keys[id] = random.Below(3 * capacity);
          policy->Track(id, Key(keys[id]));
          states[id] = kTracked;
          break;
        case 1:
          if (states[id] != kAside) break;
          policy->TrackAgain(id, Key(keys[id]));
          states[id] = kTracked;
          break;
        case 2:
          if (states[id] != kFree) policy->Touch(id);
          break;
        case 3:
          if (states[id] != kTracked) break;
          policy->Untrack(id);
          states[id] = kAside;
          break;
        default: {
          const uint32_t victim = policy->Evict();
          if (victim == EvictionPolicy::kNoVictim) {
            ASSERT_EQ(std::count(states.begin(), states.end(), kTracked), 0);
          } else {
            ASSERT_EQ(states.at(victim), kTracked);
            states[victim] = kFree;
          }
        }
      }
      ASSERT_EQ(policy->tracked(), std::count(states.begin(), states.end(), kTracked));
    }
  }
}

TEST_P(EveryPolicy, MemoryIsFixedAtConstruction) {
  constexpr uint32_t kCapacity = 100'000;
  const size_t before = AllocatedBytes();
  const auto policy = MakeEviction(GetParam(), kCapacity);
  const size_t constructed = AllocatedBytes();
  const bool has_ghosts = std::string(GetParam()) == "s3fifo";
  EXPECT_LE(constructed - before, kCapacity * (has_ghosts ? 32 : 16) + 1024);
  for (uint32_t i = 0; i < 3 * kCapacity; ++i) {
    const uint32_t id = i < kCapacity ? i : policy->Evict();
    policy->Track(id, Key(i % (2 * kCapacity)));
    policy->Touch(i % kCapacity);
  }
  EXPECT_EQ(AllocatedBytes(), constructed);
}

TEST_P(EveryPolicy, MisuseIsCaught) {
  const auto policy = MakeEviction(GetParam(), 2);
  policy->Track(0, Key(0));
  EXPECT_DEATH(policy->Track(0, Key(0)), "check failed");
  EXPECT_DEATH(policy->Track(2, Key(0)), "check failed");
  EXPECT_DEATH(policy->Touch(1), "check failed");
  EXPECT_DEATH(policy->Untrack(1), "check failed");
}

TEST(Fifo, HitsChangeNothing) {
  const auto policy = MakeEviction("fifo", 3);
  for (uint32_t id = 0; id < 3; ++id) policy->Track(id, Key(id));
  for (int i = 0; i < 10; ++i) policy->Touch(0);
  EXPECT_THAT(Drain(policy.get()), ElementsAre(0, 1, 2));
}

TEST(Lru, AHitMakesTheNewest) {
  const auto policy = MakeEviction("lru", 3);
  for (uint32_t id = 0; id < 3; ++id) policy->Track(id, Key(id));
  policy->Touch(0);
  policy->Touch(2);
  policy->Touch(0);
  EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 2, 0));
}

TEST(Lru, AHitWhileSetAsideCounts) {
  const auto policy = MakeEviction("lru", 3);
  for (uint32_t id = 0; id < 3; ++id) policy->Track(id, Key(id));
  policy->Untrack(0);
  policy->Untrack(1);
  EXPECT_EQ(policy->Evict(), 2u);  // Meets 0 and 1 on the way.
  policy->Touch(1);
  policy->Touch(0);
  policy->TrackAgain(0, Key(0));
  policy->TrackAgain(1, Key(1));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 0));
}

// Against a list that is searched from the front.
TEST(Lru, AgreesWithANaiveOne) {
  constexpr uint64_t kSeed = 7;
  constexpr uint32_t kCapacity = 50;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Prng random(kSeed);
  const auto policy = MakeEviction("lru", kCapacity);
  std::list<uint32_t> order;  // Tracked, oldest first.
  for (int step = 0; step < 10'000; ++step) {
    const auto id = static_cast<uint32_t>(random.Below(kCapacity));
    const auto place = std::find(order.begin(), order.end(), id);
    const bool tracked = place != order.end();
    switch (random.Below(6)) {
      case 0:
      case 1:
        if (tracked) break;
        policy->Track(id, Key(random.Next()));
        order.push_back(id);
        break;
      case 2:
      case 3:
        if (!tracked) break;
        policy->Touch(id);
        order.splice(order.end(), order, place);
        break;
      case 4:
        if (!tracked) break;
        policy->Untrack(id);
        order.erase(place);
        break;
      default:
        if (order.empty()) {
          ASSERT_EQ(policy->Evict(), EvictionPolicy::kNoVictim);
        } else {
          ASSERT_EQ(policy->Evict(), order.front()) << "step " << step;
          order.pop_front();
        }
    }
    ASSERT_EQ(policy->tracked(), order.size());
  }
}

// traces/README.md: six requests in blocks of 4 tokens, each touched from its tail to its head,
// then evicted down to the capacity. The answers there were worked out by hand.
TEST(ToyTrace, HitTokensAreThoseWorkedOutByHand) {
  const std::vector<std::vector<uint32_t>> requests = {{1, 2, 3},    {1, 2, 3, 4}, {1, 5},
                                                       {1, 2, 3, 4}, {6, 7},       {1, 5, 8}};
  struct Case {
    const char* policy;
    uint32_t capacity;
    uint32_t hit_tokens;
  };
  for (const Case& c :
       {Case{"lru", 100, 40}, Case{"lru", 4, 32}, Case{"lru", 3, 28}, Case{"fifo", 4, 24}}) {
    const auto policy = MakeEviction(c.policy, 9);
    std::set<uint32_t> resident;
    uint32_t hit_tokens = 0;
    for (const std::vector<uint32_t>& blocks : requests) {
      for (const uint32_t block : blocks) {
        if (!resident.contains(block)) break;
        hit_tokens += 4;
      }
      for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) {
        if (resident.insert(*block).second) {
          policy->Track(*block, Key(*block));
        } else {
          policy->Touch(*block);
        }
      }
      while (resident.size() > c.capacity) resident.erase(policy->Evict());
    }
    EXPECT_EQ(hit_tokens, c.hit_tokens) << c.policy << " " << c.capacity;
  }
}

// A chain is put from its head on, and leaves from its tail on.
TEST(Lru, ANewcomerEntersBehindItsParent) {
  const auto policy = MakeEviction("lru", 8);
  policy->Track(0, Key(0));
  policy->Track(1, Key(1), 0);
  policy->Track(5, Key(50));  // Of another chain, newer.
  policy->Track(2, Key(2), 1);
  policy->Untrack(2);  // Pinned: its child still finds its place.
  policy->Track(3, Key(3), 2);
  policy->TrackAgain(2, Key(2));
  policy->Track(4, Key(4), 7);  // A parent that is not here.
  EXPECT_THAT(Drain(policy.get()), ElementsAre(3, 2, 1, 0, 5, 4));
}

TEST(AllPolicies, WhatIsRestoredIsTheNextToLeave) {
  for (const char* name : {"fifo", "lru", "s3fifo"}) {
    const auto policy = MakeEviction(name, 8);
    for (uint32_t id = 0; id < 4; ++id) policy->Track(id, Key(id));
    EXPECT_EQ(policy->Evict(), 0u) << name;
    policy->Restore(0);
    EXPECT_EQ(policy->tracked(), 4u) << name;
    EXPECT_EQ(policy->Evict(), 0u) << name;
    EXPECT_EQ(policy->Evict(), 1u) << name;
  }
}

TEST(S3Fifo, TwoHitsMoveANewcomerToTheMainQueue) {
  const auto policy = MakeEviction("s3fifo", 10);
  for (uint32_t id = 0; id < 4; ++id) policy->Track(id, Key(id));
  policy->Touch(0);  // Once: leaves.
  policy->Touch(1);
  policy->Touch(1);  // Twice: stays.
  EXPECT_EQ(policy->Evict(), 0u);
  EXPECT_EQ(policy->Evict(), 2u);
  policy->Track(5, Key(5));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(3, 5, 1));
}

TEST(S3Fifo, HitsInTheSmallQueueAreSpentByTheMove) {
  const auto policy = MakeEviction("s3fifo", 10);
  policy->Track(0, Key(0));
  for (int hits = 0; hits < 3; ++hits) policy->Touch(0);
  policy->Track(1, Key(1));
  EXPECT_EQ(policy->Evict(), 1u);  // 0 moves to the main queue.
  policy->Track(1, Key(1));        // So does 1, behind it.
  EXPECT_THAT(Drain(policy.get()), ElementsAre(0, 1));
}

TEST(S3Fifo, WhatReturnsSoonGoesToTheMainQueue) {
  const auto policy = MakeEviction("s3fifo", 10);
  policy->Track(0, Key(100));
  EXPECT_EQ(policy->Evict(), 0u);
  policy->Track(0, Key(100));  // The ghost memory knows it.
  policy->Track(1, Key(101));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 0));
}

// The ghost memory holds the newest 9 of what left a cache of 10.
TEST(S3Fifo, TheGhostMemoryIsAsLongAsTheMainQueue) {
  for (const uint64_t departed : {1u, 8u, 9u, 10u, 30u}) {
    const auto policy = MakeEviction("s3fifo", 10);
    for (uint64_t block = 0; block < departed; ++block) {
      policy->Track(0, Key(block));
      EXPECT_EQ(policy->Evict(), 0u);
    }
    policy->Track(0, Key(0));      // Back after `departed` - 1 others left.
    policy->Track(1, Key(1'000));  // A newcomer, behind 0 unless 0 is in the main queue.
    EXPECT_EQ(policy->Evict(), departed <= 9 ? 1u : 0u) << departed;
  }
}

TEST(S3Fifo, MainQueueGivesAnotherRoundForEachHit) {
  const auto policy = MakeEviction("s3fifo", 10);
  for (uint32_t id = 0; id < 3; ++id) {  // Into the main queue, by way of the ghost memory.
    policy->Track(id, Key(id));
    EXPECT_EQ(policy->Evict(), id);
    policy->Track(id, Key(id));
  }
  for (int hits = 0; hits < 9; ++hits) policy->Touch(0);  // Counts to 3.
  policy->Touch(1);
  EXPECT_EQ(policy->Evict(), 2u);
  policy->Track(3, Key(3));
  EXPECT_EQ(policy->Evict(), 3u);
  EXPECT_THAT(Drain(policy.get()), ElementsAre(1, 0));
}

TEST(S3Fifo, SettingAsideKeepsQueueAndFrequency) {
  const auto policy = MakeEviction("s3fifo", 10);
  for (uint32_t id = 0; id < 3; ++id) policy->Track(id, Key(id));
  policy->Touch(0);
  policy->Untrack(0);
  policy->Touch(0);  // The second hit comes while it is pinned.
  EXPECT_EQ(policy->Evict(), 1u);
  policy->TrackAgain(0, Key(0));
  EXPECT_THAT(Drain(policy.get()), ElementsAre(2, 0));
}

// Re-used blocks with one-time blocks between them: more than a queue of recency can hold.
TEST(S3Fifo, BeatsLruWhenOneTimeBlocksPassThrough) {
  constexpr uint64_t kSeed = 42;
  constexpr uint32_t kCapacity = 200;
  std::map<std::string, double> hit_rate;
  for (const char* name : {"fifo", "lru", "s3fifo"}) {
    Prng random(kSeed);
    TinyCache cache(name, kCapacity);
    uint64_t one_time = 1'000'000;
    uint32_t hits = 0;
    constexpr uint32_t kRequests = 60'000;
    for (uint32_t i = 0; i < kRequests; ++i) {
      const bool reused = random.Chance(400);
      hits += cache.Request(reused ? random.Below(150) : one_time++) ? 1 : 0;
    }
    hit_rate[name] = static_cast<double>(hits) / kRequests;
  }
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  // 40 % of requests are for 150 blocks that fit. LRU holds each for 200 requests or so; they
  // return after 375 on average.
  EXPECT_GT(hit_rate["s3fifo"], hit_rate["lru"] + 0.10)
      << hit_rate["s3fifo"] << " " << hit_rate["lru"];
  EXPECT_GT(hit_rate["s3fifo"], 0.35);
  EXPECT_LT(hit_rate["fifo"], hit_rate["s3fifo"]);
}

}  // namespace
}  // namespace reprise::storage
