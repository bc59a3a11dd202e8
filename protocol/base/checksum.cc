#include "protocol/base/checksum.h"

#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "protocol/base/check.h"
#include "protocol/base/clock.h"
#include "protocol/base/slicing_crc32c.h"

namespace reprise {
namespace {

using Kernel = uint32_t (*)(uint32_t state, ConstBytes bytes);

uint32_t IsalCrc32c(uint32_t state, ConstBytes bytes) {
  constexpr size_t kPieceBytes = 1u << 30;  // ISA-L takes an int length.
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), kPieceBytes);
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(count), state);
    bytes = bytes.subspan(count);
  }
  return state;
}

// The best of a few runs over 4 KiB: an interruption makes one slower, nothing makes one faster.
Nanos TimeOf(Kernel kernel, ConstBytes bytes) {
  const SystemClock clock;
  Nanos best = INT64_MAX;
  for (int run = 0; run < 4; ++run) {
    const Instant begin = clock.Now();
    volatile uint32_t state = kernel(0, bytes);  // Else it would not be computed.
    (void)state;
    best = std::min(best, clock.Now() - begin);
  }
  return best;
}

// A processor's word for its instructions is not enough: an emulated one has them, and takes
// several times as long as the tables.
Kernel Quickest() {
  const std::array<std::byte, 4096> bytes{};
  return TimeOf(SlicingCrc32c, bytes) < TimeOf(IsalCrc32c, bytes) ? SlicingCrc32c : IsalCrc32c;
}

}  // namespace

uint32_t Crc32c(ConstBytes bytes, uint32_t previous) {
  static const Kernel kernel = Quickest();
  return ~kernel(~previous, bytes);
}

uint32_t CopyCrc32c(ConstBytes from, Bytes to, uint32_t previous) {
  constexpr size_t kPieceBytes = 4096;
  RP_CHECK(from.size() <= to.size());
  while (!from.empty()) {
    const size_t count = std::min(from.size(), kPieceBytes);
    std::memcpy(to.data(), from.data(), count);
    previous = Crc32c(to.first(count), previous);
    from = from.subspan(count);
    to = to.subspan(count);
  }
  return previous;
}

}  // namespace reprise
