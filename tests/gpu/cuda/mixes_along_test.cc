// Mixes that a launch takes along are those that LaunchMixes makes.
#include <cstring>

#include "gpu/cuda/linear.h"
#include "gpu/cuda/mix_layout.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint32_t kHidden = 320, kMixed = 4;

// Of rows with random sums.
struct Mixed {
  Mixed(uint32_t rows, const OnDevice<float>& partials, const OnDevice<float>& base,
        const OnDevice<float>& scale)
      : pre(rows * kMixed),
        post(rows * kMixed),
        comb(rows * kMixed * kMixed),
        call{
            .shape = {.hidden = kHidden, .eps = 1e-6f},
            .rows = rows,
            .weights = {.base = base.data(), .scale = scale.data(), .iterations = 20, .eps = 1e-6f},
            .partials = partials.data(),
            .pre = pre.data(),
            .post = post.data(),
            .comb = comb.data()} {}
  bool SameAs(const Mixed& other) const {
    const auto same = [](const OnDevice<float>& a, const OnDevice<float>& b) {
      const Floats x = a.Get(), y = b.Get();
      return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
    };
    return same(pre, other.pre) && same(post, other.post) && same(comb, other.comb);
  }

  OnDevice<float> pre, post, comb;
  MixesCall call;
};

// With or without queries, from projected rows of zeros.
void Project(const MixesCall& mixes, bool with_queries) {
  constexpr uint32_t kLow = 64, kDim = 32, kPairs = 4;
  const std::vector<PartOfStep> list(mixes.rows, {.first = 5});
  const RandomStep step(list, kPairs, {}, 1);
  const OnDevice<uint16_t> projected(Bits(size_t{mixes.rows} * (kLow + kDim), 0));
  const OnDevice<float> norm(Floats(kLow, 1));
  const OnDevice<uint8_t> codes(size_t{mixes.rows} * kDim), scales(mixes.rows);
  Launched(LaunchProjected({.step = step.view(),
                            .projected = projected.data(),
                            .low = kLow,
                            .dim = kDim,
                            .q_norm = with_queries ? norm.data() : nullptr,
                            .kv_norm = norm.data(),
                            .eps = 1e-6f,
                            .codes = codes.data(),
                            .scales = scales.data(),
                            .mixes = mixes},
                           nullptr));
}

// Of equal experts. Slices: those of the launch that is all of it, or others.
void Route(const MixesCall& mixes, uint32_t slices) {
  constexpr uint32_t kExperts = 65, kChosen = 2;
  const uint32_t rows = mixes.rows;
  const OnDevice<uint16_t> gate(Bits(2 * 64 * 64, 0)), x(Bits(size_t{rows} * 64, 0));
  const OnDevice<float> bias(Floats(kExperts, 0));
  const OnDevice<uint8_t> image(std::vector<uint8_t>(rows, 0));
  const RouteOutputs got(rows, kExperts, kChosen, 8);
  RouteCall call = got.Call();
  call.bias = call.image_bias = bias.data();
  call.image = image.data();
  call.scaling = 1;
  call.mixes = mixes;
  Launched(LaunchRoute({.matrix = {.outputs = kExperts,
                                   .inputs = 64,
                                   .output_tiles = 2,
                                   .input_tiles = 1,
                                   .slices = slices,
                                   .codes = gate.data()},
                        .output = LinearOutput::kFloat,
                        .x = x.data(),
                        .x_stride = 64,
                        .y = got.logits.data(),
                        .y_stride = kExperts,
                        .rows = rows},
                       call, nullptr));
  const std::vector<uint32_t> experts = got.expert_of.Get();
  for (uint32_t i = 0; i < experts.size(); ++i) EXPECT_EQ(experts[i], i % kChosen);
  EXPECT_EQ(got.tile_count.Get()[0], kChosen * ((rows + 7) / 8));
}

TEST(MixesAlong, OtherLaunchesMakeTheSameMixes) {
  RP_NEEDS_DEVICE();
  const OnDevice<float> base(RandomFloats(kMixes, 0, 0.5f, 1)), scale(Floats{0.9f, -0.7f, 1.3f});
  for (const uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, kPartialMixes, 9u, 16u, 37u}) {
    SCOPED_TRACE(rows);
    const OnDevice<float> partials(
        RandomFloats(size_t{rows} * (kHidden / 64) * kMixPartials, 1, 0.3f, rows));
    const Mixed want(rows, partials, base, scale);
    Launched(LaunchMixes(want.call, nullptr));
    for (const bool with_queries : {true, false}) {
      const Mixed got(rows, partials, base, scale);
      Project(got.call, with_queries);
      EXPECT_TRUE(got.SameAs(want));
    }
    for (const uint32_t slices : {1u, 8u}) {
      const Mixed got(rows, partials, base, scale);
      Route(got.call, slices);
      EXPECT_TRUE(got.SameAs(want)) << slices;
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
