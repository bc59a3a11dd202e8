// Routing, its plan, and what products do with their sums, against references.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "gpu/cuda/linear.h"
#include "gpu/cuda/random_fill.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// Random matrices in the packed layout, end to end; any bits are codes.
class FilledMatrix {
 public:
  FilledMatrix(WeightFormat format, uint32_t outputs, uint32_t inputs, uint32_t slices,
               uint32_t copies = 1)
      : codes_(Tiles(outputs, inputs) * copies * TileBytes(format)),
        scales_(Tiles(outputs, inputs) * copies * TileScaleBytes(format) + 16) {
    if (format == WeightFormat::kBf16) {
      FillBf16(codes_.data(), Tiles(outputs, inputs) * copies * TileBytes(format) / 2, 1, 0.1f,
               nullptr);
    } else {
      FillRandom(codes_.data(), Tiles(outputs, inputs) * copies * TileBytes(format), 1, 255,
                 nullptr);
      FillScaleWords(scales_.data(), Tiles(outputs, inputs) * copies * TileScaleBytes(format), 2,
                     ScaleByte(format, format == WeightFormat::kFp8 ? 114 : 120),
                     ScaleByte(format, format == WeightFormat::kFp8 ? 117 : 123), nullptr);
    }
    view = {.format = format,
            .outputs = outputs,
            .inputs = inputs,
            .output_tiles = (outputs + 63) / 64,
            .input_tiles = (inputs + 63) / 64,
            .slices = slices,
            .codes = codes_.data(),
            .scales = scales_.data()};
  }
  DeviceLinear Copy(uint32_t copy) const {
    DeviceLinear one = view;
    const size_t tiles = Tiles(view.outputs, view.inputs) * copy;
    one.codes = codes_.data() + tiles * TileBytes(view.format);
    one.scales = scales_.data() + tiles * TileScaleBytes(view.format);
    return one;
  }
  DeviceLinear view;

 private:
  static size_t Tiles(uint32_t outputs, uint32_t inputs) {
    return size_t{(outputs + 63) / 64} * ((inputs + 63) / 64);
  }
  OnDevice<uint8_t> codes_, scales_;
};

// ---- Routes ------------------------------------------------------------------------------------

// Every slot lies in one tile of its expert, and holds one row's choice of it.
void ExpectPlan(const RouteOutputs& got, uint32_t rows, uint32_t experts, uint32_t chosen,
                uint32_t tile_rows) {
  const std::vector<uint32_t> expert_of = got.expert_of.Get(), slot_of = got.slot_of.Get();
  const std::vector<uint32_t> row_of = got.row_of.Get();
  const Floats weight_of = got.weight_of.Get(), slot_weights = got.slot_weights.Get();
  const std::vector<ExpertTile> tiles = got.tiles.Get();
  const uint32_t count = got.tile_count.Get()[0];
  ASSERT_LE(count, tiles.size());
  EXPECT_TRUE(got.tickets.Get() == std::vector<uint32_t>(1, 0));
  std::vector<uint32_t> expert_of_slot(rows * chosen, kNoPart), rows_of_expert(experts);
  uint32_t next = 0, wanted_tiles = 0;
  for (uint32_t i = 0; i < count; ++i) {  // They follow one another.
    ASSERT_EQ(tiles[i].first, next);
    ASSERT_GE(tiles[i].rows, 1u);
    ASSERT_LE(tiles[i].rows, TileStep(kManyRows, tile_rows));
    next += tiles[i].rows;
    ASSERT_LE(next, rows * chosen);
    ASSERT_LT(tiles[i].expert, experts);
    std::fill_n(expert_of_slot.begin() + tiles[i].first, tiles[i].rows, tiles[i].expert);
  }
  EXPECT_EQ(next, rows * chosen);
  std::set<uint32_t> slots;
  for (uint32_t i = 0; i < rows * chosen; ++i) {
    const uint32_t slot = slot_of[i];
    ASSERT_LT(slot, rows * chosen);
    EXPECT_TRUE(slots.insert(slot).second) << slot;
    EXPECT_EQ(expert_of_slot[slot], expert_of[i]);
    EXPECT_EQ(row_of[slot], i / chosen);
    EXPECT_EQ(slot_weights[slot], weight_of[i]);
    ++rows_of_expert[expert_of[i]];
  }
  for (const uint32_t of_expert : rows_of_expert) {
    const uint32_t step = TileStep(of_expert, tile_rows);
    wanted_tiles += (of_expert + step - 1) / step;
  }
  EXPECT_EQ(count, wanted_tiles);
}

