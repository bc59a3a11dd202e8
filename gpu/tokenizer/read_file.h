#pragma once

#include <string>

#include "protocol/base/status.h"

namespace reprise::engine {

// The bytes of a file; one with more than `bytes_max` is refused.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max);

}  // namespace reprise::engine
