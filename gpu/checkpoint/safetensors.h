#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"

namespace reprise::engine {

// One entry of a safetensors header. Offsets count from the end of the header.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

inline constexpr uint64_t kSafetensorsHeaderMax = 100 << 20;  // The format's own limit.

// Parses the JSON header of a file whose tensor data are `data_bytes` long. Entries come sorted by
// offset, without gaps or overlaps. Hostile input gives an error that names the tensor.
absl::StatusOr<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                     uint64_t data_bytes);

}  // namespace reprise::engine