struct RouteShape {
  uint32_t experts, chosen;
};
class RouteTest : public testing::TestWithParam<RouteShape> {
 protected:
  void SetUp() override { RP_NEEDS_DEVICE(); }
};

// Logits are then what the rows of x hold.
PackedLinear IdentityGate(uint32_t experts, uint32_t inputs) {
  std::vector<uint16_t> identity(size_t{experts} * inputs);
  for (uint32_t e = 0; e < experts; ++e) identity[size_t{e} * inputs + e] = ToBf16(1);
  return Must(PackLinear("gate", WeightFormat::kBf16, experts, inputs, [&](uint32_t output) {
    const uint16_t* row = &identity[size_t{output} * inputs];
    return WeightRow{.codes = reinterpret_cast<const uint8_t*>(row)};
  }));
}

TEST_P(RouteTest, ChoosesTheReferencesExpertsAndPlansThem) {
  const auto [experts, chosen] = GetParam();
  const uint32_t inputs = (experts + 63) / 64 * 64;
  const PackedLinear packed = IdentityGate(experts, inputs);
  const OnDevice<uint8_t> codes(packed.codes);
  const DeviceLinear gate{.format = WeightFormat::kBf16,
                          .outputs = experts,
                          .inputs = inputs,
                          .output_tiles = packed.output_tiles,
                          .input_tiles = packed.input_tiles,
                          .slices = SlicesOf(experts, false),
                          .codes = codes.data()};
  const Floats bias = RandomFloats(experts, 0, 0.3f, 61);
  const Floats image_bias(experts, 0.25f);  // Equal logits of image rows are equal scores.
  const OnDevice<float> device_bias(bias), device_image_bias(image_bias);
  for (const uint32_t rows : {1u, 3u, 8u, 9u, 17u, 65u, 130u, 300u}) {
    SCOPED_TRACE("rows " + std::to_string(rows));
    Prng prng(rows);
    std::vector<uint8_t> image(rows);
    Bits x(size_t{rows} * inputs);
    std::vector<reference::Route> want(rows);
    for (uint32_t row = 0; row < rows; ++row) {
      image[row] = row % 3 == 1 ? 1 : 0;
      Floats logits(experts);
      do {  // A choice that float and double make alike. Image rows tie often.
        for (uint32_t e = 0; e < experts; ++e) {
          const double wide =
              image[row] != 0 ? static_cast<double>(prng.Below(9)) - 4 : (prng.Unit() - 0.5) * 24;
          logits[e] = RoundBf16(static_cast<float>(wide));
        }
        want[row] = reference::RouteOf(logits, image[row] != 0 ? image_bias : bias, chosen, 1.5f);
      } while (want[row].margin < 1e-5);
      for (uint32_t e = 0; e < experts; ++e) x[size_t{row} * inputs + e] = ToBf16(logits[e]);
    }
    const OnDevice<uint16_t> device_x(x);
    const OnDevice<uint8_t> device_image(image);
    for (const uint32_t tile_rows : {8u, 64u, 128u}) {
      const RouteOutputs got(rows, experts, chosen, tile_rows);
      RouteCall call = got.Call();
      call.bias = device_bias.data();
      call.image_bias = device_image_bias.data();
      call.image = device_image.data();
      call.scaling = 1.5f;
      Launched(LaunchRoute({.matrix = gate,
                            .output = LinearOutput::kFloat,
                            .x = device_x.data(),
                            .x_stride = inputs,
                            .y = got.logits.data(),
                            .y_stride = experts,
                            .rows = rows},
                           call, nullptr));
      const std::vector<uint32_t> expert_of = got.expert_of.Get();
      const Floats weight_of = got.weight_of.Get();
      for (uint32_t row = 0; row < rows; ++row) {
        for (uint32_t k = 0; k < chosen; ++k) {
          ASSERT_EQ(expert_of[row * chosen + k], want[row].experts[k]) << "row " << row;
          // exp, log1p, a root, a sum and a quotient in float: a few last bits.
          const float weight = want[row].weights[k];
          ASSERT_NEAR(weight_of[row * chosen + k], weight, 2e-6f * weight) << "row " << row;
        }
      }
      ExpectPlan(got, rows, experts, chosen, tile_rows);
    }
  }
}

