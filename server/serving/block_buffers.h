#pragma once

#include <cstdint>
#include <vector>

#include "protocol/base/bytes.h"

namespace reprise::server {

// Memory for the blocks that active sequences compute: whole records, so that a finished block is
// sealed and put from where it lies. A fixed budget; what a request may need is reserved before it
// starts, so that a running one never waits for memory. One thread.
class BlockBuffers {
 public:
  // Buffers are aligned to 4 KiB. Memory is touched when it is first used.
  BlockBuffers(uint32_t record_bytes, uint32_t count);
  ~BlockBuffers();
  BlockBuffers(const BlockBuffers&) = delete;
  BlockBuffers& operator=(const BlockBuffers&) = delete;

  uint32_t count() const { return count_; }
  uint32_t reserved() const { return reserved_; }
  uint32_t record_bytes() const { return record_bytes_; }
  Bytes memory() const { return {memory_, size_t{record_bytes_} * count_}; }

  bool Reserve(uint32_t buffers) {
    if (buffers > count_ - reserved_) return false;
    reserved_ += buffers;
    return true;
  }
  void Unreserve(uint32_t buffers) { reserved_ -= buffers; }

  // REQUIRES: reserved. Zeroed: padding is part of a record's checksum.
  std::byte* Take();
  void Return(std::byte* buffer) { free_.push_back(buffer); }

 private:
  uint32_t record_bytes_;
  uint32_t count_;
  uint32_t reserved_ = 0;
  uint32_t never_used_ = 0;  // Buffers from here on were never taken.
  std::byte* memory_ = nullptr;
  std::vector<std::byte*> free_;
};

}  // namespace reprise::server
