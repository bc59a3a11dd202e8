// Attention at V4.1's shapes: the matrix units against plain sums, on random records, windows and
// selections of awkward lengths.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/cuda/kernels.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint32_t kDim = 512, kHeads = 64, kEntries = 2048;
constexpr uint32_t kPayload = 128 * 356, kRing = 144;

uint8_t Code(Prng* prng) {
  const auto code = static_cast<uint8_t>(prng->Below(256));
  return (code & 0x7f) == 0x7f ? uint8_t{0x7e} : code;
}

// One sequence of 2,048 entries of ratio 1 with a window, and queries.
class V41Shapes : public testing::Test {
 protected:
  void SetUp() override {
    RP_NEEDS_DEVICE();
    Prng prng(41);
    std::vector<uint8_t> payloads(kEntries / 128 * kPayload);
    for (uint32_t b = 0; b < kEntries / 128; ++b) {
      uint8_t* block = &payloads[b * kPayload];
      for (uint32_t i = 0; i < 128 * 256; ++i) block[i] = static_cast<uint8_t>(prng.Below(256));
      for (uint32_t i = 0; i < 128 * 32; ++i) {
        block[128 * 256 + i] = static_cast<uint8_t>(0x28 + prng.Below(16));
      }
    }
    payloads_ = std::make_unique<OnDevice<uint8_t>>(payloads);
    std::vector<std::byte*> list;
    for (uint32_t b = 0; b < kEntries / 128; ++b) {
      list.push_back(reinterpret_cast<std::byte*>(payloads_->data() + b * kPayload));
    }
    blocks_ = std::make_unique<OnDevice<std::byte*>>(list);
    std::vector<uint8_t> window(kRing * 528);
    for (uint32_t i = 0; i < kRing * kDim; ++i) window[i] = Code(&prng);
    for (uint32_t i = kRing * kDim; i < window.size(); ++i) {
      window[i] = static_cast<uint8_t>(115 + prng.Below(4));
    }
    window_ = std::make_unique<OnDevice<uint8_t>>(window);
    entries_ = {.block_shift = 7,
                .main_codes = 0,
                .main_scales = 128 * 256,
                .index_codes = 128 * 288,
                .index_scales = 128 * 352,
                .main_code_bytes = 256,
                .main_scale_bytes = 32,
                .index_code_bytes = 64,
                .index_scale_bytes = 4};
  }

  // Rows at [first, first + rows) of the sequence; windows begin at `from`.
  void MakeStep(uint32_t first, uint32_t rows, uint32_t from) {
    Prng prng(first + rows);
    std::vector<uint32_t> positions(rows);
    std::vector<float> cosines(rows * 32), sines(rows * 32);
    for (uint32_t r = 0; r < rows; ++r) {
      positions[r] = first + r;
      for (uint32_t i = 0; i < 32; ++i) {
        const double angle = (first + r) * std::pow(0.7, i);
        cosines[r * 32 + i] = static_cast<float>(std::cos(angle));
        sines[r * 32 + i] = static_cast<float>(std::sin(angle));
      }
    }
    parts_ = std::make_unique<OnDevice<DevicePart>>(
        std::vector<DevicePart>{{.window = reinterpret_cast<std::byte*>(window_->data()),
                                 .rows = rows,
                                 .first = first,
                                 .windows_from = from}});
    part_of_row_ = std::make_unique<OnDevice<uint32_t>>(std::vector<uint32_t>(rows, 0));
    positions_ = std::make_unique<OnDevice<uint32_t>>(positions);
    cosines_ = std::make_unique<OnDevice<float>>(cosines);
    sines_ = std::make_unique<OnDevice<float>>(sines);
    step_ = {.rows = rows,
             .parts = 1,
             .part = parts_->data(),
             .part_of_row = part_of_row_->data(),
             .positions = positions_->data(),
             .blocks = blocks_->data(),
             .cosines = {cosines_->data(), cosines_->data()},
             .sines = {sines_->data(), sines_->data()},
             .pairs = 32};
    std::vector<uint8_t> codes(rows * kDim), scales(rows * 16);
    for (uint8_t& code : codes) code = Code(&prng);
    for (uint8_t& scale : scales) scale = static_cast<uint8_t>(115 + prng.Below(4));
    kv_codes_ = std::make_unique<OnDevice<uint8_t>>(codes);
    kv_scales_ = std::make_unique<OnDevice<uint8_t>>(scales);
  }

  // Of the step's rows, but for what is a test's own.
  AttentionCall Call() const {
    return {.step = step_,
            .windows = {.window = 128, .ring_rows = kRing, .code_bytes = 512, .scale_bytes = 16},
            .entries = entries_,
            .kv_codes = kv_codes_->data(),
            .kv_scales = kv_scales_->data(),
            .topk = 512,
            .heads = kHeads,
            .dim = kDim,
            .scale = 0.0441941738f};
  }

