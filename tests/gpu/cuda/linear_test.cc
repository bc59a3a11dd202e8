// Products with packed weights against sums in double, on random data of awkward shapes.
#include "gpu/cuda/linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>

#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// A random matrix: as codes, and as what they mean.
struct RandomMatrix {
  RandomMatrix(WeightFormat wanted, uint32_t output_count, uint32_t input_count, uint64_t seed)
      : format(wanted), outputs(output_count), inputs(input_count) {
    Prng prng(seed);
    const size_t row_bytes = size_t{inputs} * 2 >> static_cast<int>(format);
    codes.resize(outputs * row_bytes);
    scales.resize(size_t{outputs} * (inputs / 32));
    values.resize(size_t{outputs} * inputs);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(118 + prng.Below(6));
    for (uint32_t o = 0; o < outputs; ++o) {
      for (uint32_t i = 0; i < inputs; ++i) {
        if (format == WeightFormat::kFp8) {  // Blocks of 32 x 32.
          scales[o * (inputs / 32) + i / 32] = scales[o / 32 * 32 * (inputs / 32) + i / 32];
        }
        const float scale = FromUe8m0(scales[o * (inputs / 32) + i / 32]);
        float& value = values[size_t{o} * inputs + i];
        uint8_t* row = &codes[o * row_bytes];
        if (format == WeightFormat::kBf16) {
          const uint16_t bits =
              ToBf16(static_cast<float>(static_cast<int>(prng.Below(2001)) - 1000) * 0.0001f);
          std::memcpy(row + 2 * i, &bits, 2);
          value = FromBf16(bits);
        } else if (format == WeightFormat::kFp8) {
          uint8_t code = static_cast<uint8_t>(prng.Below(256));
          if ((code & 0x7f) == 0x7f) code = 0x7e;
          row[i] = code;
          value = FromE4m3(code) * scale;
        } else {
          const uint32_t code = static_cast<uint32_t>(prng.Below(16));
          row[i / 2] |= static_cast<uint8_t>(code << (i % 2 * 4));
          value = FromE2m1(static_cast<uint8_t>(code)) * scale;
        }
      }
    }
  }
  PackedLinear Pack() const {
    return Must(PackLinear("test", format, outputs, inputs, [this](uint32_t o) {
      const size_t row_bytes = size_t{inputs} * 2 >> static_cast<int>(format);
      return WeightRow{.codes = &codes[o * row_bytes], .scales = &scales[o * (inputs / 32)]};
    }));
  }

  WeightFormat format;
  uint32_t outputs, inputs;
  std::vector<uint8_t> codes, scales;
  std::vector<float> values;
};

struct PackedOnDevice {
  explicit PackedOnDevice(const PackedLinear& packed, uint32_t slices = 8)
      : codes(packed.codes),
        scales(packed.scales.empty() ? std::vector<uint8_t>(1) : packed.scales) {
    view = {.format = packed.format,
            .outputs = packed.outputs,
            .inputs = packed.inputs,
            .output_tiles = packed.output_tiles,
            .input_tiles = packed.input_tiles,
            .slices = slices,
            .codes = codes.data(),
            .scales = scales.data()};
  }
  OnDevice<uint8_t> codes, scales;
  DeviceLinear view;
};

std::vector<uint16_t> RandomRows(size_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint16_t> x(count);
  for (uint16_t& value : x) {
    value = ToBf16(static_cast<float>(static_cast<int>(prng.Below(4001)) - 2000) * 0.001f);
  }
  return x;
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kFp4};
std::string NameOfFormat(WeightFormat format) {
  static constexpr const char* kNames[] = {"Bf16", "Fp8", "Fp4"};
  return kNames[static_cast<int>(format)];
}

struct Shape {
  uint32_t outputs, inputs, rows;
};
class TileTest : public testing::TestWithParam<std::tuple<WeightFormat, Shape>> {};

