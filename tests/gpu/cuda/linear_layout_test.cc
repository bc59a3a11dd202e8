// The packed layout, read back as the threads of a warpgroup read it. Needs no GPU.
#include "gpu/cuda/linear_layout.h"

#include <gtest/gtest.h>

#include <cstring>

#include "protocol/base/prng.h"

namespace reprise::engine::cuda {
namespace {

struct Source {
  Source(WeightFormat wanted, uint32_t output_count, uint32_t input_count)
      : format(wanted), outputs(output_count), inputs(input_count) {
    Prng prng(3);
    codes.resize(outputs * row_bytes());
    scales.resize(size_t{outputs} * (inputs / 32));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(prng.Below(256));
    for (uint32_t o = 0; o < outputs; ++o) {
      for (uint32_t g = 0; g < inputs / 32; ++g) {  // FP8: of blocks of 32 rows.
        const uint32_t row = format == WeightFormat::kFp8 ? o / 32 * 32 : o;
        scales[o * (inputs / 32) + g] = static_cast<uint8_t>(100 + (row * 7 + g * 3) % 20);
      }
    }
  }
  size_t row_bytes() const { return size_t{inputs} * 2 >> static_cast<int>(format); }
  // The code of a weight: 16, 8 or 4 bits.
  uint32_t CodeOf(uint32_t output, uint32_t input) const {
    if (output >= outputs || input >= inputs) return 0;
    const uint8_t* row = &codes[output * row_bytes()];
    if (format == WeightFormat::kBf16) return row[2 * input] | row[2 * input + 1] << 8;
    if (format == WeightFormat::kFp8) return row[input];
    return row[input / 2] >> (input % 2 * 4) & 15;
  }
  absl::StatusOr<PackedLinear> Pack() const {
    return PackLinear("test", format, outputs, inputs, [this](uint32_t o) {
      return WeightRow{.codes = &codes[o * row_bytes()], .scales = &scales[o * (inputs / 32)]};
    });
  }

  WeightFormat format;
  uint32_t outputs, inputs;
  std::vector<uint8_t> codes, scales;
};

// Register `pair` of step `step` of a thread, as its two codes: low half, high half.
std::pair<uint32_t, uint32_t> RegisterOf(const PackedLinear& packed, size_t tile, uint32_t thread,
                                         uint32_t step, uint32_t pair) {
  const uint8_t* codes = packed.codes.data() + tile * TileBytes(packed.format);
  const auto byte = [&](uint32_t at) { return codes[at / 16 * 2048 + thread * 16 + at % 16]; };
  if (packed.format == WeightFormat::kBf16) {
    const uint32_t at = step * 16 + pair * 4;
    return {byte(at) | byte(at + 1) << 8, byte(at + 2) | byte(at + 3) << 8};
  }
  if (packed.format == WeightFormat::kFp8) {
    return {byte(step * 8 + pair * 2), byte(step * 8 + pair * 2 + 1)};
  }
  uint32_t word = 0;
  for (uint32_t i = 0; i < 4; ++i) word |= uint32_t{byte(step * 4 + i)} << (8 * i);
  word <<= 4 * pair;  // The nibbles on top of both halves.
  return {word >> 12 & 15, word >> 28};
}

class LinearLayoutTest : public testing::TestWithParam<WeightFormat> {};

TEST_P(LinearLayoutTest, EveryThreadFindsItsPartOfOperandA) {
  const Source source(GetParam(), 160, 224);  // Neither is a whole number of tiles.
  const absl::StatusOr<PackedLinear> packed = source.Pack();
  ASSERT_TRUE(packed.ok());
  ASSERT_EQ(packed->output_tiles, 3u);
  ASSERT_EQ(packed->input_tiles, 4u);
  for (uint32_t tile = 0; tile < 12; ++tile) {
    const uint32_t first_output = tile / 4 * 64, first_input = tile % 4 * 64;
    for (uint32_t thread = 0; thread < 128; ++thread) {
      // wgmma's operand A, m64k16: rows of a warp's lanes, and inputs in pairs.
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
      for (uint32_t step = 0; step < 4; ++step) {
        for (uint32_t pair = 0; pair < 4; ++pair) {
          const uint32_t output = first_output + row + pair % 2 * 8;
          const uint32_t input = first_input + step * 16 + column + pair / 2 * 8;
          const auto [low, high] = RegisterOf(*packed, tile, thread, step, pair);
          ASSERT_EQ(low, source.CodeOf(output, input)) << output << " " << input;
          ASSERT_EQ(high, source.CodeOf(output, input + 1)) << output << " " << input;
        }
      }
      if (GetParam() == WeightFormat::kBf16) continue;
      const uint32_t word =
          GetParam() == WeightFormat::kFp8 ? thread / 32 : thread / 32 * 8 + thread % 32 / 4;
      const uint8_t* scales = packed->scales.data() + tile * TileScaleBytes(GetParam()) + word * 4;
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t output = first_output + row + i / 2 * 8;
        const uint32_t group = first_input / 32 + i % 2;
        if (output >= source.outputs || group >= source.inputs / 32) continue;
        ASSERT_EQ(scales[i], source.scales[output * (source.inputs / 32) + group]);
      }
    }
  }
}

TEST_P(LinearLayoutTest, AScaleThatNoBf16WeightHasIsRefusedByName) {
  if (GetParam() == WeightFormat::kBf16) GTEST_SKIP() << "BF16 has no scales";
  Source source(GetParam(), 64, 64);
  source.scales[5] = 150;
  const absl::Status status = source.Pack().status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_NE(std::string(status.message()).find("test: output 2"), std::string::npos) << status;
}

std::string LayoutName(const testing::TestParamInfo<WeightFormat>& info) {
  static constexpr const char* kNames[] = {"Bf16", "Fp8", "Fp4"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Formats, LinearLayoutTest,
                         testing::Values(WeightFormat::kBf16, WeightFormat::kFp8,
                                         WeightFormat::kFp4),
                         LayoutName);

}  // namespace
}  // namespace reprise::engine::cuda
