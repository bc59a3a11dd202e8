#include "gpu/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
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

std::vector<double> Sampler::Distribution(std::span<const float> logits) const {
  std::vector<double> p(logits.size(), 0.0);
  if (greedy()) {
    p[static_cast<size_t>(LikeliestToken(logits))] = 1;
    return p;
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    sum += p[i] = std::exp((logits[i] - top) / options_.temperature);
  }
  for (double& value : p) value /= sum;
  if (options_.top_p >= 1) return p;
  std::vector<uint32_t> order(p.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&p](uint32_t a, uint32_t b) { return p[a] > p[b] || (p[a] == p[b] && a < b); });
  double kept = 0;
  size_t count = 0;
  while (count < order.size() && kept < options_.top_p) kept += p[order[count++]];
  for (size_t i = count; i < order.size(); ++i) p[order[i]] = 0;
  for (double& value : p) value /= kept;
  return p;
}

TokenId Sampler::Choose(std::span<const float> logits, uint64_t position) const {
  if (greedy()) return LikeliestToken(logits);
  const std::vector<double> p = Distribution(logits);
  const uint64_t place = Prng(options_.seed ^ Prng(position).Next()).Next();
  double best = -std::numeric_limits<double>::infinity();
  size_t token = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0) continue;
    // Never 0, so that both logarithms exist.
    const double unit = Prng(place + i).Unit() + 0x1.0p-54;
    const double rank = std::log(p[i]) - std::log(-std::log(unit));
    if (rank <= best) continue;
    best = rank;
    token = i;
  }
  return static_cast<TokenId>(token);
}

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
