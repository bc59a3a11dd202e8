#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

#include "protocol/base/bytes.h"

namespace reprise::storage {

// Zeroed memory at a page border, as transfers want it.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(size_t bytes)
      : memory_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes}))),
        bytes_(bytes) {
    Clear();
  }

  void Clear() { std::memset(memory_.get(), 0, bytes_); }
  std::byte* data() const { return memory_.get(); }
  size_t size() const { return bytes_; }
  Bytes bytes() const { return {memory_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete (memory, std::align_val_t{kPageBytes});
    }
  };

  std::unique_ptr<std::byte[], Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace reprise::storage
