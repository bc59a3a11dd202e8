// Tokens from logits: what is chosen is what token_draw.h says, found here in the plainest way.
#include "gpu/engine/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace reprise::engine {
namespace {

// About normal; with `step` not 0 rounded to its multiples, so that many are equal.
std::vector<float> RandomLogits(size_t count, float scale, float step, uint64_t seed) {
  Prng prng(seed);
  std::vector<float> logits(count);
  for (float& logit : logits) {
    double sum = 0;
    for (int i = 0; i < 6; ++i) sum += prng.Unit() - 0.5;
    logit = static_cast<float>(sum) * scale;
    if (step != 0) logit = std::round(logit / step) * step;
  }
  return logits;
}

// Whole order, no bins and no bounds.
TokenId PlainChoice(const TokenDraw& draw, const std::vector<float>& logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  const auto x = [&](uint32_t token) { return (logits[token] - top) * draw.sharpness; };
  const auto distance = [&](uint32_t token) { return draw::Distance(x(token)); };
  std::vector<uint32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return distance(a) < distance(b); });
  if (draw.top_p < 1) {
    uint64_t total = 0, sum = 0;
    for (const uint32_t token : order) total += draw::Weight(distance(token));
    const uint64_t need = draw::NucleusNeed(draw.top_p, total);
    size_t count = 0;
    while (sum < need) sum += draw::Weight(distance(order[count++]));
    order.resize(count);
  }
  std::sort(order.begin(), order.end());
  uint32_t best = order[0];
  const auto rank = [&](uint32_t token) {
    return draw::Rank(x(token), draw::NoiseOf(draw.noise, token));
  };
  for (const uint32_t token : order) {
    if (rank(token) > rank(best)) best = token;
  }
  return static_cast<TokenId>(best);
}

TEST(TokenDraw, LogarithmsAreAccurate) {
  Prng prng(1);
  for (int i = 0; i < 100'000; ++i) {
    const double value = std::exp(70 * prng.Unit() - 40);
    EXPECT_NEAR(draw::Log(value), std::log(value),
                4e-16 * std::max(1.0, std::abs(std::log(value))));
    // Relative, next to 1: there the noise is the largest.
    const double near = 1 - std::exp(-36 * prng.Unit());
    if (near == 0) continue;
    EXPECT_NEAR(draw::Log(near) / std::log(near), 1, 2e-15) << near;
  }
}

TEST(TokenDraw, WeightsAreExponentialsInFixedPoint) {
  EXPECT_EQ(draw::Weight(draw::kFar), 0u);
  EXPECT_EQ(draw::Distance(-draw::kWeightless), draw::kFar);
  EXPECT_EQ(draw::Distance(-1e38f), draw::kFar);
  EXPECT_EQ(draw::Distance(0), 0u);
  Prng prng(2);
  for (int i = 0; i < 100'000; ++i) {
    const auto distance = static_cast<uint32_t>(prng.Below(uint64_t{1} << 22));
    const double want = std::exp(-0x1p-17 * distance) * 0x1p41;
    EXPECT_NEAR(static_cast<double>(draw::Weight(distance)), want, 1 + want * 5e-7);
  }
  EXPECT_GT(draw::Weight(draw::Distance(-28.0f)), 0u);
}

TEST(TokenDraw, NucleusNeedIsOfTheTotal) {
  constexpr uint64_t kTotal = uint64_t{1} << 60;
  EXPECT_EQ(draw::NucleusNeed(0.5, kTotal), kTotal / 2);
  EXPECT_EQ(draw::NucleusNeed(1e-300, kTotal), 1u);
  EXPECT_EQ(draw::NucleusNeed(1 - 0x1p-53, 3), 3u);
  EXPECT_EQ(draw::NucleusNeed(0.5, 3), 2u);
}

TEST(TokenDraw, NoRankIsAboveItsBound) {
  const auto expect = [](uint64_t bits) {
    for (const float x : {0.0f, -3.3f, -40.0f}) {
      const auto ones = static_cast<uint32_t>(std::countl_one(bits));
      ASSERT_LE(draw::Rank(x, bits), draw::RankBound(x, ones)) << bits;
    }
  };
  for (uint32_t token = 0; token < 100'000; ++token) expect(draw::NoiseOf(77, token));
  for (int shift = 0; shift < 64; ++shift) {
    expect(~uint64_t{0} >> shift);
    expect(~(~uint64_t{0} >> shift));
  }
  EXPECT_TRUE(std::isfinite(draw::Rank(0, 0)) && std::isfinite(draw::Rank(0, ~uint64_t{0})));
}

TEST(Sampler, ChoicesAreThePlainOnes) {
  for (const size_t vocab : {1u, 2u, 31u, 288u, 4'099u}) {
    for (const float step : {0.0f, 0.5f, 100.0f}) {
      const std::vector<float> logits = RandomLogits(vocab, 4, step, vocab);
      for (const double temperature : {1e-310, 0.05, 1.0, 3.0, 100.0}) {
        for (const double top_p : {1e-9, 0.3, 0.9, 0.999999, 1.0}) {
          const Sampler sampler({.temperature = temperature, .top_p = top_p, .seed = vocab});
          for (uint64_t position = 0; position < 6; ++position) {
            ASSERT_EQ(sampler.Choose(logits, position),
                      PlainChoice(sampler.DrawAt(position), logits))
                << vocab << " tokens, step " << step << ", temperature " << temperature
                << ", top_p " << top_p;
          }
        }
      }
    }
  }
}

TEST(Sampler, OfEqualTokensANucleusKeepsTheLowest) {
  const std::vector<float> logits(10, 2.5f);
  const Sampler sampler({.temperature = 1, .top_p = 0.29});
  const std::vector<double> p = sampler.Distribution(logits);
  for (size_t i = 0; i < p.size(); ++i) EXPECT_EQ(p[i], i < 3 ? 1.0 / 3 : 0);
  for (uint64_t position = 0; position < 100; ++position) {
    EXPECT_LT(sampler.Choose(logits, position), 3);
  }
  EXPECT_EQ(LikeliestToken(logits), 0);
}

TEST(Sampler, TemperatureZeroIsGreedyAndNextToItIsToo) {
  const std::vector<float> logits = {-0.0f, 1, 3, 3, 2};
  EXPECT_TRUE(Sampler({}).DrawAt(9).greedy());
  EXPECT_EQ(ChooseToken({}, logits), 2);
  const std::vector<float> one = {0, 1, 3, 2.9f};
  const Sampler cold({.temperature = 1e-9, .seed = 1});
  for (uint64_t position = 0; position < 50; ++position) EXPECT_EQ(cold.Choose(one, position), 2);
}

}  // namespace
}  // namespace reprise::engine
