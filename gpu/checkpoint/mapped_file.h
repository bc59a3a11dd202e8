#pragma once

#include <string>
#include <utility>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

namespace reprise::engine {

// A whole file in memory, read-only, as it is needed. The file must not shrink meanwhile: touching
// bytes that it no longer has ends the process.
class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  ConstBytes bytes() const { return bytes_; }

 private:
  explicit MappedFile(ConstBytes bytes) : bytes_(bytes) {}

  ConstBytes bytes_;
};

}  // namespace reprise::engine
