#include "gpu/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

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

TokenId Sampler::Draw(const std::vector<double>& distribution) {
  double left = prng_.Unit();
  size_t last = 0;
  for (size_t i = 0; i < distribution.size(); ++i) {
    if (distribution[i] == 0) continue;
    last = i;
    left -= distribution[i];
    if (left < 0) break;
  }
  return static_cast<TokenId>(last);  // The last possible one, when rounding left something.
}

TokenId Sampler::Choose(std::span<const float> logits) {
  return greedy() ? LikeliestToken(logits) : Draw(Distribution(logits));
}

bool Sampler::Verify(TokenId drafted, const std::vector<double>& target,
                     const std::vector<double>& draft, TokenId* token) {
  const auto at = static_cast<size_t>(drafted);
  *token = drafted;
  if (prng_.Unit() * draft[at] < target[at]) return true;
  std::vector<double> rest(target.size());
  double sum = 0;
  for (size_t i = 0; i < target.size(); ++i) sum += rest[i] = std::max(0.0, target[i] - draft[i]);
  if (sum <= 0) {  // The two are equal but for rounding.
    *token = Draw(target);
    return false;
  }
  for (double& value : rest) value /= sum;
  *token = Draw(rest);
  return false;
}

double LogProbability(std::span<const float> logits, TokenId token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return logits[static_cast<size_t>(token)] - top - std::log(sum);
}

}  // namespace reprise::engine
