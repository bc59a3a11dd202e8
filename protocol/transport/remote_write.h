#pragma once

#include <cstdint>

#include "protocol/base/bytes.h"

namespace reprise {

// Bytes that go straight into memory which the peer registered (RDMA WRITE).
struct RemoteWrite {
  ConstBytes data;       // In memory that the sender's device may read.
  uint64_t address = 0;  // The peer's.
  uint32_t key = 0;      // The peer's, for that memory.
  bool told = false;     // The peer learns `tag` once this write and all before it have landed.
  uint32_t tag = 0;
};

}  // namespace reprise
