#pragma once

#include <cstdint>

#include "protocol/base/types.h"

namespace reprise::storage {

// A key for tests that count their blocks.
inline BlockKey Key(uint64_t number) { return {.low = number, .high = 0}; }

}  // namespace reprise::storage
