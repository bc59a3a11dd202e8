#pragma once

#include <string>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// How a model's bytes and parameters come about, term by term, for people and for programs, with
// the same cache in BF16 and FP8 and DeepSeek-V4-Flash's 3,514 B a token beside it.
std::string DescribeModelText(const ModelGeometry& geometry);
// One JSON object. Keys are an interface.
std::string DescribeModelJson(const ModelGeometry& geometry);

}  // namespace reprise::engine
