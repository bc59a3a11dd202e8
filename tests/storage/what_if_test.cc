// Pools of other sizes: against caches of those sizes, one by one.
#include "storage/what_if.h"

#include <gtest/gtest.h>

#include <list>

#include "protocol/base/prng.h"

namespace reprise::storage {
namespace {

BlockKey KeyNumber(uint64_t number) {
  return {.low = number * 0x9e3779b97f4a7c15u, .high = number};
}

class PlainLru {
 public:
  explicit PlainLru(size_t capacity) : capacity_(capacity) {}
  bool Has(uint64_t key) const { return std::find(keys_.begin(), keys_.end(), key) != keys_.end(); }
  void Use(uint64_t key) {
    keys_.remove(key);
    keys_.push_front(key);
    if (keys_.size() > capacity_) keys_.pop_back();
  }

 private:
  size_t capacity_;
  std::list<uint64_t> keys_;
};

TEST(WhatIf, EveryPoolIsAnLruCache) {
  const std::vector<uint64_t> capacities = {1, 2, 5, 5, 16, 40};
  WhatIf what_if({.rate = 1, .capacities = capacities});
  std::vector<PlainLru> plain;
  for (const uint64_t capacity : capacities) plain.emplace_back(capacity);
  std::vector<uint64_t> hits(capacities.size());
  Prng random(1);
  for (int i = 0; i < 30'000; ++i) {
    // Some are used often, many once.
    const uint64_t number = random.Chance(700) ? random.Below(30) : random.Below(200);
    if (random.Chance(500)) {
      what_if.Look(KeyNumber(number));
      for (size_t k = 0; k < plain.size(); ++k) hits[k] += plain[k].Has(number) ? 1 : 0;
    } else {
      what_if.Use(KeyNumber(number));
      for (PlainLru& cache : plain) cache.Use(number);
    }
    ASSERT_EQ(what_if.counts().hits, hits) << i;
  }
  EXPECT_GT(what_if.counts().looked, 10'000u);
}

TEST(WhatIf, ASampleEstimatesTheWhole) {
  const std::vector<uint64_t> capacities = {2'000, 8'000};
  WhatIf whole({.rate = 1, .capacities = capacities});
  WhatIf sampled({.rate = 1.0 / 16, .capacities = capacities});
  Prng random(2);
  for (int i = 0; i < 400'000; ++i) {
    const uint64_t number = random.Below(1 + random.Below(12'000));
    for (WhatIf* one : {&whole, &sampled}) {
      one->Look(KeyNumber(number));
      one->Use(KeyNumber(number));
    }
  }
  EXPECT_NEAR(static_cast<double>(sampled.counts().looked) * 16 / 400'000, 1, 0.1);
  for (size_t k = 0; k < capacities.size(); ++k) {
    const auto rate = [k](const WhatIf& one) {
      return static_cast<double>(one.counts().hits[k]) / static_cast<double>(one.counts().looked);
    };
    EXPECT_NEAR(rate(sampled), rate(whole), 0.05);
  }
}

TEST(WhatIf, NoPoolsCostNothing) {
  WhatIf none({});
  none.Use(KeyNumber(1));
  none.Look(KeyNumber(1));
  EXPECT_TRUE(none.counts().hits.empty());
}

TEST(WhatIf, RatesKeepTheSampleSmall) {
  EXPECT_EQ(WhatIfRate(100), 1.0 / 16);
  EXPECT_NEAR(WhatIfRate(1'000'000), 0.002, 0.0001);
  EXPECT_EQ(WhatIfRate(uint64_t{1} << 40), 1.0 / 4096);
}

}  // namespace
}  // namespace reprise::storage
