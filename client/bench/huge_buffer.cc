#include "client/bench/huge_buffer.h"

#include <sys/mman.h>

#include <cstring>

#include "protocol/base/units.h"

namespace reprise::bench {

HugeBuffer::~HugeBuffer() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

absl::Status HugeBuffer::Allocate(uint64_t bytes) {
  RP_CHECK(memory_.empty());
  const uint64_t rounded = AlignUp(bytes, 2_MiB);
  void* memory = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "allocating " + FormatBytes(rounded));
  memory_ = {static_cast<std::byte*>(memory), rounded};
  (void)madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 1, rounded);
  return absl::OkStatus();
}

}  // namespace reprise::bench
