#include "protocol/base/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace reprise {

uint32_t Crc32c(ConstBytes bytes, uint32_t previous) {
  constexpr size_t kPieceBytes = 1u << 30;  // ISA-L takes an int length.
  uint32_t state = ~previous;
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kPieceBytes);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return ~state;
}

}  // namespace reprise
