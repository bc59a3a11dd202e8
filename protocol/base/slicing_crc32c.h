#pragma once

#include <cstdint>

#include "protocol/base/bytes.h"

namespace reprise {

// The state of a CRC32C (its value, inverted) after `bytes`, by table look-ups alone: 16 bytes a
// step, in 16 KiB of tables.
uint32_t SlicingCrc32c(uint32_t state, ConstBytes bytes);

}  // namespace reprise
