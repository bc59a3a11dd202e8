#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace reprise {

static_assert(std::endian::native == std::endian::little,
              "records, frames and device pages are little-endian and read in place");

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

constexpr uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr uint64_t operator""_GiB(unsigned long long n) { return n << 30; }

inline constexpr uint32_t kPageBytes = 4096;

// `alignment` is a power of two.
constexpr uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) & ~(alignment - 1);
}
constexpr uint64_t DivideUp(uint64_t value, uint64_t divisor) {
  return (value + divisor - 1) / divisor;
}

template <typename T>
T LoadLe(const void* from) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void StoreLe(void* to, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
requires(std::is_trivially_copyable_v<T> &&
         !std::is_convertible_v<const T&, std::string_view>) ConstBytes AsBytes(const T& value) {
  return std::as_bytes(std::span<const T, 1>(&value, 1));
}
inline ConstBytes AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Lower-case hexadecimal.
std::string ToHex(ConstBytes bytes);
// False when `text` is not exactly 2 * out.size() hexadecimal digits.
[[nodiscard]] bool FromHex(std::string_view text, Bytes out);

}  // namespace reprise
