#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"

namespace reprise::engine {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
};

// Every tensor of a checkpoint of this model, by model-facts section 13: name, type, shape.
// V4.1-Flash: 96,085 tensors, 510,286,023,000 bytes.
void ForEachTensor(const ModelGeometry& geometry,
                   const std::function<void(const TensorSpec&)>& visit);

}  // namespace reprise::engine