TEST_P(RouteTest, RowsAloneAndTogetherGiveTheSameBytes) {
  const uint32_t experts = GetParam().experts, chosen = GetParam().chosen;
  const uint32_t inputs = 5120, rows = 130, tile_rows = 16;
  const FilledMatrix gate(WeightFormat::kBf16, experts, inputs, SlicesOf(experts, false));
  const Floats bias = RandomFloats(experts, 0, 0.3f, 62), image_bias(experts, 0.0f);
  const OnDevice<float> device_bias(bias), device_image_bias(image_bias);
  const OnDevice<uint16_t> x(RandomBits(size_t{rows} * inputs, 1, 63));
  const OnDevice<uint8_t> image(std::vector<uint8_t>(rows, 0));
  const auto route = [&](uint32_t first, uint32_t count, const RouteOutputs& to) {
    RouteCall call = to.Call();
    call.bias = device_bias.data();
    call.image_bias = device_image_bias.data();
    call.image = image.data();
    call.scaling = 1.5f;
    Launched(LaunchRoute({.matrix = gate.view,
                          .output = LinearOutput::kFloat,
                          .x = x.data() + size_t{first} * inputs,
                          .x_stride = inputs,
                          .y = to.logits.data(),
                          .y_stride = experts,
                          .rows = count},
                         call, nullptr));
  };
  const RouteOutputs together(rows, experts, chosen, tile_rows);
  route(0, rows, together);
  const Floats logits = together.logits.Get(), weights = together.weight_of.Get();
  const std::vector<uint32_t> chosen_experts = together.expert_of.Get();
  for (uint32_t first = 0; first < rows;) {
    const uint32_t count = std::min(first % 3 == 0 ? 1u : 8u, rows - first);
    const RouteOutputs few(count, experts, chosen, tile_rows);
    route(first, count, few);
    const auto expect_same = [&](const auto& all, const auto& some, size_t of_row) {
      const auto got = some.Get();
      ASSERT_EQ(std::memcmp(got.data(), &all[first * of_row], got.size() * sizeof(got[0])), 0)
          << count << " rows from " << first;
    };
    expect_same(logits, few.logits, experts);
    expect_same(weights, few.weight_of, chosen);
    expect_same(chosen_experts, few.expert_of, chosen);
    ExpectPlan(few, count, experts, chosen, tile_rows);
    first += count;
  }
}

std::string NameOfRoute(const testing::TestParamInfo<RouteShape>& info) {
  return std::to_string(info.param.chosen) + "Of" + std::to_string(info.param.experts);
}
INSTANTIATE_TEST_SUITE_P(Shapes, RouteTest,
                         testing::Values(RouteShape{5, 1}, RouteShape{5, 5}, RouteShape{128, 3},
                                         RouteShape{128, 1}, RouteShape{384, 6},
                                         RouteShape{500, 16}),
                         NameOfRoute);

// ---- What products do with their sums ----------------------------------------------------------

struct Epilogue {
  WeightFormat format;
  uint32_t slices;
};
class EpilogueTest : public testing::TestWithParam<Epilogue> {
 protected:
  void SetUp() override { RP_NEEDS_DEVICE(); }
};
constexpr uint32_t kTileSizes[] = {8, 16, 32, 64, 128};

// The plain bf16 outputs, which linear_test compares with sums in double, are what both start from.
TEST_P(EpilogueTest, RoundedOutputsAreTheBf16OnesThroughQuantiserA) {
  const struct {
    uint32_t outputs, inputs, rows;
  } shapes[] = {{32, 64, 1}, {288, 320, 17}, {544, 640, 130}};
  for (const auto& shape : shapes) {
    const FilledMatrix matrix(GetParam().format, shape.outputs, shape.inputs, GetParam().slices);
    const OnDevice<uint16_t> x(RandomBits(size_t{shape.rows} * shape.inputs, 1, 71));
    for (const uint32_t tile_rows : kTileSizes) {
      SCOPED_TRACE(std::to_string(shape.outputs) + " outputs, tiles of " +
                   std::to_string(tile_rows));
      const size_t count = size_t{shape.rows} * shape.outputs;
      const OnDevice<uint16_t> plain(count), rounded(count);
      for (const LinearOutput output : {LinearOutput::kBf16, LinearOutput::kRounded}) {
        Launched(LaunchLinear({.matrix = matrix.view,
                               .output = output,
                               .x = x.data(),
                               .x_stride = shape.inputs,
                               .y = output == LinearOutput::kBf16 ? plain.data() : rounded.data(),
                               .y_stride = shape.outputs,
                               .rows = shape.rows},
                              tile_rows, nullptr));
      }
      EXPECT_TRUE(rounded.Get() == ToBits(reference::RoundA(FromBits(plain.Get()))));
    }
  }
}

