#include "server/serving/block_buffers.h"

#include <cstring>
#include <new>

#include "protocol/base/check.h"

namespace reprise::server {
namespace {

constexpr std::align_val_t kAlignment{4096};

}  // namespace

BlockBuffers::BlockBuffers(uint32_t record_bytes, uint32_t count)
    : record_bytes_(record_bytes),
      count_(count),
      memory_(static_cast<std::byte*>(::operator new (size_t{record_bytes} * count, kAlignment))) {}

BlockBuffers::~BlockBuffers() { ::operator delete(memory_, kAlignment); }

std::byte* BlockBuffers::Take() {
  std::byte* buffer = nullptr;
  if (!free_.empty()) {
    buffer = free_.back();
    free_.pop_back();
  } else {
    RP_CHECK(never_used_ < reserved_);
    buffer = memory_ + size_t{never_used_++} * record_bytes_;
  }
  std::memset(buffer, 0, record_bytes_);
  return buffer;
}

}  // namespace reprise::server