  std::unique_ptr<OnDevice<uint8_t>> payloads_, window_, kv_codes_, kv_scales_;
  std::unique_ptr<OnDevice<std::byte*>> blocks_;
  std::unique_ptr<OnDevice<DevicePart>> parts_;
  std::unique_ptr<OnDevice<uint32_t>> part_of_row_, positions_;
  std::unique_ptr<OnDevice<float>> cosines_, sines_;
  EntryView entries_;
  StepView step_;
};

std::vector<uint16_t> RandomBf16(size_t count, float scale, uint64_t seed) {
  Prng prng(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    value = ToBf16(scale * (static_cast<float>(prng.Below(20001)) / 10000.0f - 1.0f));
  }
  return values;
}

// At most `most` of the entries that a row sees, for each row.
std::vector<int32_t> RandomSelection(uint32_t first, uint32_t rows, uint32_t most) {
  Prng prng(9);
  std::vector<int32_t> selected(rows * 512, -1);
  for (uint32_t r = 0; r < rows; ++r) {
    const uint32_t visible = first + r + 1;
    const uint32_t count = std::min(most, visible);
    std::vector<int32_t> all(visible);
    for (uint32_t i = 0; i < visible; ++i) all[i] = static_cast<int32_t>(i);
    for (uint32_t i = 0; i < count; ++i) std::swap(all[i], all[i + prng.Below(visible - i)]);
    std::sort(all.begin(), all.begin() + count);
    std::copy_n(all.begin(), count, selected.begin() + r * 512);
  }
  return selected;
}

TEST_F(V41Shapes, AttentionByTheMatrixUnits) {
  // Large queries: tops of probabilities differ between tiles, and between the blocks of a cluster.
  const struct {
    uint32_t first, rows, from, selected;
    float size = 0.5f;
  } cases[] = {
      {2000, 1, 0, 512},     {2000, 5, 0, 512},    {1500, 3, 1490, 512},     {700, 130, 650, 300},
      {0, 2, 0, 1},          {90, 40, 60, 91},     {1000, 4, 0, 0},          {600, 3, 600, 65},
      {2000, 9, 0, 512, 20}, {90, 40, 60, 91, 60}, {700, 130, 650, 300, 200}};
  for (const auto& shape : cases) {
    SCOPED_TRACE(std::to_string(shape.rows) + " rows from " + std::to_string(shape.first) +
                 ", queries of " + std::to_string(shape.size));
    MakeStep(shape.first, shape.rows, shape.from);
    const OnDevice<int32_t> device_selected(
        RandomSelection(shape.first, shape.rows, shape.selected));
    const OnDevice<uint16_t> query(RandomBf16(size_t{shape.rows} * kHeads * kDim, shape.size, 3));
    const OnDevice<uint16_t> fast(size_t{shape.rows} * kHeads * kDim);
    const OnDevice<uint16_t> simple(size_t{shape.rows} * kHeads * kDim);
    std::vector<float> sink_values(kHeads);
    for (uint32_t h = 0; h < kHeads; ++h) sink_values[h] = static_cast<float>(h) / 16 - 2;
    const OnDevice<float> sinks(sink_values);
    AttentionCall call = Call();
    call.query = query.data();
    call.selected = shape.selected == 0 ? nullptr : device_selected.data();
    call.sinks = sinks.data();
    call.out = fast.data();
    Must(CudaStatus(LaunchAttention(call, nullptr), "attention"));
    Must(CudaStatus(cudaDeviceSynchronize(), "attention"));
    call.out = simple.data();
    Must(CudaStatus(LaunchSimpleAttention(call, nullptr), "attention"));
    Must(CudaStatus(cudaDeviceSynchronize(), "attention"));
    const std::vector<uint16_t> got = fast.Get(), want = simple.Get();
    double error = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double g = FromBf16(got[i]), w = FromBf16(want[i]);
      ASSERT_FALSE(std::isnan(g)) << i;
      error += (g - w) * (g - w);
      norm += w * w;
    }
    EXPECT_LT(std::sqrt(error / norm), 4e-3);
    // By clusters of two blocks and of eight, and the first row alone: the same bytes, each time.
    const OnDevice<uint8_t> room(kAttentionRoomBytes);
    for (uint32_t turn = 0; turn < 8; ++turn) {
      const OnDevice<uint16_t> again(size_t{shape.rows} * kHeads * kDim);
      call.out = again.data();
      call.room = turn % 2 == 0 ? room.data() : nullptr;
      call.step.rows = turn < 6 ? shape.rows : 1;
      Must(CudaStatus(LaunchAttention(call, nullptr), "attention"));
      const std::vector<uint16_t> values = again.Get();
      const size_t count = size_t{call.step.rows} * kHeads * kDim;
      EXPECT_TRUE(std::equal(got.begin(), got.begin() + count, values.begin())) << turn;
    }
  }
}

