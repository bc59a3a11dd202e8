// The packed mixing weights, read back as the kernel reads them, and the reference of the mixes.
// Needs no GPU.
#include "gpu/cuda/mix_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_reference.h"

namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kPackedCopies = 4;

// Piece of a weight by the swizzle of operand B: 16-byte pieces of a 128-byte row change places by
// the row's last three bits.
float PieceOf(const std::vector<uint16_t>& packed, uint32_t piece, uint32_t mix, uint32_t copy,
              uint32_t d) {
  const size_t tile = (size_t{d / 64} * kPackedCopies + copy) * kMixTileValues;
  const uint32_t row = piece * kMixes + mix;
  const uint32_t byte = row * 128 + d % 64 * 2;
  return FromBf16(packed[tile + (byte ^ (byte >> 3 & 0x70)) / 2]);
}

TEST(MixLayout, ThreePiecesAreTheWeight) {
  for (const uint32_t hidden : {64u, 320u}) {
    Prng prng(hidden);
    std::vector<float> fn(size_t{kMixes} * kPackedCopies * hidden);
    for (float& value : fn) {
      value = static_cast<float>((prng.Unit() - 0.5) * std::pow(2.0, -double(prng.Below(20))));
    }
    fn[5] = 0;
    const std::vector<uint16_t> packed = PackMix(fn, hidden);
    ASSERT_EQ(packed.size(), fn.size() * kMixPieces);
    for (uint32_t mix = 0; mix < kMixes; ++mix) {
      for (uint32_t copy = 0; copy < kPackedCopies; ++copy) {
        for (uint32_t d = 0; d < hidden; ++d) {
          const float weight = fn[(size_t{mix} * kPackedCopies + copy) * hidden + d];
          double sum = 0, before = 0;
          for (uint32_t piece = 0; piece < kMixPieces; ++piece) {
            const float value = PieceOf(packed, piece, mix, copy, d);
            if (piece > 0) {
              ASSERT_LE(std::fabs(value), before / 256);
            }
            before = std::fabs(value);
            sum += value;
          }
          ASSERT_NEAR(sum, weight, std::ldexp(std::fabs(weight), -24))
              << "mix " << mix << ", copy " << copy << ", value " << d;
        }
      }
    }
  }
}

TEST(KernelReference, SinkhornGivesTheFactsValues) {
  double c[4][4] = {
      {0, -0.4, -0.8, 0.3}, {-0.1, -0.5, 0.6, 0.2}, {-0.2, 0.9, 0.5, 0.1}, {1.2, 0.8, 0.4, 1.5}};
  const double want[4][4] = {{0.3212407, 0.2144104, 0.1431072, 0.3212407},
                             {0.2144104, 0.1431072, 0.4280709, 0.2144104},
                             {0.1431072, 0.4280710, 0.2857136, 0.1431071},
                             {0.3212407, 0.2144104, 0.1431072, 0.3212407}};
  reference::Sinkhorn(c, 20, 1e-6);
  for (int a = 0; a < 4; ++a) {
    for (int k = 0; k < 4; ++k) EXPECT_NEAR(c[a][k], want[a][k], 3e-7) << a << " " << k;
  }
}

TEST(KernelReference, TiesOfExpertsAndBlocksGoToTheFirst) {
  const std::vector<float> logits = {1, 2, 2, 0, 2}, bias(5, 0.0f);
  const reference::Route route = reference::RouteOf(logits, bias, 2, 1.5f);
  EXPECT_EQ(route.experts, (std::vector<uint32_t>{1, 2}));
  EXPECT_NEAR(route.weights[0] + route.weights[1], 1.5f, 1e-6f);
  EXPECT_GT(route.margin, 0.1);
  // Four blocks of two, the last of which is short and always in.
  const std::vector<float> scores = {3, 1, 5, 0, 5, 5, 9};
  EXPECT_EQ(reference::Pool(scores, 2, 2), (std::vector<uint32_t>{2, 3, 6}));
  EXPECT_EQ(reference::Pool(scores, 2, 4), (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace reprise::engine::cuda
