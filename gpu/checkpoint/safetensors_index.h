#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/base/status.h"

namespace reprise::engine {

// The model.safetensors.index.json of a checkpoint in shards.
struct SafetensorsIndex {
  std::map<std::string, std::string, std::less<>> files;  // Tensor name to shard's file name.
  std::optional<uint64_t> total_bytes;                    // metadata.total_size
};

inline constexpr uint64_t kSafetensorsIndexMax = 100 << 20;

// Refuses a name that is there twice, and shards that do not lie beside the index: hostile input
// gives an error that names the tensor.
absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(std::string_view json);

}  // namespace reprise::engine
