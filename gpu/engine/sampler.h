#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine/token_draw.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::engine {

struct SamplingOptions {
  double temperature = 0;  // 0: always the likeliest token.
  double top_p = 1;        // Only the likeliest tokens that together have this probability.
  uint64_t seed = 0;
};
absl::Status Validate(const SamplingOptions& options);

// The likeliest token; of equals the lowest id.
TokenId LikeliestToken(std::span<const float> logits);
// As token_draw.h says: what the kernels of a backend choose from the same logits.
TokenId ChooseToken(const TokenDraw& draw, std::span<const float> logits);

// Chooses tokens from logits. What it draws follows from the seed, the token's position and the
// logits alone: the same request gives the same text, however it was batched, drafted or cut.
//
// A token is the one with the largest log p + g, where g is Gumbel noise that belongs to (seed,
// position, token): so it is distributed like p. A draft is drawn with the noise of its position
// and is right when the model itself chooses the same, which is likely: both have the same noise.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options) {}

  bool greedy() const { return options_.temperature == 0; }
  // How the token at `position` of the sequence is chosen; and the token.
  TokenDraw DrawAt(uint64_t position) const;
  TokenId Choose(std::span<const float> logits, uint64_t position) const {
    return ChooseToken(DrawAt(position), logits);
  }

  // Probabilities that Choose draws from, over the whole vocabulary.
  std::vector<double> Distribution(std::span<const float> logits) const;

 private:
  SamplingOptions options_;
};

// The logarithm of a softmax's denominator: logits[i] less this is token i's log-probability.
// Natural logarithms, like the others here.
double LogSumExp(std::span<const float> logits);
double LogProbability(std::span<const float> logits, TokenId token);
// Kullback-Leibler divergence of the softmax of `other` from that of `exact`, in nats. Of one size.
double KlNats(std::span<const float> exact, std::span<const float> other);

}  // namespace reprise::engine
