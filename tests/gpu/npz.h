#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "protocol/base/bytes.h"
#include "protocol/base/check.h"

// A reader of NumPy's .npz files, for tests: a zip archive of .npy arrays, stored or deflated.
namespace reprise {

// An array in C order. dtype is NumPy's kind and width, without the byte order: one of f4, f8, i2,
// i4, i8, u1, u2, u4 and b1.
struct NpyArray {
  std::string dtype;
  std::vector<uint64_t> shape;  // Empty for a scalar.
  std::vector<std::byte> bytes;

  // Elements, the product of the shape.
  uint64_t size() const;

  // The elements as T, which must be the C++ type of dtype (bool for b1). Valid as long as this.
  template <typename T>
  std::span<const T> As() const {
    RP_CHECK(dtype == DtypeOf<T>());
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  template <typename T>
  static std::string DtypeOf() {
    const char* kind = std::is_same_v<T, bool>       ? "b"
                       : std::is_floating_point_v<T> ? "f"
                       : std::is_signed_v<T>         ? "i"
                                                     : "u";
    return kind + std::to_string(sizeof(T));
  }
};

// Parses one .npy file, format 1.0 or 2.0.
absl::StatusOr<NpyArray> ParseNpy(ConstBytes file);

class Npz {
 public:
  // Reads every array of the file at once, and checks the archive's checksums.
  static absl::StatusOr<Npz> Load(const std::string& path);
  // The same from memory; errors begin with `name`.
  static absl::StatusOr<Npz> Parse(ConstBytes archive, std::string_view name);

  // Null when there is no such array. Names are those given to numpy.savez, without ".npy".
  const NpyArray* Find(std::string_view name) const;

  // All arrays, sorted by name.
  const std::map<std::string, NpyArray, std::less<>>& arrays() const { return arrays_; }

 private:
  std::map<std::string, NpyArray, std::less<>> arrays_;
};

}  // namespace reprise
