#include "storage/block_index.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "protocol/base/prng.h"

namespace reprise::storage {
namespace {

IndexEntry Entry(const BlockKey& key, uint32_t location) {
  return {.key = key, .ssd_location = location};
}

void ExpectSame(const BlockIndex& index, const std::map<BlockKey, uint32_t>& model) {
  ASSERT_EQ(index.size(), model.size());
  for (const auto& [key, location] : model) {
    const IndexEntry* entry = index.Find(key);
    ASSERT_NE(entry, nullptr);
    ASSERT_EQ(entry->ssd_location, location);
  }
  uint64_t visited = 0;
  index.ForEach([&](const IndexEntry& entry) {
    ++visited;
    EXPECT_EQ(model.at(entry.key), entry.ssd_location);
  });
  ASSERT_EQ(visited, model.size());
}

TEST(BlockIndex, FindsWhatWasInsertedUntilErased) {
  BlockIndex index(2);
  const BlockKey key{.low = 1, .high = 2};
  EXPECT_EQ(index.Find(key), nullptr);
  const IndexEntry* entry = index.Insert(Entry(key, 5));
  EXPECT_EQ(index.Find(key), entry);
  EXPECT_EQ(index.Find({.low = 1, .high = 3}), nullptr);  // The same bucket.
  EXPECT_EQ(index.Find(key)->ssd_location, 5u);
  index.Erase(index.Find(key));
  EXPECT_EQ(index.Find(key), nullptr);
  EXPECT_EQ(index.size(), 0u);
}

TEST(BlockIndex, AtMost48BytesABlock) {
  for (const uint64_t blocks : {1'000u, 1'000'000u}) {
    const BlockIndex index(blocks);
    EXPECT_LE(index.bytes() / blocks, 48u);
    EXPECT_EQ(index.blocks_max(), blocks);
  }
}

TEST(BlockIndex, HoldsAMillionBlocks) {
  constexpr uint64_t kSeed = 5;
  constexpr uint32_t kBlocks = 1'000'000;
  BlockIndex index(kBlocks);
  Prng random(kSeed);
  for (uint32_t i = 0; i < kBlocks; ++i) index.Insert(Entry({random.Next(), random.Next()}, i));
  Prng again(kSeed);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    const IndexEntry* entry = index.Find({again.Next(), again.Next()});
    ASSERT_NE(entry, nullptr);
    ASSERT_EQ(entry->ssd_location, i);
  }
  EXPECT_EQ(index.Find({again.Next(), again.Next()}), nullptr);
}

TEST(BlockIndex, MisuseIsCaught) {
  BlockIndex index(1);
  const BlockKey key{.low = 1, .high = 2};
  EXPECT_DEATH(index.Insert(IndexEntry{.key = key}), "check failed");  // Nowhere.
  index.Insert(Entry(key, 1));
  EXPECT_DEATH(index.Insert(Entry({.low = 9, .high = 9}, 1)), "check failed");  // Full.
  BlockIndex twice(2);
  twice.Insert(Entry(key, 1));
  EXPECT_DEATH(twice.Insert(Entry(key, 1)), "check failed");
}

// How a key's home bucket is chosen from the low half: the top of the range is the last bucket,
// whose run goes on at bucket 0.
struct Spread {
  const char* name;
  uint64_t first;  // low = first + Below(width)
  uint64_t width;
};

class BlockIndexModel : public testing::TestWithParam<Spread> {};
INSTANTIATE_TEST_SUITE_P(
    , BlockIndexModel,
    testing::Values(Spread{"everywhere", 0, UINT64_MAX}, Spread{"one_bucket", 0, 64},
                    Spread{"last_bucket", UINT64_MAX - 64, 64},
                    // The last quarter: long runs that wrap around.
                    Spread{"last_buckets", UINT64_MAX / 4 * 3, UINT64_MAX / 4}),
    [](const auto& param) { return std::string(param.param.name); });

TEST_P(BlockIndexModel, RandomInsertsAndErasesAgreeWithAMap) {
  constexpr uint64_t kSeed = 99;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  Prng random(kSeed);
  for (const uint64_t blocks_max : {1u, 2u, 3u, 24u, 48u}) {
    BlockIndex index(blocks_max);
    std::map<BlockKey, uint32_t> model;
    for (uint32_t step = 0; step < 10'000; ++step) {
      // Full most of the time, so that runs are long.
      if (model.size() < blocks_max && random.Chance(600)) {
        const BlockKey key{GetParam().first + random.Below(GetParam().width), random.Below(64)};
        if (model.emplace(key, step).second) index.Insert(Entry(key, step));
      } else if (!model.empty()) {
        auto victim = model.begin();
        std::advance(victim, random.Below(model.size()));
        index.Erase(index.Find(victim->first));
        model.erase(victim);
      }
      if (step % 7 != 0) continue;
      ASSERT_NO_FATAL_FAILURE(ExpectSame(index, model));
    }
  }
}

}  // namespace
}  // namespace reprise::storage
