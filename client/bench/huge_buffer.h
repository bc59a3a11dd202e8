#pragma once

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

namespace reprise::bench {

// Private memory in 2 MiB pages where the machine gives them, touched at once: a page fault in the
// middle of a measurement costs more than copying the page.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  ~HugeBuffer();
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  absl::Status Allocate(uint64_t bytes);  // Once.
  Bytes bytes() const { return memory_; }

 private:
  Bytes memory_;
};

}  // namespace reprise::bench
