#include "tests/gpu/cuda/kernel_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "gpu/formats/number_formats.h"
#include "gpu/formats/quantisers.h"
#include "protocol/base/prng.h"

namespace reprise::engine::cuda::test {
namespace {

float NormalLike(Prng* prng) {
  double sum = -2;
  for (int i = 0; i < 4; ++i) sum += prng->Unit();
  return static_cast<float>(sum * 1.732);  // Of variance 1.
}

// Codes with a sign bit, in the order of their values.
int OrderOf(uint32_t code, uint32_t sign) {
  const int magnitude = static_cast<int>(code & (sign - 1));
  return (code & sign) != 0 ? -magnitude : magnitude;
}

std::vector<uint8_t> RandomMemory(size_t bytes, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint8_t> out(bytes);
  for (uint8_t& byte : out) byte = static_cast<uint8_t>(prng.Below(256));
  return out;
}

size_t RowsOf(const std::vector<PartOfStep>& list) {
  size_t rows = 0;
  for (const PartOfStep& part : list) rows += part.rows;
  return rows;
}

}  // namespace

Bits RandomBits(size_t count, float scale, uint64_t seed) {
  Prng prng(seed);
  Bits bits(count);
  for (uint16_t& value : bits) value = ToBf16(scale * NormalLike(&prng));
  return bits;
}
Floats RandomFloats(size_t count, float middle, float scale, uint64_t seed) {
  Prng prng(seed);
  Floats values(count);
  for (float& value : values) value = middle + scale * NormalLike(&prng);
  return values;
}
Floats FromBits(const Bits& bits) {
  Floats values(bits.size());
  std::transform(bits.begin(), bits.end(), values.begin(), FromBf16);
  return values;
}
Bits ToBits(FloatSpan values) {
  Bits bits(values.size());
  std::transform(values.begin(), values.end(), bits.begin(), ToBf16);
  return bits;
}

void Launched(cudaError_t error) {
  Must(CudaStatus(error, "launch"));
  Must(CudaStatus(cudaDeviceSynchronize(), "kernel"));
}

// ---- Agreement ---------------------------------------------------------------------------------

void Agreement::Add(bool same, bool near, const std::string& got_and_want) {
  if (!same && !near && far_++ == 0) {
    first_far_ = "value " + std::to_string(all_) + ": " + got_and_want;
  }
  if (!same && near) ++near_;
  ++all_;
}

void Agreement::AddBf16(uint16_t got, float want, float slack, int steps) {
  const float value = FromBf16(got);
  const bool same = value == want;  // Zeros of either sign.
  const bool near = std::abs(OrderOf(got, 0x8000) - OrderOf(ToBf16(want), 0x8000)) <= steps ||
                    std::fabs(value - want) <= slack;
  if (std::isnan(value) || (!same && !near)) {
    return Add(false, false, std::to_string(value) + ", not " + std::to_string(want));
  }
  Add(same, near, "");
}
void Agreement::AddBf16(std::span<const uint16_t> got, FloatSpan want, float slack, int steps) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) AddBf16(got[i], want[i], slack, steps);
}

void Agreement::AddCodes(Quantiser quantiser, const uint8_t* codes, const uint8_t* scales,
                         const reference::Codes& want) {
  const bool nibbles = quantiser != Quantiser::kA;
  const size_t group = quantiser == Quantiser::kB ? kGroupB : kGroupA;
  const size_t count = want.codes.size() * (nibbles ? 2 : 1);
  const auto code_at = [&](const uint8_t* from, size_t i) -> uint8_t {
    return nibbles ? from[i / 2] >> (i % 2 * 4) & 15 : from[i];
  };
  const auto value_of = [&](uint8_t code, uint8_t scale) {
    const float unit = nibbles ? FromE2m1(code) : FromE4m3(code);
    return unit * (quantiser == Quantiser::kB ? FromE4m3(scale) : FromUe8m0(scale));
  };
  for (size_t begin = 0; begin < count; begin += group) {
    const uint8_t got_scale = scales[begin / group], want_scale = want.scales[begin / group];
    float largest = 0;
    for (size_t i = begin; i < begin + group; ++i) {
      largest = std::max(largest, std::fabs(value_of(code_at(want.codes.data(), i), want_scale)));
    }
    for (size_t i = begin; i < begin + group; ++i) {
      const uint8_t got_code = code_at(codes, i), want_code = code_at(want.codes.data(), i);
      const uint32_t sign = nibbles ? 8 : 128;
      const int steps = std::abs(OrderOf(got_code, sign) - OrderOf(want_code, sign));
      const float got_value = value_of(got_code, got_scale);
      const float want_value = value_of(want_code, want_scale);
      const bool same = got_scale == want_scale && steps == 0;
      bool near = got_scale == want_scale && steps <= 1;
      // Another scale: the largest lay on a boundary, and its code may take a step as well.
      if (std::abs(got_scale - want_scale) == 1) {
        near = std::fabs(got_value - want_value) <= largest * (nibbles ? 0.34f : 0.08f);
      }
      near = near || std::fabs(got_value - want_value) <= largest / 128;
      if (same || near) {
        Add(same, near, "");
        continue;
      }
      Add(false, false,
          std::to_string(got_value) + " (code " + std::to_string(got_code) + ", scale " +
              std::to_string(got_scale) + "), not " + std::to_string(want_value) + " (code " +
              std::to_string(want_code) + ", scale " + std::to_string(want_scale) + ")");
    }
  }
}

