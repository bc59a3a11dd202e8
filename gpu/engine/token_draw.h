#pragma once

#include <bit>
#include <cstdint>

#include "protocol/base/prng.h"

// How a token is chosen from a row of logits, to the bit: what the host's sampler and a backend's
// kernels have in common. No result depends on the order in which tokens are looked at: sums are of
// integers, everything else is a largest of its kind, and of equals the lower id wins. Only
// additions, products and quotients are used, each rounded as IEEE 754 says, which a compiler that
// contracts none of them does alike everywhere.
//
// The largest logit is `top`. A token's x = (logit - top) sharpness, in float, is at most 0, and
// its probability is proportional to exp(x). Its rank is x + g, where g is Gumbel noise of (seed,
// position, token); the token of the largest rank is chosen, which is so distributed as exp(x).
//
// top_p below 1 leaves the nucleus: tokens in the order of (Distance(x), id), as few as have
// NucleusNeed of the whole weight together, in fixed point.
namespace reprise::engine {

// Of one token that is to be chosen. Made by Sampler.
struct TokenDraw {
  float sharpness = 0;  // 1 / temperature; 0: the likeliest token is wanted.
  double top_p = 1;
  uint64_t noise = 0;  // Of the seed and the token's position.

  constexpr bool greedy() const { return sharpness == 0; }
};

namespace draw {

inline constexpr double kLn2 = 0x1.62e42fefa39efp-1;

// ---- Weights in fixed point --------------------------------------------------------------------

// -x in units of 2^-17, rounded down: 22 bits. From kWeightless on a token has no weight, and all
// such are as far.
inline constexpr uint32_t kFar = 0xffffffff;
inline constexpr float kWeightless = 28.5f;
constexpr uint32_t Distance(float x) {
  return x > -kWeightless ? static_cast<uint32_t>(-x * 0x1p17f) : kFar;
}

// exp(-distance) in units of 2^-41, to some 2e-7 of it: the weights of 2^22 tokens, which is as
// many as there may be, have a sum below 2^64. Equal for equal distances.
constexpr uint64_t Weight(uint32_t distance) {
  if (distance == kFar) return 0;
  constexpr uint64_t kOctaves = 3098164009;  // 2^31 / ln 2: 48 bits of the product are a fraction.
  const uint64_t octaves = distance * kOctaves;
  const auto fraction = static_cast<uint32_t>(octaves >> 24) & 0xffffff;
  // exp(r) / sqrt(2), r in (-ln 2 / 2, ln 2 / 2].
  const float r = (0.5f - static_cast<float>(fraction) * 0x1p-24f) * 0.69314718f;
  constexpr float kTerms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1, 1};
  float power = 0;
  for (const float term : kTerms) power = power * r + term;
  const auto bits = static_cast<uint32_t>(power * (0.70710678f * 0x1p31f));
  return (uint64_t{bits} << 10) >> (octaves >> 48);
}

// The weight that a nucleus has at least, of `total` > 0.
constexpr uint64_t NucleusNeed(double top_p, uint64_t total) {
  const double wanted = top_p * static_cast<double>(total);
  if (!(wanted > 1)) return 1;
  if (wanted >= static_cast<double>(total)) return total;
  const auto whole = static_cast<uint64_t>(wanted);
  return whole + (static_cast<double>(whole) < wanted ? 1 : 0);
}
// The last of the tokens that are kept. As it is made, it keeps all.
struct NucleusEnd {
  uint32_t distance = kFar, token = 0xffffffff;

  constexpr bool Keeps(uint32_t other, uint32_t id) const {
    return other < distance || (other == distance && id <= token);
  }
};

// ---- Noise -------------------------------------------------------------------------------------

// Of a normal number, to some units in the last place: the series of atanh.
constexpr double Log(double value) {
  constexpr uint64_t kOne = 0x3ff0000000000000, kFraction = 0x000fffffffffffff;
  const auto bits = std::bit_cast<uint64_t>(value);
  auto exponent = static_cast<int32_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & kFraction) | kOne);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1), square = s * s;
  double series = 1.0 / 23;
  for (int n = 21; n > 0; n -= 2) series = 1.0 / n + series * square;
  return exponent * kLn2 + 2 * s * series;
}

// Random bits of a token at a draw's position; and a number in (0, 1) of them.
constexpr uint64_t NoiseOf(uint64_t noise, uint32_t token) { return Prng(noise + token).Next(); }
constexpr double Unit(uint64_t bits) {
  const double unit = static_cast<double>(bits >> 11) * 0x1p-53 + 0x1p-54;
  return unit < 1 ? unit : 1 - 0x1p-53;
}
// The rank of a token.
constexpr double Rank(float x, uint64_t bits) { return x - Log(-Log(Unit(bits))); }
// Not below the rank, and quickly had: `ones` leading ones of the bits leave 1 - unit at least
// 2^-(ones + 1), which -log(unit) is not below. The slack is much more than rounding loses where x
// is not below -100; further down there are no best tokens.
constexpr float RankBound(float x, uint32_t ones) {
  return x + (static_cast<float>(ones + 1) * 0.6931472f + 1e-3f);
}

}  // namespace draw
}  // namespace reprise::engine
