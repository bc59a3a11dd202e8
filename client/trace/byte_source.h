#pragma once

#include <memory>
#include <string>

#include "protocol/base/bytes.h"
#include "protocol/base/status.h"

namespace reprise {

// Bytes from front to back.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Fills a part of `out`, at least one byte; 0 at the end.
  virtual absl::StatusOr<size_t> Read(Bytes out) = 0;
};

// Opens a file (or stdin, "-") and decompresses it when its first bytes say gzip or zstd, whatever
// its name. Several compressed members or frames in one file are read as one; a file that ends
// inside one is an error.
absl::StatusOr<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path);

}  // namespace reprise
