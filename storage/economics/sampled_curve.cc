#include "storage/economics/sampled_curve.h"

#include <algorithm>
#include <cmath>

#include "protocol/base/check.h"

namespace reprise::economics {
namespace {

uint64_t SampleHash(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

}  // namespace

SampledCurve::SampledCurve(double rate) : rate_(rate), groups_(kGroups) {
  RP_CHECK(rate > 0 && rate <= 1);
}

void SampledCurve::Add(std::span<const uint64_t> ids, uint32_t block_tokens) {
  const auto below = rate_ >= 1 ? UINT64_MAX : static_cast<uint64_t>(std::ldexp(rate_, 64));
  for (const uint64_t id : ids) {
    const uint64_t hash = SampleHash(id);
    // The low bits choose the group: they say nothing of the order.
    if (hash <= below) groups_[hash % kGroups].ids.push_back(id);
  }
  tokens_ += ids.size() * block_tokens;
  for (Group& group : groups_) {
    if (group.ids.empty()) continue;
    const uint64_t tokens = group.ids.size() * block_tokens;
    group.curve.Add({.time_ns = 0,
                     .input_tokens = tokens,
                     .block_tokens = block_tokens,
                     .blocks = group.numbers.Of(group.ids)});
    group.tokens += tokens;
    group.ids.clear();
  }
}

SampledCurve::Estimate SampledCurve::HitTokens(uint64_t capacity) const {
  // A ratio of sampled tokens, so that a sample which is a little too large does no harm.
  double sum = 0, squares = 0, count = 0;
  for (const Group& group : groups_) {
    if (group.tokens == 0) continue;
    const auto scaled =
        static_cast<uint64_t>(std::llround(static_cast<double>(capacity) * rate_ / kGroups));
    const double ratio =
        static_cast<double>(group.curve.HitTokens(scaled)) / static_cast<double>(group.tokens);
    sum += ratio;
    squares += ratio * ratio;
    ++count;
  }
  if (count == 0) return {};
  const double mean = sum / count;
  const double variance = count > 1 ? std::max(0.0, (squares - sum * mean) / (count - 1)) : 0;
  const auto tokens = static_cast<double>(tokens_);
  return {mean * tokens, std::sqrt(variance / count) * tokens};
}

uint64_t SampledCurve::capacity_max() const {
  uint64_t most = 0;
  for (const Group& group : groups_) most = std::max(most, group.curve.capacity_max());
  return static_cast<uint64_t>(static_cast<double>(most) * kGroups / rate_);
}

uint64_t SampledCurve::sampled_blocks() const {
  uint64_t blocks = 0;
  for (const Group& group : groups_) blocks += group.numbers.size();
  return blocks;
}

}  // namespace reprise::economics
