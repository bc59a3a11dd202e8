// The stream's kernels against their references: rotations, hyper-connections, taps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "gpu/cuda/mix_layout.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint32_t kStreamCopies = reference::kCopies;
constexpr float kStreamEps = 1e-20f;
constexpr float kMixEps = 1e-3f;  // Larger than the model's, so that it shows.

// bf16 sums of five terms of up to about 8: what float loses of them.
constexpr float kStreamSlack = 4e-6f;

TEST(StreamKernels, RotationsAreThoseOfTheFloatAngle) {
  RP_NEEDS_DEVICE();
  size_t other = 0, all = 0;
  for (const uint32_t pairs : {1u, 8u, 32u}) {
    Floats frequencies[2];
    for (uint32_t i = 0; i < pairs; ++i) {
      frequencies[0].push_back(static_cast<float>(std::pow(10'000.0, -1.0 * i / 32)));
      frequencies[1].push_back(static_cast<float>(std::pow(160'000.0, -1.0 * i / 32)));
    }
    const std::vector<uint32_t> positions = {0, 1, 127, 4097, 65'535, 999'999, 1'048'575};
    const auto rows = static_cast<uint32_t>(positions.size());
    const OnDevice<uint32_t> device_positions(positions);
    const OnDevice<float> f0(frequencies[0]), f1(frequencies[1]);
    const OnDevice<float> c0(rows * pairs), c1(rows * pairs), s0(rows * pairs), s1(rows * pairs);
    Launched(LaunchRotations({.positions = device_positions.data(),
                              .rows = rows,
                              .pairs = pairs,
                              .frequencies = {f0.data(), f1.data()},
                              .cosines = {c0.data(), c1.data()},
                              .sines = {s0.data(), s1.data()}},
                             nullptr));
    const Floats cosines[2] = {c0.Get(), c1.Get()}, sines[2] = {s0.Get(), s1.Get()};
    Floats c(pairs), s(pairs);
    for (int kind = 0; kind < 2; ++kind) {
      for (uint32_t row = 0; row < rows; ++row) {
        reference::Rotations(positions[row], frequencies[kind], c.data(), s.data());
        for (uint32_t i = 0; i < pairs; ++i) {
          // Both are cos and sin in double of the same angle: a last bit of float at most.
          EXPECT_NEAR(cosines[kind][row * pairs + i], c[i], 6.1e-8f);
          EXPECT_NEAR(sines[kind][row * pairs + i], s[i], 6.1e-8f);
          all += 2;
          other +=
              (cosines[kind][row * pairs + i] != c[i]) + (sines[kind][row * pairs + i] != s[i]);
        }
      }
    }
  }
  EXPECT_LE(other, all / 200);
}

TEST(StreamKernels, EmbeddingsAndImageRowsBecomeFourCopies) {
  RP_NEEDS_DEVICE();
  for (const uint32_t hidden : {64u, 320u, 5120u}) {
    for (const auto& list : AwkwardSteps()) {
      RandomStep step(list, 0, {}, hidden);
      const uint32_t rows = step.rows();
      const Bits table = RandomBits(size_t{97} * hidden, 1, 2);
      const Bits images = RandomBits(size_t{rows} * hidden, 1, 3);
      std::vector<uint32_t> index(rows);
      uint32_t seen = 0;
      for (uint32_t row = 0; row < rows; ++row) index[row] = step.image[row] != 0 ? seen++ : 0;
      const OnDevice<uint16_t> device_table(table), device_images(images);
      const OnDevice<uint32_t> device_index(index);
      const OnDevice<uint16_t> stream(size_t{rows} * kStreamCopies * hidden);
      const OnDevice<float> pre(rows * kStreamCopies);
      Launched(LaunchEmbed(step.view(), device_table.data(), device_images.data(),
                           device_index.data(), hidden, stream.data(), pre.data(), nullptr));
      const Bits got = stream.Get();
      const Floats got_pre = pre.Get();
      for (uint32_t row = 0; row < rows; ++row) {
        const auto from = step.image[row] != 0
                              ? RowOf(images, index[row], hidden)
                              : RowOf(table, static_cast<size_t>(step.tokens[row]), hidden);
        for (uint32_t copy = 0; copy < kStreamCopies; ++copy) {
          const auto to = RowOf(got, row * kStreamCopies + copy, hidden);
          ASSERT_TRUE(std::equal(from.begin(), from.end(), to.begin())) << "row " << row;
          ASSERT_EQ(got_pre[row * kStreamCopies + copy], copy == 0 ? 1.0f : 0.0f);
        }
      }
    }
  }
}

// ---- The update and the mix --------------------------------------------------------------------

enum class Addition { kNone, kRows, kExperts };

// What a sublayer gives for some rows: on the host and on the device.
class SublayerOutput {
 public:
  SublayerOutput(Addition kind, uint32_t rows, uint32_t row_values, uint32_t experts)
      : kind_(kind),
        hidden_(row_values),
        chosen_(experts),
        post_(RandomFloats(rows * kStreamCopies, 1, 0.5f, 21)),
        comb_(RandomFloats(rows * kStreamCopies * kStreamCopies, 0.25f, 0.1f, 22)),
        h_(RandomBits(size_t{rows} * row_values, 1, 23)),
        outputs_(RandomBits(size_t{rows} * experts * row_values, 1, 24)),
        slots_(rows * experts),
        device_post_(post_),
        device_comb_(comb_),
        device_h_(h_),
        device_outputs_(outputs_),
        device_slots_(slots_.size()) {
    for (uint32_t i = 0; i < slots_.size(); ++i) slots_[i] = i;
    Prng prng(25);
    for (auto i = static_cast<uint32_t>(slots_.size()); i > 1; --i) {
      std::swap(slots_[i - 1], slots_[prng.Below(i)]);
    }
    device_slots_.Put(slots_);
  }
  StreamAdd From(uint32_t row) const {
    if (kind_ == Addition::kNone) return {};
    StreamAdd add{.post = device_post_.data() + row * kStreamCopies,
                  .comb = device_comb_.data() + row * kStreamCopies * kStreamCopies};
    const uint16_t* h = device_h_.data() + size_t{row} * hidden_;
    if (kind_ == Addition::kRows) {
      add.h = h;
      return add;
    }
    add.chosen = chosen_;
    add.slot_of = device_slots_.data() + row * chosen_;
    add.outputs = device_outputs_.data();
    add.shared = h;
    return add;
  }
  Floats Reference(uint32_t row, FloatSpan stream) const {
    if (kind_ == Addition::kNone) return {stream.begin(), stream.end()};
    Floats h = FromBits({h_.begin() + row * hidden_, h_.begin() + (row + 1) * hidden_});
    if (kind_ == Addition::kExperts) {
      Floats of_slots;
      std::vector<uint32_t> order(chosen_);
      for (uint32_t k = 0; k < chosen_; ++k) {
        const auto output = RowOf(outputs_, slots_[row * chosen_ + k], hidden_);
        for (const uint16_t value : output) of_slots.push_back(FromBf16(value));
        order[k] = k;
      }
      h = reference::SumOfExperts(of_slots, order, h);
    }
    return reference::Update(stream, h, &post_[row * kStreamCopies],
                             &comb_[row * kStreamCopies * kStreamCopies]);
  }

 private:
  Addition kind_;
  uint32_t hidden_, chosen_;
  Floats post_, comb_;
  Bits h_, outputs_;
  std::vector<uint32_t> slots_;
  OnDevice<float> device_post_, device_comb_;
  OnDevice<uint16_t> device_h_, device_outputs_;
  OnDevice<uint32_t> device_slots_;
};

struct StreamCase {
  uint32_t hidden, rows, chosen;
  Addition addition;
};

TEST(StreamKernels, UpdateAddsWhatASublayerGives) {
  RP_NEEDS_DEVICE();
  Agreement agreement("stream");
  for (const StreamCase& c :
       {StreamCase{64, 1, 1, Addition::kRows}, StreamCase{320, 17, 6, Addition::kExperts},
        StreamCase{64, 130, 1, Addition::kExperts}, StreamCase{5120, 65, 6, Addition::kExperts},
        StreamCase{5120, 3, 6, Addition::kRows}, StreamCase{320, 300, 3, Addition::kRows}}) {
    SCOPED_TRACE(std::to_string(c.hidden) + " values, rows " + std::to_string(c.rows));
    const size_t of_row = size_t{kStreamCopies} * c.hidden;
    const Bits before = RandomBits(c.rows * of_row, 1, c.rows);
    const Floats values = FromBits(before);
    const SublayerOutput sublayer(c.addition, c.rows, c.hidden, c.chosen);
    const OnDevice<uint16_t> stream(before);
    Launched(LaunchUpdate({.hidden = c.hidden, .eps = kStreamEps}, c.rows, sublayer.From(0),
                          stream.data(), nullptr));
    const Bits got = stream.Get();
    for (uint32_t row = 0; row < c.rows; ++row) {
      agreement.AddBf16(RowOf(got, row, of_row),
                        sublayer.Reference(row, RowOf(values, row, of_row)), kStreamSlack);
    }
  }
  agreement.Expect();
}

// All that a mix writes, of some rows.
struct MixOutputs {
  MixOutputs(uint32_t rows, uint32_t hidden, const Bits& before)
      : stream(before),
        updated(before),
        y(size_t{rows} * hidden),
        x(size_t{rows} * hidden),
        x_round(size_t{rows} * hidden),
        pre_next(rows * kStreamCopies),
        post(rows * kStreamCopies),
        comb(rows * kStreamCopies * kStreamCopies),
        partials(size_t{rows} * (hidden / 64) * kMixPartials) {}
  // Where the rows from `row` on go; the rest is for the caller.
  MixCall From(uint32_t row, uint32_t hidden) const {
    const size_t values = size_t{row} * hidden, four = size_t{row} * kStreamCopies;
    return {.mixes = {.shape = {.hidden = hidden, .eps = kStreamEps},
                      .partials = partials.data(),
                      .pre = pre_next.data() + four,
                      .post = post.data() + four,
                      .comb = comb.data() + four * kStreamCopies},
            .stream = stream.data() + values * kStreamCopies,
            .updated = updated.data() + values * kStreamCopies,
            .y = y.data() + values,
            .x = x.data() + values,
            .x_round = x_round.data() + values};
  }
  void ExpectSameBytes(const MixOutputs& other) const {
    const auto same = [](const auto& a, const auto& b) {
      const auto x_bytes = a.Get(), y_bytes = b.Get();
      return std::memcmp(x_bytes.data(), y_bytes.data(), x_bytes.size() * sizeof(x_bytes[0])) == 0;
    };
    EXPECT_TRUE(same(updated, other.updated));
    EXPECT_TRUE(same(y, other.y));
    EXPECT_TRUE(same(x, other.x));
    EXPECT_TRUE(same(x_round, other.x_round));
    EXPECT_TRUE(same(pre_next, other.pre_next));
    EXPECT_TRUE(same(post, other.post));
    EXPECT_TRUE(same(comb, other.comb));
  }
  // `updated` is what the stream was where nothing is added.
  OnDevice<uint16_t> stream, updated, y, x, x_round;
  OnDevice<float> pre_next, post, comb, partials;
};

// `fixed_spread`: of the sums' terms; 0: as the reference has it.
void ExpectMixes(const MixOutputs& got, uint32_t rows, const reference::MixParameters& parameters,
                 double fixed_spread) {
  const Floats stream = FromBits(got.updated.Get()), pre = got.pre_next.Get();
  const Floats post = got.post.Get(), comb = got.comb.Get();
  for (uint32_t row = 0; row < rows; ++row) {
    SCOPED_TRACE(row);
    const reference::Mixes want =
        reference::MixesOf(RowOf(stream, row, stream.size() / rows), parameters);
    // A sum's error goes by the size of its terms: those that the matrix units drop are 2^-23 of
    // what they have so far, sixteen times for every 256 terms. Sigmoids and Sinkhorn pass it on.
    const double spread =
        fixed_spread > 0 ? fixed_spread : *std::max_element(want.spread, want.spread + kMixes);
    for (uint32_t i = 0; i < kStreamCopies; ++i) {
      ASSERT_NEAR(pre[row * kStreamCopies + i], want.pre[i], 2e-5 * spread + 1e-6) << i;
      ASSERT_NEAR(post[row * kStreamCopies + i], want.post[i], 2e-5 * spread + 1e-6) << i;
    }
    for (uint32_t i = 0; i < kStreamCopies * kStreamCopies; ++i) {
      ASSERT_NEAR(comb[row * kStreamCopies * kStreamCopies + i], want.comb[i], 4e-5 * spread + 5e-6)
          << i;
    }
  }
}

class MixTest : public testing::TestWithParam<StreamCase> {
 protected:
  void SetUp() override { RP_NEEDS_DEVICE(); }
};

TEST_P(MixTest, GivesTheReferencesValuesAndTheSameBytesForRowsAlone) {
  const uint32_t hidden = GetParam().hidden, rows = GetParam().rows;
  const Addition addition = GetParam().addition;
  const size_t of_row = size_t{kStreamCopies} * hidden;
  Bits before = RandomBits(rows * of_row, 1, 31);
  // Sums of about 1: Sinkhorn's turns then make no more of an error.
  const float fn_scale = 1 / std::sqrt(static_cast<float>(of_row));
  Floats fn = RandomFloats(kMixes * of_row, 0, fn_scale, 32);
  const Floats base = RandomFloats(kMixes, 0, 0.5f, 33);
  Floats scale = {0.9f, -0.7f, 1.3f};
  // Where the stream stays as it is, let the weights' largest pieces cancel, and the rest count.
  const bool small_pieces = addition == Addition::kNone;
  if (small_pieces) {
    for (size_t i = 0; i < before.size(); i += 2) before[i + 1] = before[i];
    for (size_t i = 0; i < fn.size(); i += 2) fn[i + 1] = -RoundBf16(fn[i]);
    for (float& factor : scale) factor *= 128;
  }
  const Floats pre = RandomFloats(rows * kStreamCopies, 0.3f, 0.3f, 34);
  const Floats norm = RandomFloats(hidden, 1, 0.3f, 35);
  const SublayerOutput sublayer(addition, rows, hidden, GetParam().chosen);
  const OnDevice<uint16_t> packed(PackMix(fn, hidden));
  const OnDevice<float> device_base(base), device_scale(scale), device_pre(pre), device_norm(norm);
  const auto launch = [&](uint32_t first, uint32_t count, const MixOutputs& to) {
    MixCall call = to.From(first, hidden);
    call.mixes.rows = count;
    call.mixes.weights = {
        .base = device_base.data(), .scale = device_scale.data(), .iterations = 20, .eps = kMixEps};
    call.add = sublayer.From(first);
    call.pre = device_pre.data() + size_t{first} * kStreamCopies;
    call.fn = packed.data();
    call.norm = device_norm.data();
    Launched(LaunchMix(call, nullptr));
    Launched(LaunchMixes(call.mixes, nullptr));
  };
  const MixOutputs together(rows, hidden, before), alone(rows, hidden, before);
  launch(0, rows, together);
  for (uint32_t row = 0; row < rows; ++row) launch(row, 1, alone);
  together.ExpectSameBytes(alone);

  // Every step from what the device has of the step before.
  const Floats old = FromBits(before), stream = FromBits(together.updated.Get());
  const Bits stream_bits = together.updated.Get(), y_bits = together.y.Get();
  const Bits x_bits = together.x.Get(), round_bits = together.x_round.Get();
  const Floats y = FromBits(y_bits), x = FromBits(x_bits);
  Agreement streams("stream"), collapsed("collapse"), normed("norm");
  for (uint32_t row = 0; row < rows; ++row) {
    SCOPED_TRACE(row);
    streams.AddBf16(RowOf(stream_bits, row, of_row),
                    sublayer.Reference(row, RowOf(old, row, of_row)), kStreamSlack);
    collapsed.AddBf16(RowOf(y_bits, row, hidden),
                      reference::Collapse(RowOf(stream, row, of_row), &pre[row * kStreamCopies]),
                      kStreamSlack);
    normed.AddBf16(RowOf(x_bits, row, hidden),
                   reference::Norm(RowOf(y, row, hidden), norm, kStreamEps), 0);
    const Bits want_round = ToBits(reference::RoundA(RowOf(x, row, hidden)));
    const auto round = RowOf(round_bits, row, hidden);
    ASSERT_TRUE(std::equal(round.begin(), round.end(), want_round.begin()));
  }
  streams.Expect();
  collapsed.Expect();
  normed.Expect();
  ExpectMixes(together, rows,
              {.fn = fn,
               .base = base,
               .scale = scale,
               .iterations = 20,
               .eps = kMixEps,
               .norm_eps = kStreamEps},
              small_pieces ? 3 : 0);
}

std::string NameOfMix(const testing::TestParamInfo<StreamCase>& info) {
  static constexpr const char* kKinds[] = {"Alone", "AfterRows", "AfterExperts"};
  return std::to_string(info.param.hidden) + "By" + std::to_string(info.param.rows) +
         kKinds[static_cast<int>(info.param.addition)];
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, MixTest,
    testing::Values(
        StreamCase{64, 1, 1, Addition::kNone}, StreamCase{64, 3, 1, Addition::kRows},
        StreamCase{320, 8, 6, Addition::kExperts}, StreamCase{320, 16, 6, Addition::kRows},
        StreamCase{320, 17, 1, Addition::kExperts}, StreamCase{64, 65, 6, Addition::kExperts},
        StreamCase{320, 130, 3, Addition::kNone}, StreamCase{64, 256, 1, Addition::kRows},
        StreamCase{320, 257, 6, Addition::kExperts}, StreamCase{5120, 1, 6, Addition::kExperts},
        StreamCase{5120, 3, 6, Addition::kRows}, StreamCase{5120, 17, 6, Addition::kExperts},
        StreamCase{5120, 300, 6, Addition::kExperts}),
    NameOfMix);

TEST(StreamKernels, CollapseAndTap) {
  RP_NEEDS_DEVICE();
  Agreement collapsed("collapse"), normed("norm"), means("tap");
  for (const uint32_t hidden : {64u, 320u, 5120u}) {
    for (const uint32_t rows : {1u, 17u, 130u}) {
      const size_t of_row = size_t{kStreamCopies} * hidden, count = size_t{rows} * hidden;
      const Bits stream = RandomBits(rows * of_row, 1, 41);
      const Floats pre = RandomFloats(rows * kStreamCopies, 0.3f, 0.3f, 42);
      const Floats norm = RandomFloats(hidden, 1, 0.3f, 43), values = FromBits(stream);
      const OnDevice<uint16_t> device_stream(stream), y(count), x(count), x_alone(count);
      const OnDevice<float> device_pre(pre), device_norm(norm);
      const StreamShape shape{.hidden = hidden, .eps = kStreamEps};
      Launched(LaunchCollapse(shape, rows, device_stream.data(), device_pre.data(),
                              device_norm.data(), y.data(), x.data(), nullptr));
      Launched(LaunchCollapse(shape, rows, device_stream.data(), device_pre.data(),
                              device_norm.data(), nullptr, x_alone.data(), nullptr));
      EXPECT_TRUE(x_alone.Get() == x.Get());
      constexpr uint32_t kTargets = 3;
      const OnDevice<uint16_t> taps(count * kTargets);
      Launched(LaunchTap(shape, rows, device_stream.data(), 1, kTargets, taps.data(), nullptr));
      const Bits got_y = y.Get(), got_x = x.Get(), got_taps = taps.Get();
      const Floats got_values = FromBits(got_y);
      for (uint32_t row = 0; row < rows; ++row) {
        const FloatSpan copies = RowOf(values, row, of_row);
        collapsed.AddBf16(RowOf(got_y, row, hidden),
                          reference::Collapse(copies, &pre[row * kStreamCopies]), kStreamSlack);
        normed.AddBf16(RowOf(got_x, row, hidden),
                       reference::Norm(RowOf(got_values, row, hidden), norm, kStreamEps), 0);
        means.AddBf16(RowOf(got_taps, row * kTargets + 1, hidden), reference::MeanOfCopies(copies),
                      kStreamSlack);
        for (const uint32_t other : {0u, 2u}) {  // As OnDevice left them.
          const auto beside = RowOf(got_taps, row * kTargets + other, hidden);
          ASSERT_TRUE(std::all_of(beside.begin(), beside.end(),
                                  [](uint16_t value) { return value == 0xffff; }));
        }
      }
    }
  }
  collapsed.Expect();
  normed.Expect();
  means.Expect();
}

TEST(StreamKernels, GatheredRowsAreCopies) {
  RP_NEEDS_DEVICE();
  for (const uint32_t bytes : {16u, 640u, 40'960u}) {
    const uint32_t from_rows = 37, words = bytes / 4;
    std::vector<uint32_t> from(from_rows * words), index(65);
    Prng prng(bytes);
    for (uint32_t& word : from) word = static_cast<uint32_t>(prng.Next());
    for (uint32_t& row : index) row = static_cast<uint32_t>(prng.Below(from_rows));
    const OnDevice<uint32_t> device_from(from), device_index(index), to(index.size() * words);
    Launched(LaunchGatherRows(device_from.data(), device_index.data(),
                              static_cast<uint32_t>(index.size()), bytes, to.data(), nullptr));
    const std::vector<uint32_t> got = to.Get();
    for (uint32_t row = 0; row < index.size(); ++row) {
      const auto want = RowOf(from, index[row], words), have = RowOf(got, row, words);
      ASSERT_TRUE(std::equal(want.begin(), want.end(), have.begin())) << row;
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
