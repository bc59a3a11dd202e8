#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "protocol/base/bytes.h"

namespace reprise::fuzz {

// An input taken apart from front to back; an end that comes early reads as zeros.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const std::byte*>(data), size) {}

  bool empty() const { return rest_.empty(); }
  ConstBytes rest() const { return rest_; }
  std::string_view text() const { return AsText(rest_); }

  template <typename T>
  T Take() {
    T value{};
    const ConstBytes bytes = TakeBytes(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // At most `count`.
  ConstBytes TakeBytes(size_t count) {
    const ConstBytes bytes = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(bytes.size());
    return bytes;
  }

 private:
  ConstBytes rest_;
};

}  // namespace reprise::fuzz