TEST_P(TileTest, EveryTileGivesTheSumsAndTheSameBytes) {
  RP_NEEDS_DEVICE();
  const auto& [format, shape] = GetParam();
  const RandomMatrix matrix(format, shape.outputs, shape.inputs, shape.rows);
  const std::vector<uint16_t> x = RandomRows(size_t{shape.rows} * shape.inputs, 7);
  const OnDevice<uint16_t> device_x(x);
  for (const uint32_t slices : {1u, 2u, 4u, 8u}) {
    const PackedOnDevice packed(matrix.Pack(), slices);
    std::vector<float> first;
    const struct {
      uint32_t tile;
      DenseBlocks blocks = DenseBlocks::kQuickest;
    } kernels[] = {{8},
                   {16},
                   {32},
                   {64},
                   {128, DenseBlocks::kTwoTiles},
                   {128, DenseBlocks::kThreeTiles},
                   {128, DenseBlocks::kFourTiles},
                   {128, DenseBlocks::kAllSlices}};
    for (const auto& [tile, blocks] : kernels) {
      SCOPED_TRACE(std::to_string(tile) + " rows, blocks " +
                   std::to_string(static_cast<int>(blocks)));
      const OnDevice<float> y(size_t{shape.rows} * shape.outputs);
      const LinearCall call{.matrix = packed.view,
                            .output = LinearOutput::kFloat,
                            .x = device_x.data(),
                            .x_stride = shape.inputs,
                            .y = y.data(),
                            .y_stride = shape.outputs,
                            .rows = shape.rows};
      Must(CudaStatus(LaunchDenseLinear(call, tile, blocks, nullptr), "linear"));
      Must(CudaStatus(cudaDeviceSynchronize(), "linear"));
      const std::vector<float> got = y.Get();
      if (!first.empty()) {
        size_t other = 0, at = 0;
        for (size_t i = 0; i < got.size(); ++i) {
          if (std::memcmp(&got[i], &first[i], 4) == 0) continue;
          at = other++ == 0 ? i : at;
        }
        EXPECT_EQ(other, 0u) << "the first in row " << at / shape.outputs << ", output "
                             << at % shape.outputs << ": " << got[at] << ", not " << first[at]
                             << ", in slices: " << slices;
        continue;
      }
      first = got;
      double error = 0, norm = 0;
      for (uint32_t r = 0; r < shape.rows; ++r) {
        for (uint32_t o = 0; o < shape.outputs; ++o) {
          double want = 0;
          for (uint32_t i = 0; i < shape.inputs; ++i) {
            want += double{FromBf16(x[size_t{r} * shape.inputs + i])} *
                    matrix.values[size_t{o} * shape.inputs + i];
          }
          const double difference = got[size_t{r} * shape.outputs + o] - want;
          error += difference * difference;
          norm += want * want;
        }
      }
      EXPECT_LT(std::sqrt(error / norm), 1e-5);
    }
  }
}
std::string NameOfShape(const testing::TestParamInfo<TileTest::ParamType>& test) {
  const auto& [format, shape] = test.param;
  return NameOfFormat(format) + "_" + std::to_string(shape.outputs) + "By" +
         std::to_string(shape.inputs) + "Rows" + std::to_string(shape.rows);
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, TileTest,
    testing::Combine(testing::ValuesIn(kFormats),
                     testing::Values(Shape{64, 64, 1}, Shape{64, 128, 8}, Shape{320, 512, 9},
                                     Shape{130, 320, 70}, Shape{288, 384, 200},
                                     Shape{512, 5120, 131}, Shape{704, 640, 300})),
    NameOfShape);

class LinearTest : public testing::TestWithParam<WeightFormat> {};

TEST_P(LinearTest, Bf16OutputsOfBlocks) {
  RP_NEEDS_DEVICE();
  // Two blocks of 128 outputs read inputs [0, 192) and [192, 384).
  const RandomMatrix matrix(GetParam(), 256, 192, 5);
  const PackedOnDevice packed(matrix.Pack());
  const std::vector<uint16_t> x = RandomRows(20 * 384, 8);
  const OnDevice<uint16_t> device_x(x);
  for (const uint32_t tile : {8u, 32u, 128u}) {
    const OnDevice<uint16_t> y(20 * 256);
    Must(CudaStatus(LaunchLinear({.matrix = packed.view,
                                  .x = device_x.data(),
                                  .x_stride = 384,
                                  .y = y.data(),
                                  .y_stride = 256,
                                  .rows = 20,
                                  .block_outputs = 128,
                                  .block_inputs = 192},
                                 tile, nullptr),
                    "linear"));
    const std::vector<uint16_t> got = y.Get();
    for (uint32_t r = 0; r < 20; ++r) {
      for (uint32_t o = 0; o < 256; ++o) {
        double want = 0;
        for (uint32_t i = 0; i < 192; ++i) {
          want += double{FromBf16(x[r * 384 + o / 128 * 192 + i])} * matrix.values[o * 192 + i];
        }
        ASSERT_NEAR(FromBf16(got[r * 256 + o]), want, std::fabs(want) / 200 + 1e-3)
            << r << " " << o << " tile " << tile;
      }
    }
  }
}

