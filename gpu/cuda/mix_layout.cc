#include "gpu/cuda/mix_layout.h"

#include "gpu/formats/number_formats.h"
#include "protocol/base/check.h"

namespace reprise::engine::cuda {

std::vector<uint16_t> PackMix(std::span<const float> fn, uint32_t hidden) {
  constexpr uint32_t kCopies = 4, kTile = 64;
  RP_CHECK(hidden % kTile == 0 && fn.size() == size_t{kMixes} * kCopies * hidden);
  std::vector<uint16_t> out(size_t{hidden / kTile} * kCopies * kMixTileValues);
  for (uint32_t mix = 0; mix < kMixes; ++mix) {
    for (uint32_t i = 0; i < kCopies * hidden; ++i) {
      const uint32_t copy = i / hidden, d = i % hidden;
      uint16_t* const tile = &out[(size_t{d / kTile} * kCopies + copy) * kMixTileValues];
      float rest = fn[size_t{mix} * kCopies * hidden + i];
      for (uint32_t piece = 0; piece < kMixPieces; ++piece) {
        const uint16_t bits = ToBf16(rest);
        const uint32_t row = piece * kMixes + mix, eight = d % kTile / 8;
        tile[row * kTile + ((eight ^ (row & 7)) * 8) + d % 8] = bits;
        rest -= FromBf16(bits);
      }
    }
  }
  return out;
}

}  // namespace reprise::engine::cuda
