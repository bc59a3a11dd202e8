#include "protocol/base/slicing_crc32c.h"

#include <array>
#include <cstddef>

namespace reprise {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // Castagnoli's, reflected.
constexpr size_t kSlices = 16;

// [i][b]: what byte b does to the state when i more bytes follow it.
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t state = byte;
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = state;
  }
  for (size_t i = 1; i < kSlices; ++i) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[i - 1][byte];
      tables[i][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

// The 8 bytes of `word`, which `after` more bytes of the step follow.
uint32_t Step(uint64_t word, size_t after) {
  uint32_t state = 0;
  for (size_t i = 0; i < 8; ++i) state ^= kTables[after + 7 - i][(word >> (8 * i)) & 0xff];
  return state;
}

}  // namespace

uint32_t SlicingCrc32c(uint32_t state, ConstBytes bytes) {
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    state = Step(LoadLe<uint64_t>(bytes.data()) ^ state, 8) ^
            Step(LoadLe<uint64_t>(bytes.data() + 8), 0);
  }
  for (const std::byte byte : bytes) {
    state = (state >> 8) ^ kTables[0][(state ^ static_cast<uint32_t>(byte)) & 0xff];
  }
  return state;
}

}  // namespace reprise
