#pragma once

#include <string>
#include <vector>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// What the global KV of a token costs in one way to store it.
struct CacheFormat {
  std::string key;   // Of JSON: "fp4".
  std::string name;  // "FP8: E4M3, a UE8M0 scale per 32".
  uint32_t bytes_per_token = 0;
};

// This model's own format first, then the same rows in FP8 and BF16, then what DeepSeek-V4-Flash
// keeps.
std::vector<CacheFormat> CacheFormats(const ModelGeometry& geometry);

// Bytes of a token in the entries of one source; may be half a byte.
double SourceBytesPerToken(const KvGeometry& kv, const KvSource& source);

}  // namespace reprise::engine
