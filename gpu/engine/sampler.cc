#include "gpu/engine/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "protocol/base/prng.h"

namespace reprise::engine {

absl::Status Validate(const SamplingOptions& options) {
  if (!(options.temperature >= 0 && options.temperature <= 100)) {
    return InvalidArgument("temperature " + std::to_string(options.temperature) +
                           " is not from 0 to 100");
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    return InvalidArgument("top_p " + std::to_string(options.top_p) +
                           " is not above 0 and at most 1");
  }
  return absl::OkStatus();
}

TokenId LikeliestToken(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// ---- Drawing -----------------------------------------------------------------------------------

namespace {

constexpr uint32_t kBins = 2048, kBinShift = 11;  // Of distances, with room for all but kFar.

// The tokens of one row.
class Row {
 public:
  Row(const TokenDraw& draw, std::span<const float> logits)
      : draw_(draw), logits_(logits), top_(*std::max_element(logits.begin(), logits.end())) {}

  float X(size_t token) const { return (logits_[token] - top_) * draw_.sharpness; }
  uint32_t DistanceOf(size_t token) const { return draw::Distance(X(token)); }

  // By bins of distances: only the tokens of the bin where the nucleus ends are put in order.
  draw::NucleusEnd Nucleus() const {
    if (draw_.top_p >= 1) return {};
    std::vector<uint64_t> bins(kBins);
    uint64_t total = 0;
    for (size_t i = 0; i < logits_.size(); ++i) {
      const uint32_t distance = DistanceOf(i);
      if (distance == draw::kFar) continue;
      const uint64_t weight = draw::Weight(distance);
      bins[distance >> kBinShift] += weight;
      total += weight;
    }
    if (total == 0) return {};  // Not of numbers.
    uint64_t left = draw::NucleusNeed(draw_.top_p, total);
    uint32_t bin = 0;
    while (bins[bin] < left) left -= bins[bin++];
    std::vector<draw::NucleusEnd> ends;
    for (uint32_t i = 0; i < logits_.size(); ++i) {
      const uint32_t distance = DistanceOf(i);
      if (distance >> kBinShift == bin) ends.push_back({distance, i});
    }
    std::sort(ends.begin(), ends.end(), [](const draw::NucleusEnd& a, const draw::NucleusEnd& b) {
      return a.distance < b.distance || (a.distance == b.distance && a.token < b.token);
    });
    size_t last = 0;
    while (draw::Weight(ends[last].distance) < left) left -= draw::Weight(ends[last++].distance);
    return ends[last];
  }

  TokenId Choose() const {
    const draw::NucleusEnd end = Nucleus();
    double best = -std::numeric_limits<double>::infinity();
    uint32_t token = 0;
    for (uint32_t i = 0; i < logits_.size(); ++i) {
      const float x = X(i);
      const uint64_t bits = draw::NoiseOf(draw_.noise, i);
      const float bound = draw::RankBound(x, static_cast<uint32_t>(std::countl_one(bits)));
      if (bound < best || !end.Keeps(draw::Distance(x), i)) continue;
      const double rank = draw::Rank(x, bits);
      if (!(rank > best)) continue;
      best = rank;
      token = i;
    }
    return static_cast<TokenId>(token);
  }

 private:
  const TokenDraw& draw_;
  std::span<const float> logits_;
  float top_;
};

}  // namespace

TokenId ChooseToken(const TokenDraw& draw, std::span<const float> logits) {
  return draw.greedy() ? LikeliestToken(logits) : Row(draw, logits).Choose();
}

TokenDraw Sampler::DrawAt(uint64_t position) const {
  if (greedy()) return {};
  // Of temperatures next to 0 the likeliest token's x must stay 0.
  constexpr double kSharpnessMax = 1e38;
  return {.sharpness = static_cast<float>(std::min(1 / options_.temperature, kSharpnessMax)),
          .top_p = options_.top_p,
          .noise = Prng(options_.seed ^ Prng(position).Next()).Next()};
}

std::vector<double> Sampler::Distribution(std::span<const float> logits) const {
  std::vector<double> p(logits.size(), 0.0);
  if (greedy()) {
    p[static_cast<size_t>(LikeliestToken(logits))] = 1;
    return p;
  }
  const TokenDraw draw = DrawAt(0);
  const Row row(draw, logits);
  const draw::NucleusEnd end = row.Nucleus();
  double sum = 0;
  for (uint32_t i = 0; i < p.size(); ++i) {
    if (end.Keeps(row.DistanceOf(i), i)) sum += p[i] = std::exp(double{row.X(i)});
  }
  for (double& value : p) value /= sum;
  return p;
}

// ---- Probabilities -----------------------------------------------------------------------------

double LogSumExp(std::span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

double LogProbability(std::span<const float> logits, TokenId token) {
  return logits[static_cast<size_t>(token)] - LogSumExp(logits);
}

double KlNats(std::span<const float> exact, std::span<const float> other) {
  const double exact_sum = LogSumExp(exact), other_sum = LogSumExp(other);
  double kl = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double p = exact[i] - exact_sum;
    kl += std::exp(p) * (p - (other[i] - other_sum));
  }
  return kl;
}

}  // namespace reprise::engine
