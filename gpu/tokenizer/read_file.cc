#include "gpu/tokenizer/read_file.h"

#include <fstream>

#include "protocol/base/units.h"

namespace reprise::engine {

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  constexpr size_t kChunkBytes = size_t{1} << 20;
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(errno, "cannot open " + path);
  std::string bytes;
  while (file) {
    const size_t before = bytes.size();
    bytes.resize(before + kChunkBytes);
    file.read(bytes.data() + before, static_cast<std::streamsize>(kChunkBytes));
    bytes.resize(before + static_cast<size_t>(file.gcount()));
    if (bytes.size() > bytes_max) {
      return InvalidArgument(path + " has more than " + FormatBytes(bytes_max) +
                             "; is it the right file?");
    }
  }
  if (file.bad()) return ErrnoStatus(errno, "cannot read " + path);
  return bytes;
}

}  // namespace reprise::engine
