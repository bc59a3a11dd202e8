// The curve of a sample against the exact one, on generated chains.
#include "storage/economics/sampled_curve.h"

#include <gtest/gtest.h>

#include <cmath>

#include "protocol/base/prng.h"

namespace reprise::economics {
namespace {

constexpr uint32_t kBlockTokens = 64;

// Sessions that come back with longer prompts, at random times.
std::vector<std::vector<uint64_t>> Requests(uint64_t seed) {
  Prng random(seed);
  std::vector<std::vector<uint64_t>> sessions(400);
  std::vector<std::vector<uint64_t>> requests;
  uint64_t next_id = 1;
  for (int i = 0; i < 6000; ++i) {
    std::vector<uint64_t>& session = sessions[random.Below(sessions.size())];
    if (session.size() > 400) session.clear();
    for (uint64_t n = random.Below(20); n > 0; --n) session.push_back(next_id++);
    requests.push_back(session);
  }
  return requests;
}

TEST(SampledCurve, AWholeSampleIsExactInEachGroup) {
  // With every block in it, what is left of error is that of splitting the cache in eight.
  SampledCurve sampled(1);
  LruCurve exact;
  BlockNumbers numbers;
  for (const auto& ids : Requests(1)) {
    sampled.Add(ids, kBlockTokens);
    exact.Add({.time_ns = 0,
               .input_tokens = ids.size() * kBlockTokens,
               .block_tokens = kBlockTokens,
               .blocks = numbers.Of(ids)});
  }
  EXPECT_EQ(sampled.sampled_blocks(), numbers.size());
  for (uint64_t capacity = 1000; capacity < exact.capacity_max(); capacity *= 2) {
    const auto want = static_cast<double>(exact.HitTokens(capacity));
    EXPECT_NEAR(sampled.HitTokens(capacity).hit_tokens / want, 1, 0.01) << capacity;
  }
}

TEST(SampledCurve, ATwentiethIsWithinItsErrorEstimate) {
  SampledCurve sampled(0.05);
  LruCurve exact;
  BlockNumbers numbers;
  for (const auto& ids : Requests(2)) {
    sampled.Add(ids, kBlockTokens);
    exact.Add({.time_ns = 0,
               .input_tokens = ids.size() * kBlockTokens,
               .block_tokens = kBlockTokens,
               .blocks = numbers.Of(ids)});
  }
  EXPECT_NEAR(static_cast<double>(sampled.sampled_blocks()), 0.05 * numbers.size(),
              0.01 * numbers.size());
  const auto input = static_cast<double>(exact.input_tokens());
  for (uint64_t capacity = 2000; capacity < exact.capacity_max(); capacity *= 2) {
    const SampledCurve::Estimate estimate = sampled.HitTokens(capacity);
    const double error = estimate.hit_tokens - static_cast<double>(exact.HitTokens(capacity));
    EXPECT_LT(std::abs(error) / input, 0.03) << capacity;
    EXPECT_LT(std::abs(error), 5 * estimate.standard_error + 0.005 * input) << capacity;
  }
}

TEST(SampledCurve, NothingSampledSaysNothing) {
  SampledCurve sampled(1e-6);
  const std::vector<uint64_t> ids = {1, 2, 3};
  sampled.Add(ids, kBlockTokens);
  EXPECT_EQ(sampled.HitTokens(100).hit_tokens, 0);
}

}  // namespace
}  // namespace reprise::economics