// A rank of several has some of the heads: they become what they are among all, computed by
// clusters of two blocks a row and of eight.
struct OwnHeads {
  uint32_t heads, blocks;
};
class AttentionOfFewerHeads : public V41Shapes, public testing::WithParamInterface<OwnHeads> {};

TEST_P(AttentionOfFewerHeads, IsThatOfAll) {
  constexpr uint32_t kRows = 9;
  const uint32_t heads = GetParam().heads;
  MakeStep(1700, kRows, 0);
  const OnDevice<int32_t> selected(RandomSelection(1700, kRows, 512));
  const std::vector<uint16_t> values = RandomBf16(size_t{kRows} * kHeads * kDim, 0.5f, 6);
  const OnDevice<uint16_t> query(values), all(values.size());
  std::vector<float> sink_values(kHeads);
  for (uint32_t h = 0; h < kHeads; ++h) sink_values[h] = static_cast<float>(h) / 16 - 2;
  const OnDevice<float> sinks(sink_values);
  AttentionCall call = Call();
  call.query = query.data();
  call.selected = selected.data();
  call.sinks = sinks.data();
  call.out = all.data();
  call.rotate_query = true;
  Must(CudaStatus(LaunchAttention(call, nullptr), "attention"));
  const std::vector<uint16_t> whole = all.Get();

  const size_t row = size_t{heads} * kDim;
  std::vector<uint16_t> own(kRows * row), want(kRows * row);
  for (uint32_t r = 0; r < kRows; ++r) {
    std::copy_n(values.begin() + r * kHeads * kDim, row, own.begin() + r * row);
    std::copy_n(whole.begin() + r * kHeads * kDim, row, want.begin() + r * row);
  }
  const OnDevice<uint16_t> own_query(own);
  const OnDevice<float> own_sinks(
      std::vector<float>(sink_values.begin(), sink_values.begin() + heads));
  const OnDevice<uint8_t> room(kAttentionRoomBytes);
  const OnDevice<uint16_t> got(own.size() + 64 * kDim);  // Nothing is stored past the heads.
  call.query = own_query.data();
  call.sinks = own_sinks.data();
  call.heads = heads;
  call.out = got.data();
  call.room = GetParam().blocks == 8 ? room.data() : nullptr;
  Must(CudaStatus(LaunchAttention(call, nullptr), "attention"));
  std::vector<uint16_t> bytes = got.Get();
  EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(own.size()), bytes.end(),
                          [](uint16_t value) { return value == 0xffff; }));
  bytes.resize(own.size());
  EXPECT_TRUE(bytes == want);
}

std::string NameOfHeads(const testing::TestParamInfo<OwnHeads>& info) {
  return std::to_string(info.param.heads) + "By" + std::to_string(info.param.blocks);
}
INSTANTIATE_TEST_SUITE_P(Ranks, AttentionOfFewerHeads,
                         testing::Values(OwnHeads{8, 2}, OwnHeads{8, 8}, OwnHeads{16, 2},
                                         OwnHeads{16, 8}, OwnHeads{24, 2}, OwnHeads{24, 8},
                                         OwnHeads{32, 2}, OwnHeads{32, 8}),
                         NameOfHeads);

TEST_F(V41Shapes, AttentionTurnsQueriesItself) {
  constexpr uint32_t kRows = 70;
  MakeStep(1200, kRows, 0);
  const OnDevice<int32_t> selected(RandomSelection(1200, kRows, 512));
  const std::vector<uint16_t> values = RandomBf16(size_t{kRows} * kHeads * kDim, 0.5f, 4);
  const OnDevice<uint16_t> query(values), turned(values);
  Must(CudaStatus(LaunchRotateHeads(step_, 0, turned.data(), kHeads, kDim, nullptr), "rotation"));
  const OnDevice<uint16_t> got(values.size()), want(values.size());
  const OnDevice<float> sinks(std::vector<float>(kHeads, 0.5f));
  AttentionCall call = Call();
  call.selected = selected.data();
  call.sinks = sinks.data();
  for (const auto launch : {LaunchAttention, LaunchSimpleAttention}) {
    call.query = turned.data();
    call.rotate_query = false;
    call.out = want.data();
    Must(CudaStatus(launch(call, nullptr), "attention"));
    call.query = query.data();
    call.rotate_query = true;
    call.out = got.data();
    Must(CudaStatus(launch(call, nullptr), "attention"));
    EXPECT_TRUE(got.Get() == want.Get());
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