TEST_P(LinearTest, GatheredRowsGiveTheBytesOfTheRowsThemselves) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kOutputs = 200, kInputs = 320, kRows = 150;
  const RandomMatrix matrix(GetParam(), kOutputs, kInputs, 6);
  const PackedOnDevice packed(matrix.Pack(), 1);
  const std::vector<uint16_t> x = RandomRows(40 * kInputs, 9);
  std::vector<uint32_t> gather(kRows);
  std::vector<uint16_t> rows;
  for (uint32_t i = 0; i < kRows; ++i) {
    gather[i] = (i * 7 + 3) % 40;
    const auto from = x.begin() + gather[i] * kInputs;
    rows.insert(rows.end(), from, from + kInputs);
  }
  const OnDevice<uint16_t> device_x(x), device_rows(rows);
  const OnDevice<uint32_t> device_gather(gather);
  LinearCall call{.matrix = packed.view,
                  .x = device_rows.data(),
                  .x_stride = kInputs,
                  .y_stride = kOutputs,
                  .rows = kRows};
  const OnDevice<uint16_t> want(kRows * kOutputs);
  call.y = want.data();
  Must(CudaStatus(LaunchLinear(call, 8, nullptr), "linear"));
  call.x = device_x.data();
  call.gather = device_gather.data();
  for (const uint32_t tile : {8u, 16u, 32u, 64u, 128u}) {
    const OnDevice<uint16_t> y(kRows * kOutputs);
    call.y = y.data();
    Must(CudaStatus(LaunchLinear(call, tile, nullptr), "linear"));
    EXPECT_TRUE(y.Get() == want.Get()) << "tile " << tile;
  }
}

TEST_P(LinearTest, SwigluOfInterleavedRows) {
  RP_NEEDS_DEVICE();
  const uint32_t inner = 96, inputs = 128, rows = 21;
  const RandomMatrix w1(GetParam(), inner, inputs, 11), w3(GetParam(), inner, inputs, 12);
  const size_t row_bytes = size_t{inputs} * 2 >> static_cast<int>(GetParam());
  const PackedOnDevice packed(
      Must(PackLinear("test", GetParam(), 2 * inner, inputs, [&](uint32_t o) {
        const RandomMatrix& from = o % 16 < 8 ? w1 : w3;
        const uint32_t row = o / 16 * 8 + o % 8;
        return WeightRow{.codes = &from.codes[row * row_bytes],
                         .scales = &from.scales[row * (inputs / 32)]};
      })));
  const std::vector<uint16_t> x = RandomRows(rows * inputs, 13);
  const OnDevice<uint16_t> device_x(x);
  std::vector<float> weights(rows);
  for (uint32_t i = 0; i < rows; ++i) weights[i] = 0.25f + 0.1f * static_cast<float>(i);
  const OnDevice<float> device_weights(weights);
  for (const uint32_t tile : {8u, 64u, 128u}) {
    const OnDevice<uint16_t> y(rows * inner);
    Must(CudaStatus(LaunchLinear({.matrix = packed.view,
                                  .output = LinearOutput::kSwiglu,
                                  .x = device_x.data(),
                                  .x_stride = inputs,
                                  .y = y.data(),
                                  .y_stride = inner,
                                  .rows = rows,
                                  .limit = 10,
                                  .row_weights = device_weights.data()},
                                 tile, nullptr),
                    "linear"));
    const std::vector<uint16_t> got = y.Get();
    for (uint32_t r = 0; r < rows; ++r) {
      for (uint32_t o = 0; o < inner; ++o) {
        double a = 0, c = 0;
        for (uint32_t i = 0; i < inputs; ++i) {
          a += double{FromBf16(x[r * inputs + i])} * w1.values[o * inputs + i];
          c += double{FromBf16(x[r * inputs + i])} * w3.values[o * inputs + i];
        }
        a = std::min(double{FromBf16(ToBf16(static_cast<float>(a)))}, 10.0);
        c = std::clamp(double{FromBf16(ToBf16(static_cast<float>(c)))}, -10.0, 10.0);
        const double want = a / (1 + std::exp(-a)) * c * weights[r];
        // Rounding to E4M3 is at most 1/16 off.
        ASSERT_NEAR(FromBf16(got[r * inner + o]), want, std::fabs(want) / 13 + 2e-2)
            << r << " " << o << " tile " << tile;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearTest, testing::ValuesIn(kFormats),
                         [](const testing::TestParamInfo<WeightFormat>& test) {
                           return NameOfFormat(test.param);
                         });

}  // namespace
}  // namespace reprise::engine::cuda::test
