#include "gpu/engine/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace reprise::engine {

Rope::Rope(const ModelConfig& config) {
  const uint32_t pairs = config.rope_dim / 2;
  const auto correction = [&](double turns) {
    return config.rope_dim *
           std::log(config.yarn.original_positions / (2 * std::numbers::pi * turns)) /
           (2 * std::log(config.compress_theta));
  };
  const double low = std::max(std::floor(correction(config.yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(correction(config.yarn.beta_slow)), config.rope_dim - 1.0);
  for (uint32_t k = 0; k < pairs; ++k) {
    const double exponent = -2.0 * k / config.rope_dim;
    frequencies_[0].push_back(static_cast<float>(std::pow(config.rope_theta, exponent)));
    const double fast = std::pow(config.compress_theta, exponent);
    const double ramp = std::clamp((k - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    frequencies_[1].push_back(
        static_cast<float>(fast * (1 - ramp) + fast / config.yarn.factor * ramp));
  }
}

void Rope::At(uint32_t position, bool compressed, float* cosines, float* sines) const {
  const std::vector<float>& frequencies = frequencies_[compressed ? 1 : 0];
  for (size_t k = 0; k < frequencies.size(); ++k) {
    const double angle = static_cast<float>(position) * frequencies[k];  // Rounded to float first.
    cosines[k] = static_cast<float>(std::cos(angle));
    sines[k] = static_cast<float>(std::sin(angle));
  }
}

}  // namespace reprise::engine
