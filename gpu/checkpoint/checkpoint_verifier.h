#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"

namespace reprise::engine {

// What a checkpoint holds against what its configuration asks for, from headers alone.
struct CheckpointReport {
  uint64_t tensors = 0;
  uint64_t tensors_expected = 0;
  uint64_t bytes = 0;
  uint64_t bytes_expected = 0;
  std::vector<std::string> missing;  // Names; at most kNamesMax of each kind.
  std::vector<std::string> unexpected;
  std::vector<std::string> wrong;  // "name: F8_E4M3 [512, 5120], expected BF16 [512, 5120]".
  uint64_t missing_count = 0;
  uint64_t unexpected_count = 0;
  uint64_t wrong_count = 0;

  static constexpr size_t kNamesMax = 100;
  bool ok() const { return missing_count == 0 && unexpected_count == 0 && wrong_count == 0; }
};

CheckpointReport VerifyCheckpoint(const ModelGeometry& geometry, const Checkpoint& checkpoint);

// Reads every UE8M0 and E4M3 tensor: a code that is NaN (0xFF; 0x7F and 0xFF) is an error that
// names the tensor and the byte. `progress` (may be empty) hears how many bytes are done.
absl::Status CheckScales(const Checkpoint& checkpoint,
                         const std::function<void(uint64_t bytes)>& progress = {});
// How many bytes CheckScales reads.
uint64_t ScaleCheckBytes(const Checkpoint& checkpoint);

}  // namespace reprise::engine
