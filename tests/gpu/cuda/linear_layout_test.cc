// The packed layout, read back as the threads of a warpgroup read it. Needs no GPU.
#include "gpu/cuda/linear_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "gpu/formats/number_formats.h"
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

uint32_t WordOf(const PackedLinear& packed, size_t tile, uint32_t thread, uint32_t at) {
  const uint8_t* codes = packed.codes.data() + tile * TileBytes(packed.format);
  uint32_t word;
  std::memcpy(&word, codes + at / 16 * 2048 + thread * 16 + at % 16, 4);
  return word;
}

// Register `pair` of step `step` of a thread before it is scaled, by the operations of Expand in
// linear_tiles.cuh.
uint32_t RegisterOf(const PackedLinear& packed, size_t tile, uint32_t thread, uint32_t step,
                    uint32_t pair) {
  if (packed.format == WeightFormat::kBf16) {
    return WordOf(packed, tile, thread, step * 16 + pair * 4);
  }
  if (packed.format == WeightFormat::kFp8) {
    const uint32_t word = WordOf(packed, tile, thread, step * 8 + pair / 2 * 4);
    return (pair % 2 == 0 ? word : word << 4 ^ word >> 4) & 0x87f087f0;
  }
  const uint32_t word = WordOf(packed, tile, thread, step * 4);
  switch (pair) {
    case 0:
      return word & 0x81c081c0;
    case 1:
      return word << 4 & 0x81c081c0;
    case 2:
      return std::rotl(word, 10) & 0x81c081c0;
    default:
      return (word << 6 ^ word >> 2) & 0x81c081c0;
  }
}

// The code that half a register holds; of FP4 and FP8 it stands as a bf16 of a small exponent.
uint32_t CodeOfHalf(WeightFormat format, uint32_t half) {
  if (format == WeightFormat::kBf16) return half;
  const uint32_t shift = format == WeightFormat::kFp8 ? 4 : 6;
  const uint32_t sign = format == WeightFormat::kFp8 ? 0x80 : 8;
  const uint32_t magnitude = (half & 0x7fff) >> shift;
  EXPECT_EQ(magnitude << shift, half & 0x7fff);
  EXPECT_LT(magnitude, sign);
  return magnitude | (half >> 15) * sign;
}

// The factor of a thread's row, as bf16: 0 is the upper one.
uint16_t FactorOf(const PackedLinear& packed, size_t tile, uint32_t thread, uint32_t lower,
                  uint32_t step) {
  const uint32_t place =
      packed.format == WeightFormat::kFp8 ? thread / 32 : thread / 32 * 8 + thread % 32 / 4;
  uint32_t word;
  std::memcpy(&word, packed.scales.data() + tile * TileScaleBytes(packed.format) + place * 4, 4);
  const uint32_t factors = (step < 2 ? word : std::rotr(word, 8)) & 0x7f807f80;
  return static_cast<uint16_t>(factors >> (16 * lower));
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
          const uint32_t both = RegisterOf(*packed, tile, thread, step, pair);
          ASSERT_EQ(CodeOfHalf(GetParam(), both & 0xffff), source.CodeOf(output, input))
              << output << " " << input;
          ASSERT_EQ(CodeOfHalf(GetParam(), both >> 16), source.CodeOf(output, input + 1))
              << output << " " << input;
        }
      }
      if (GetParam() == WeightFormat::kBf16) continue;
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t output = first_output + row + i / 2 * 8;
        const uint32_t group = first_input / 32 + i % 2;
        if (output >= source.outputs || group >= source.inputs / 32) continue;
        const uint32_t scale = source.scales[output * (source.inputs / 32) + group];
        const uint32_t bias = GetParam() == WeightFormat::kFp8 ? 120 : 126;
        ASSERT_EQ(FactorOf(*packed, tile, thread, i / 2, i % 2 * 2), (scale + bias) << 7);
      }
    }
  }
}

// Every code in every place with every scale that is taken: register times factor is the weight,
// and the weight is a bf16 value.
TEST_P(LinearLayoutTest, RegistersTimesFactorsAreTheWeights) {
  if (GetParam() == WeightFormat::kBf16) GTEST_SKIP() << "BF16 has no scales";
  const bool fp8 = GetParam() == WeightFormat::kFp8;
  const uint32_t codes = fp8 ? 256 : 16, largest = fp8 ? 134 : 128;
  for (uint32_t turn = 0; turn <= std::max(codes, largest); ++turn) {
    Source source(GetParam(), 64, 64);
    for (uint32_t o = 0; o < 64; ++o) {
      for (uint32_t i = 0; i < 64; ++i) {
        const uint32_t code = (o * 5 + i + turn) % codes;
        uint8_t& byte = source.codes[o * source.row_bytes() + (fp8 ? i : i / 2)];
        byte = static_cast<uint8_t>(fp8 ? code : i % 2 == 0 ? code : (byte & 15) | code << 4);
      }
      for (uint32_t g = 0; g < 2; ++g) {
        const uint32_t row = fp8 ? o / 32 : o;
        source.scales[o * 2 + g] = static_cast<uint8_t>((turn + row * 11 + g * 3) % (largest + 1));
      }
    }
    const absl::StatusOr<PackedLinear> packed = source.Pack();
    ASSERT_TRUE(packed.ok()) << packed.status();
    for (uint32_t thread = 0; thread < 128; ++thread) {
      for (uint32_t at = 0; at < 32; ++at) {
        const uint32_t step = at / 8, pair = at / 2 % 4, high = at % 2;
        const uint32_t output = thread / 32 * 16 + thread % 32 / 4 + pair % 2 * 8;
        const uint32_t input = step * 16 + thread % 4 * 2 + pair / 2 * 8 + high;
        const uint32_t code = source.CodeOf(output, input);
        if (fp8 && (code & 0x7f) == 0x7f) continue;  // No number.
        const uint32_t both = RegisterOf(*packed, 0, thread, step, pair);
        const float part = FromBf16(static_cast<uint16_t>(both >> (16 * high)));
        const float got = part * FromBf16(FactorOf(*packed, 0, thread, pair % 2, step));
        const float scale = std::ldexp(1.0f, source.scales[output * 2 + input / 32] - 127);
        const float value =
            fp8 ? FromE4m3(static_cast<uint8_t>(code)) : FromE2m1(static_cast<uint8_t>(code));
        ASSERT_EQ(got, value * scale) << output << " " << input << " turn " << turn;
        // Beneath the smallest exponents bf16 has fewer bits.
        if (!fp8 || std::fabs(got) >= 0x1p-120f) {
          ASSERT_EQ(FromBf16(ToBf16(got)), got);
        }
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
