#include "server/what_if_sizes.h"

#include <algorithm>

namespace reprise::server {

std::vector<WhatIfSize> WhatIfSizes(uint64_t dram_blocks, uint64_t ssd_blocks) {
  std::vector<WhatIfSize> sizes;
  const auto add = [&sizes](const char* tier, uint64_t blocks) {
    if (blocks == 0) return;
    sizes.push_back({tier, "0.5x", blocks / 2});
    for (const uint64_t times : {1u, 2u, 4u, 8u}) {
      sizes.push_back({tier, std::to_string(times) + "x", blocks * times});
    }
  };
  add("dram", dram_blocks);
  add("ssd", ssd_blocks);
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const WhatIfSize& a, const WhatIfSize& b) { return a.blocks < b.blocks; });
  return sizes;
}

}  // namespace reprise::server
