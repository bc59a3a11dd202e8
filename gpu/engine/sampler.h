#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "protocol/base/prng.h"
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

// Chooses tokens from logits, the same for the same seed and logits. One thread.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options) : options_(options), prng_(options.seed) {}

  bool greedy() const { return options_.temperature == 0; }
  TokenId Choose(std::span<const float> logits);

  // Probabilities that Choose draws from, over the whole vocabulary.
  std::vector<double> Distribution(std::span<const float> logits) const;
  TokenId Draw(const std::vector<double>& distribution);

  // Speculative sampling: keeps a draft that was drawn from `draft` with probability
  // min(1, target / draft), and else draws from what of the target the draft left over; either way
  // the token is distributed like `target`. Returns whether the draft was kept.
  bool Verify(TokenId drafted, const std::vector<double>& target, const std::vector<double>& draft,
              TokenId* token);

 private:
  SamplingOptions options_;
  Prng prng_;
};

// Natural logarithm of a token's softmax probability.
double LogProbability(std::span<const float> logits, TokenId token);

}  // namespace reprise::engine