TEST_P(EpilogueTest, SwigluIsThatOfTheBf16Outputs) {
  const struct {
    uint32_t inner, inputs, rows;
  } shapes[] = {{32, 64, 1}, {96, 320, 17}, {288, 640, 130}};
  Agreement agreement("SwiGLU");
  for (const auto& shape : shapes) {
    const uint32_t outputs = 2 * shape.inner;
    const FilledMatrix matrix(GetParam().format, outputs, shape.inputs, GetParam().slices);
    const OnDevice<uint16_t> x(RandomBits(size_t{shape.rows} * shape.inputs, 1, 72));
    const Floats weights = RandomFloats(shape.rows, 0.8f, 0.2f, 73);
    const OnDevice<float> device_weights(weights);
    for (const bool weighted : {true, false}) {
      Bits first;
      for (const uint32_t tile_rows : kTileSizes) {
        SCOPED_TRACE(tile_rows);
        const OnDevice<uint16_t> plain(size_t{shape.rows} * outputs);
        const OnDevice<uint16_t> y(size_t{shape.rows} * shape.inner);
        LinearCall call{.matrix = matrix.view,
                        .x = x.data(),
                        .x_stride = shape.inputs,
                        .y = plain.data(),
                        .y_stride = outputs,
                        .rows = shape.rows,
                        .limit = 2,  // So low that many are clamped.
                        .row_weights = weighted ? device_weights.data() : nullptr};
        Launched(LaunchLinear(call, tile_rows, nullptr));
        call.output = LinearOutput::kSwiglu;
        call.y = y.data();
        call.y_stride = shape.inner;
        Launched(LaunchLinear(call, tile_rows, nullptr));
        const Bits got = y.Get();
        if (!first.empty()) {
          EXPECT_TRUE(got == first);
          continue;
        }
        first = got;
        const Floats sums = FromBits(plain.Get());
        for (uint32_t row = 0; row < shape.rows; ++row) {
          Floats z(shape.inner);
          for (uint32_t i = 0; i < shape.inner; ++i) {  // Eight of w1 and of w3 by turns.
            const float* pair = &sums[size_t{row} * outputs + i / 8 * 16 + i % 8];
            z[i] = reference::Swiglu(pair[0], pair[8], 2, weighted ? weights[row] : 1.0f);
          }
          // Quantised once more, for codes to compare: values of the quantiser stay what they are.
          const reference::Codes want = reference::CodesA(reference::RoundA(z));
          const size_t at = size_t{row} * shape.inner;
          const reference::Codes have =
              reference::CodesA(FromBits({got.begin() + at, got.begin() + at + shape.inner}));
          agreement.AddCodes(Agreement::Quantiser::kA, have.codes.data(), have.scales.data(), want);
        }
      }
    }
  }
  agreement.Expect();
}

std::string NameOfEpilogue(const testing::TestParamInfo<Epilogue>& info) {
  static constexpr const char* kNames[] = {"Bf16", "Fp8", "Fp4"};
  return std::string(kNames[static_cast<int>(info.param.format)]) + "Slices" +
         std::to_string(info.param.slices);
}
INSTANTIATE_TEST_SUITE_P(
    Formats, EpilogueTest,
    testing::Values(Epilogue{WeightFormat::kBf16, 1}, Epilogue{WeightFormat::kBf16, 4},
                    Epilogue{WeightFormat::kFp8, 1}, Epilogue{WeightFormat::kFp8, 2},
                    Epilogue{WeightFormat::kFp4, 1}, Epilogue{WeightFormat::kFp4, 8}),
    NameOfEpilogue);

// Of experts with so many rows each, one after another.
std::vector<ExpertTile> TilesOf(const std::vector<uint32_t>& rows_of, uint32_t tile_rows) {
  std::vector<ExpertTile> tiles;
  for (uint32_t e = 0, first = 0; e < rows_of.size(); first += rows_of[e], ++e) {
    const uint32_t step = TileStep(rows_of[e], tile_rows);
    for (uint32_t at = 0; at < rows_of[e]; at += step) {
      tiles.push_back({e, first + at, std::min(step, rows_of[e] - at)});
    }
  }
  return tiles;
}

// Tiles that there may be beyond those that are: where they are many, few rows go another way.
struct Tiling {
  uint32_t tile_rows, spare;
};
constexpr Tiling kTilings[] = {{8, 3},  {8, 40},  {16, 0}, {16, 40},
                               {32, 3}, {32, 40}, {64, 3}, {128, 3}};

class BesideTest : public testing::TestWithParam<WeightFormat> {
 protected:
  void SetUp() override { RP_NEEDS_DEVICE(); }
};

