#include "client/receive_buffers.h"

#include <sys/mman.h>

#include <algorithm>

namespace reprise {

ReceiveBuffers::~ReceiveBuffers() {
  for (const Bytes buffer : kept_) munmap(buffer.data(), buffer.size());
}

Bytes ReceiveBuffers::Take(uint64_t bytes) {
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (it->size() >= bytes && (best == kept_.end() || it->size() < best->size())) best = it;
  }
  if (best != kept_.end()) {
    const Bytes buffer = *best;
    kept_bytes_ -= buffer.size();
    *best = kept_.back();
    kept_.pop_back();
    return buffer;
  }
  const uint64_t mapped_bytes = AlignUp(std::max<uint64_t>(bytes, 1), kStepBytes);
  void* memory =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  madvise(memory, mapped_bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), mapped_bytes};
}

void ReceiveBuffers::Return(Bytes buffer) {
  if (buffer.empty()) return;
  if (kept_bytes_ + buffer.size() > kKeptBytesMax) {
    if (on_unmap_) on_unmap_(buffer);
    munmap(buffer.data(), buffer.size());
    return;
  }
  kept_bytes_ += buffer.size();
  kept_.push_back(buffer);
}

}  // namespace reprise
