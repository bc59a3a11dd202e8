#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace reprise::server {

// A pool that is not there, whose hits are estimated all the same (storage/what_if.h).
struct WhatIfSize {
  std::string tier;   // Of which it is a multiple: "dram", "ssd".
  std::string times;  // "0.5x" to "8x".
  uint64_t blocks = 0;
};

// Half, once, twice, four and eight times each tier, ascending by size. A tier of 0 blocks has
// none.
std::vector<WhatIfSize> WhatIfSizes(uint64_t dram_blocks, uint64_t ssd_blocks);

}  // namespace reprise::server