// FP4 experts beside an FP8 matrix go in one launch, other formats in two: either way each gives
// the bytes of its own product.
TEST_P(BesideTest, ExpertsAndTheMatrixBesideThemGiveTheirOwnProducts) {
  constexpr uint32_t kOutputs = 192, kInputs = 320, kTokens = 21;
  // Of experts, in tiles of all widths.
  const std::vector<uint32_t> rows_of = {3,   0,   17,  40,  1,   75,  90,
                                         107, 120, 130, 180, 210, 250, 270};
  const auto experts = static_cast<uint32_t>(rows_of.size());
  const FilledMatrix routed(GetParam(), kOutputs, kInputs, 1, experts);
  const FilledMatrix shared(WeightFormat::kFp8, kOutputs, kInputs, 1);
  const OnDevice<uint16_t> x(RandomBits(size_t{kTokens} * kInputs, 1, 81));
  std::vector<uint32_t> gather, first_of;
  for (const uint32_t count : rows_of) {
    first_of.push_back(static_cast<uint32_t>(gather.size()));
    for (uint32_t i = 0; i < count; ++i) gather.push_back((i * 5 + count) % kTokens);
  }
  const auto slots = static_cast<uint32_t>(gather.size());
  const Floats weights = RandomFloats(slots, 0.8f, 0.2f, 82);
  const OnDevice<uint32_t> device_gather(gather);
  const OnDevice<float> device_weights(weights);
  for (const LinearOutput output : {LinearOutput::kBf16, LinearOutput::kSwiglu}) {
    const bool swiglu = output == LinearOutput::kSwiglu;
    const uint32_t width = swiglu ? kOutputs / 2 : kOutputs;
    for (const auto& [tile_rows, spare] : kTilings) {
      SCOPED_TRACE(std::to_string(width) + " values, tiles of " + std::to_string(tile_rows));
      std::vector<ExpertTile> tiles = TilesOf(rows_of, tile_rows);
      const auto count = static_cast<uint32_t>(tiles.size());
      tiles.resize(count + spare, {77, 77, 77});  // Beyond tile_count: not looked at.
      const OnDevice<ExpertTile> device_tiles(tiles);
      const OnDevice<uint32_t> tile_count(std::vector<uint32_t>{count});
      const OnDevice<uint16_t> y(size_t{slots} * width), beside(size_t{kTokens} * width);
      const OnDevice<uint16_t> y_alone(size_t{slots} * width),
          beside_alone(size_t{kTokens} * width);
      const LinearCall call{
          .matrix = routed.view,
          .output = output,
          .x = x.data(),
          .x_stride = kInputs,
          .y = y.data(),
          .y_stride = width,
          .rows = slots,
          .gather = device_gather.data(),
          .limit = 3,
          .row_weights = swiglu ? device_weights.data() : nullptr,
          .tiles = device_tiles.data(),
          .tile_count = tile_count.data(),
          .tiles_max = static_cast<uint32_t>(tiles.size()),
          .planned_before = tile_rows == 16,
          .beside = {.matrix = shared.view, .x = x.data(), .y = beside.data(), .rows = kTokens}};
      Launched(LaunchLinear(call, tile_rows, nullptr));
      LinearCall alone{.matrix = shared.view,
                       .output = output,
                       .x = x.data(),
                       .x_stride = kInputs,
                       .y = beside_alone.data(),
                       .y_stride = width,
                       .rows = kTokens,
                       .limit = 3};
      Launched(LaunchLinear(alone, tile_rows, nullptr));
      EXPECT_TRUE(beside.Get() == beside_alone.Get());
      for (uint32_t e = 0; e < experts; ++e) {
        alone.matrix = routed.Copy(e);
        alone.y = y_alone.data() + size_t{first_of[e]} * width;
        alone.rows = rows_of[e];
        alone.gather = device_gather.data() + first_of[e];
        alone.row_weights = swiglu ? device_weights.data() + first_of[e] : nullptr;
        Launched(LaunchLinear(alone, 8, nullptr));
      }
      EXPECT_TRUE(y.Get() == y_alone.Get());
    }
  }
}

std::string NameOfBeside(const testing::TestParamInfo<WeightFormat>& info) {
  static constexpr const char* kNames[] = {"Bf16Experts", "Fp8Experts", "Fp4Experts"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Formats, BesideTest,
                         testing::Values(WeightFormat::kBf16, WeightFormat::kFp8,
                                         WeightFormat::kFp4),
                         NameOfBeside);

}  // namespace
}  // namespace reprise::engine::cuda::test