void Agreement::Expect() const {
  EXPECT_GT(all_, 0u) << what_;
  EXPECT_EQ(far_, 0u) << what_ << ", of " << all_ << "; the first is " << first_far_;
  // A few are no share of few.
  EXPECT_LE(near_, std::max<size_t>(2, all_ / 1000)) << what_ << ", of " << all_;
}

// ---- Rows of several sequences -----------------------------------------------------------------

const std::vector<std::vector<PartOfStep>>& AwkwardSteps() {
  static const auto* const steps = new std::vector<std::vector<PartOfStep>>{
      {{0, 1}},
      {{5, 3, 2, 6}},
      {{0, 1}, {7, 9, 3, 10}, {130, 6, 130, 131}, {1001, 1, 990, 0}},
      {{40, 65, 20, 61}},
      {{3, 120}, {9, 10, 9, 12}},
      {{0, 33}, {64, 200, 0, 101}, {511, 67, 500, 530}},
  };
  return *steps;
}

RandomStep::RandomStep(const std::vector<PartOfStep>& list, uint32_t pair_count,
                       const Memory& memory, uint64_t seed)
    : windows(RandomMemory(list.size() * memory.window_bytes, seed)),
      payloads(RandomMemory(list.size() * memory.blocks * memory.payload_bytes, seed + 1)),
      memory_(memory),
      device_windows_(windows),
      device_payloads_(payloads),
      device_parts_(list.size()),
      device_part_of_row_(RowsOf(list)),
      device_positions_(RowsOf(list)),
      device_tokens_(RowsOf(list)),
      device_image_(RowsOf(list)),
      device_blocks_(list.size() * memory.blocks) {
  Prng prng(seed + 2);
  for (const PartOfStep& part : list) {
    const auto index = static_cast<uint32_t>(parts.size());
    parts.push_back({.window = reinterpret_cast<std::byte*>(device_windows_.data()) +
                               index * memory.window_bytes,
                     .first_block = index * memory.blocks,
                     .row = static_cast<uint32_t>(positions.size()),
                     .rows = part.rows,
                     .first = part.first,
                     .windows_from = part.windows_from,
                     .write_from = part.write_from});
    for (uint32_t i = 0; i < part.rows; ++i) {
      part_of_row.push_back(index);
      positions.push_back(part.first + i);
      tokens.push_back(static_cast<int32_t>(prng.Below(97)));
      image.push_back(prng.Chance(250) ? 1 : 0);
    }
  }
  const auto blocks = static_cast<uint32_t>(list.size()) * memory.blocks;
  std::vector<std::byte*> block_list(blocks);
  place_of_block_.resize(blocks);
  for (uint32_t i = 0; i < blocks; ++i) place_of_block_[i] = i;
  for (uint32_t i = blocks; i > 1; --i) {
    std::swap(place_of_block_[i - 1], place_of_block_[prng.Below(i)]);
  }
  for (uint32_t i = 0; i < blocks; ++i) {
    block_list[i] = reinterpret_cast<std::byte*>(device_payloads_.data()) +
                    place_of_block_[i] * memory.payload_bytes;
  }
  device_parts_.Put(parts);
  device_part_of_row_.Put(part_of_row);
  device_positions_.Put(positions);
  device_tokens_.Put(tokens);
  device_image_.Put(image);
  device_blocks_.Put(block_list);
  view_ = {.rows = static_cast<uint32_t>(positions.size()),
           .parts = static_cast<uint32_t>(parts.size()),
           .part = device_parts_.data(),
           .part_of_row = device_part_of_row_.data(),
           .positions = device_positions_.data(),
           .tokens = device_tokens_.data(),
           .image = device_image_.data(),
           .blocks = device_blocks_.data(),
           .pairs = pair_count};
  for (int kind = 0; kind < 2; ++kind) {
    for (const uint32_t position : positions) {
      for (uint32_t i = 0; i < pair_count; ++i) {
        const double angle = position * std::pow(kind == 0 ? 0.7 : 0.8, i);
        cosines[kind].push_back(static_cast<float>(std::cos(angle)));
        sines[kind].push_back(static_cast<float>(std::sin(angle)));
      }
    }
    if (pair_count == 0) continue;
    view_.cosines[kind] = device_turns_.emplace_back(cosines[kind]).data();
    view_.sines[kind] = device_turns_.emplace_back(sines[kind]).data();
  }
}

reference::Rotation RandomStep::rotation(int kind, uint32_t row) const {
  return {.cosines = cosines[kind].data() + size_t{row} * view_.pairs,
          .sines = sines[kind].data() + size_t{row} * view_.pairs,
          .pairs = view_.pairs};
}
uint8_t* RandomStep::payload(uint32_t part, uint32_t block) {
  return &payloads[place_of_block_[part * memory_.blocks + block] * memory_.payload_bytes];
}

}  // namespace reprise::engine::cuda::test
