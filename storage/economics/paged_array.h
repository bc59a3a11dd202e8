#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

namespace reprise::economics {

// Bytes that only grow, in a nameless file in the folder for temporary files ($TMPDIR, else /tmp)
// that is mapped: the kernel writes out what memory has no room for, so they may be more than fit
// in memory. Nothing is opened before the first byte. Movable. Written by one thread, then read by
// any number.
class PagedBytes {
 public:
  PagedBytes() = default;
  PagedBytes(PagedBytes&& other) noexcept;
  PagedBytes& operator=(PagedBytes&& other) noexcept;
  ~PagedBytes();

  // Moves what is there: pointers into it end. Fails where the file cannot be made or has no room.
  absl::Status Append(ConstBytes bytes);

  const std::byte* data() const { return memory_; }
  uint64_t size() const { return size_; }

 private:
  absl::Status Grow(uint64_t needed);

  int file_ = -1;
  std::byte* memory_ = nullptr;
  uint64_t size_ = 0, capacity_ = 0;
};

// Values of one plain type in PagedBytes.
template <typename T>
class PagedArray {
  static_assert(std::is_trivially_copyable_v<T> && alignof(T) <= 16);

 public:
  absl::Status Append(const T& value) { return Append(std::span(&value, 1)); }
  absl::Status Append(std::span<const T> values) { return bytes_.Append(std::as_bytes(values)); }

  uint64_t size() const { return bytes_.size() / sizeof(T); }
  bool empty() const { return bytes_.size() == 0; }
  std::span<const T> span() const {
    return {reinterpret_cast<const T*>(bytes_.data()), static_cast<size_t>(size())};
  }
  const T& operator[](uint64_t index) const { return span()[index]; }

 private:
  PagedBytes bytes_;
};

}  // namespace reprise::economics
