#pragma once

#include <cstdint>
#include <vector>

#include "gpu/model/model_config.h"

namespace reprise::engine {

// Frequencies of a kind of layer (model-facts section 3.4): without ratio, and with.
class Rope {
 public:
  explicit Rope(const ModelConfig& config);
  // cos and sin of the float product position x frequency.
  void At(uint32_t position, bool compressed, float* cosines, float* sines) const;
  const std::vector<float>& frequencies(bool compressed) const {
    return frequencies_[compressed ? 1 : 0];
  }

 private:
  std::vector<float> frequencies_[2];
};

}  // namespace reprise::engine
