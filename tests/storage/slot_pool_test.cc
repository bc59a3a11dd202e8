#include "storage/slot_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "protocol/base/prng.h"
#include "tests/storage/vector_memory.h"

namespace reprise::storage {
namespace {

using Use = SlotPool::Use;
constexpr uint32_t kFirstOfPool = 100;

TEST(SlotPool, HandsOutEachSlotOnceWithinBudgets) {
  VectorMemory memory(kFirstOfPool, 5, 8);
  SlotPool pool(&memory, kFirstOfPool, 3, 2);
  std::set<uint32_t> slots;
  for (int i = 0; i < 3; ++i) slots.insert(pool.Allocate(Use::kBlock));
  EXPECT_EQ(pool.Allocate(Use::kBlock), SlotPool::kNone);  // Window slots are free, and stay so.
  for (int i = 0; i < 2; ++i) slots.insert(pool.Allocate(Use::kWindow));
  EXPECT_EQ(pool.Allocate(Use::kWindow), SlotPool::kNone);
  EXPECT_EQ(slots, (std::set<uint32_t>{100, 101, 102, 103, 104}));
  EXPECT_EQ(pool.used(Use::kBlock), 3u);
  EXPECT_EQ(pool.used(Use::kWindow), 2u);
}

TEST(SlotPool, AnEmptyBudgetGivesNothing) {
  VectorMemory memory(kFirstOfPool, 1, 8);
  SlotPool pool(&memory, kFirstOfPool, 1, 0);
  EXPECT_EQ(pool.Allocate(Use::kWindow), SlotPool::kNone);
  EXPECT_EQ(pool.Allocate(Use::kBlock), kFirstOfPool);
  SlotPool nothing(&memory, kFirstOfPool, 0, 0);
  EXPECT_EQ(nothing.Allocate(Use::kBlock), SlotPool::kNone);
  EXPECT_EQ(nothing.total(), 0u);
}

TEST(SlotPool, FreeingRaisesTheGenerationBeforeReuse) {
  VectorMemory memory(kFirstOfPool, 1, 8);
  SlotPool pool(&memory, kFirstOfPool, 1, 0);
  const uint32_t slot = pool.Allocate(Use::kBlock);
  const uint32_t generation = pool.generation(slot);
  pool.set_key(slot, {.low = 1, .high = 2});
  pool.set_orphan(slot);
  pool.Free(slot);
  EXPECT_EQ(pool.generation(slot), generation + 1);
  EXPECT_EQ(pool.use(slot), Use::kFree);
  ASSERT_EQ(pool.Allocate(Use::kBlock), slot);
  EXPECT_EQ(pool.generation(slot), generation + 1);
  EXPECT_FALSE(pool.orphan(slot));
  EXPECT_EQ(pool.pins(slot), 0u);
  EXPECT_EQ(pool.key(slot), BlockKey{});
}

TEST(SlotPool, MisuseIsCaught) {
  VectorMemory memory(kFirstOfPool, 2, 8);
  SlotPool pool(&memory, kFirstOfPool, 2, 0);
  const uint32_t slot = pool.Allocate(Use::kBlock);
  EXPECT_DEATH(pool.Unpin(slot), "check failed");
  pool.Pin(slot);
  EXPECT_DEATH(pool.Free(slot), "check failed");
  EXPECT_EQ(pool.Unpin(slot), 0u);
  pool.Free(slot);
  EXPECT_DEATH(pool.Free(slot), "check failed");
  EXPECT_DEATH(pool.pins(kFirstOfPool - 1), "check failed");
  EXPECT_DEATH(pool.pins(kFirstOfPool + 2), "check failed");
}

TEST(SlotPool, AgreesWithAModel) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  constexpr uint32_t kBlocks = 20;
  constexpr uint32_t kWindows = 7;
  struct Held {
    Use use;
    BlockKey key;
    uint32_t pins = 0;
  };
  Prng random(kSeed);
  VectorMemory memory(kFirstOfPool, kBlocks + kWindows, 16);
  SlotPool pool(&memory, kFirstOfPool, kBlocks, kWindows);
  std::map<uint32_t, Held> held;
  std::map<uint32_t, uint32_t> freed_count;
  for (int step = 0; step < 20'000; ++step) {
    const auto slot = static_cast<uint32_t>(kFirstOfPool + random.Below(kBlocks + kWindows));
    const auto found = held.find(slot);
    switch (random.Below(4)) {
      case 0: {
        const Use use = random.Chance(600) ? Use::kBlock : Use::kWindow;
        const uint32_t got = pool.Allocate(use);
        const uint32_t budget = use == Use::kBlock ? kBlocks : kWindows;
        uint32_t used = 0;
        for (const auto& [number, state] : held) used += state.use == use ? 1 : 0;
        ASSERT_EQ(got == SlotPool::kNone, used == budget);
        if (got == SlotPool::kNone) break;
        ASSERT_TRUE(held.emplace(got, Held{use, {random.Next(), random.Next()}}).second);
        pool.set_key(got, held[got].key);
        break;
      }
      case 1:
        if (found == held.end() || found->second.pins > 0) break;
        pool.Free(slot);
        held.erase(found);
        ++freed_count[slot];
        break;
      case 2:
        if (found == held.end()) break;
        pool.Pin(slot);
        ++found->second.pins;
        break;
      default:
        if (found == held.end() || found->second.pins == 0) break;
        ASSERT_EQ(pool.Unpin(slot), --found->second.pins);
    }
    if (step % 50 != 0) continue;
    uint32_t pinned = 0;
    for (const auto& [number, state] : held) {
      ASSERT_EQ(pool.use(number), state.use);
      ASSERT_EQ(pool.key(number), state.key);
      ASSERT_EQ(pool.pins(number), state.pins);
      pinned += state.pins > 0 ? 1 : 0;
    }
    ASSERT_EQ(pool.pinned(), pinned);
    ASSERT_EQ(pool.used(Use::kBlock) + pool.used(Use::kWindow), held.size());
    for (uint32_t i = kFirstOfPool; i < kFirstOfPool + pool.total(); ++i) {
      ASSERT_EQ(pool.generation(i), freed_count[i]);
    }
  }
}

}  // namespace
}  // namespace reprise::storage
