// The number formats and the vector kernels: against the vectors of the specification, against the
// plain definitions over every code, and against one another bit for bit.
#include "gpu/cpu/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu/formats/number_formats.h"
#include "gpu/formats/quantisers.h"
#include "protocol/base/prng.h"

namespace reprise::engine::cpu {
namespace {

using Bytes8 = std::vector<uint8_t>;
using Floats = std::vector<float>;

Floats SpecificationValues() {
  Floats x = {0, 0.10009765625f, -0.25f, 0.5f, 0.75f, -1, 1.25f, 1.5f,
              2, -2.5f,          3,      3.5f, -4,    5,  6.5f,  -7.25f};
  for (int i = 0; i < 16; ++i) x.push_back(RoundBf16(x[static_cast<size_t>(i)] / 7));
  return x;
}

TEST(NumberFormats, EveryCodeComesBack) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code);
    if ((code & 0x7f) != 0x7f) {
      EXPECT_EQ(ToE4m3(FromE4m3(byte)), byte);
    }
    if (code > 0 && code < 255) {
      EXPECT_EQ(CeilToUe8m0(FromUe8m0(byte)), byte);
      EXPECT_EQ(CeilToUe8m0(std::nextafter(FromUe8m0(byte), INFINITY)), byte + 1);
    }
    if (code < 16) {
      EXPECT_EQ(ToE2m1(FromE2m1(byte)), byte);
    }
  }
  EXPECT_EQ(FromE4m3(0x7e), 448.0f);
  EXPECT_EQ(FromE4m3(0x01), 0x1p-9f);
  EXPECT_TRUE(std::isnan(FromE4m3(0xff)));
}

TEST(NumberFormats, TiesGoToTheEvenCode) {
  const std::pair<float, float> ties[] = {
      {0.25f, 0}, {0.75f, 1},      {1.25f, 1},    {1.75f, 2},    {2.5f, 2},     {3.5f, 4},
      {5, 4},     {-0.25f, -0.0f}, {0.26f, 0.5f}, {0.74f, 0.5f}, {4.99f, 4.0f}, {5.01f, 6.0f}};
  for (const auto& [x, rounded] : ties) {
    EXPECT_EQ(FromE2m1(ToE2m1(x)), rounded) << x;
    EXPECT_EQ(std::signbit(FromE2m1(ToE2m1(x))), std::signbit(x));
  }
}

TEST(NumberFormats, SpecificationVectors) {
  const Floats x = SpecificationValues();
  Bytes8 codes(32), scales(2);
  QuantiseB(x.data(), 16, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 0x3a);
  EXPECT_EQ(Bytes8(codes.begin(), codes.begin() + 8),
            (Bytes8{0x00, 0x18, 0xa1, 0x22, 0xc3, 0x54, 0x6d, 0xf7}));
  QuantiseC(x.data(), 32, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 128);
  EXPECT_EQ(Bytes8(codes.begin(), codes.begin() + 16),
            (Bytes8{0x00, 0x08, 0x91, 0x21, 0xa2, 0x43, 0x4c, 0xe5, 0x00, 0x08, 0x80, 0x00, 0x80,
                    0x00, 0x19, 0x91}));
  QuantiseA(x.data(), 32, codes.data(), scales.data());
  EXPECT_EQ(scales[0], 122);
  EXPECT_EQ(codes, (Bytes8{0x00, 0x45, 0xd0, 0x58, 0x5c, 0xe0, 0x62, 0x64, 0x68, 0xea, 0x6c,
                           0x6e, 0xf0, 0x72, 0x75, 0xf6, 0x00, 0x2f, 0xb9, 0x41, 0x46, 0xc9,
                           0x4b, 0x4e, 0x51, 0xd3, 0x56, 0x58, 0xd9, 0x5b, 0x5f, 0xe0}));
}

// bf16 values of many magnitudes, with zeros, ties and equal groups among them.
Floats RandomValues(size_t count, Prng* prng) {
  Floats x(count);
  const double spread = static_cast<double>(prng->Below(12));
  for (float& value : x) {
    const double magnitude = std::exp2((prng->Unit() - 0.7) * spread);
    value = RoundBf16(static_cast<float>((prng->Unit() - 0.5) * magnitude));
    if (prng->Chance(60)) value = 0;
    if (prng->Chance(60)) value = static_cast<float>(prng->Below(29)) * 0.25f;
  }
  return x;
}

class EveryKernel : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& kernels() { return *GetParam(); }
};

TEST_P(EveryKernel, QuantisersEqualTheirDefinition) {
  struct Quantiser {
    decltype(Kernels::quantise_a) kernel;
    decltype(Kernels::dequantise_a) back;
    decltype(&QuantiseA) definition;
    decltype(&DequantiseA) definition_back;
  };
  const Quantiser quantisers[] = {
      {kernels().quantise_a, kernels().dequantise_a, QuantiseA, DequantiseA},
      {kernels().quantise_b, kernels().dequantise_b, QuantiseB, DequantiseB},
      {kernels().quantise_c, kernels().dequantise_c, QuantiseC, DequantiseC}};
  Prng prng(7);
  for (int turn = 0; turn < 400; ++turn) {
    const size_t count = 32 * (1 + prng.Below(17));
    const Floats x = RandomValues(count, &prng);
    for (const Quantiser& q : quantisers) {
      Bytes8 codes(count), scales(count), want_codes(count), want_scales(count);
      q.kernel(x.data(), count, codes.data(), scales.data());
      q.definition(x.data(), count, want_codes.data(), want_scales.data());
      ASSERT_EQ(codes, want_codes);
      ASSERT_EQ(scales, want_scales);
      Floats back(count), want(count);
      q.back(codes.data(), scales.data(), count, back.data());
      q.definition_back(codes.data(), scales.data(), count, want.data());
      ASSERT_EQ(std::memcmp(back.data(), want.data(), count * 4), 0);
    }
    Bytes8 codes(count), scales(count);
    Floats rounded(count), want(count);
    kernels().round_a(x.data(), count, rounded.data());
    QuantiseA(x.data(), count, codes.data(), scales.data());
    DequantiseA(codes.data(), scales.data(), count, want.data());
    ASSERT_EQ(std::memcmp(rounded.data(), want.data(), count * 4), 0);
  }
}

TEST_P(EveryKernel, DequantisesEveryCode) {
  Bytes8 codes(256), scales(16), e8m0(8);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  for (size_t i = 0; i < 8; ++i) e8m0[i] = static_cast<uint8_t>(1 + i * 33);
  Floats got(256), want(256);
  codes[0x7f] = codes[0xff] = 0;  // NaN.
  kernels().dequantise_a(codes.data(), e8m0.data(), 256, got.data());
  DequantiseA(codes.data(), e8m0.data(), 256, want.data());
  EXPECT_EQ(got, want);
  for (int base = 0; base < 256; base += 16) {
    for (size_t i = 0; i < 16; ++i) {
      scales[i] = static_cast<uint8_t>((base + static_cast<int>(i)) & 0x7e);
    }
    kernels().dequantise_b(codes.data(), scales.data(), 256, got.data());
    DequantiseB(codes.data(), scales.data(), 256, want.data());
    EXPECT_EQ(got, want);
  }
}

// Rows of a matrix come out the same whatever rows are beside them, and near the exact sums.
TEST_P(EveryKernel, MatrixRowsDoNotDependOnEachOther) {
  Prng prng(11);
  for (const auto& [inputs, outputs] :
       {std::pair{64u, 24u}, {384u, 96u}, {416u, 33u}, {1536u, 64u}}) {
    const uint32_t tiles = (outputs + 31) / 32;
    Floats weights(size_t{inputs} * tiles * 32);
    std::vector<uint32_t> packed(weights.size() / 2);
    for (float& w : weights) w = RoundBf16(static_cast<float>(prng.Unit() - 0.5));
    for (size_t i = 0; i < packed.size(); ++i) {
      const size_t input = i / 16, lane = i % 16;
      packed[i] = ToBf16(weights[input * 32 + lane]) |
                  uint32_t{ToBf16(weights[input * 32 + lane + 16])} << 16;
    }
    const uint32_t rows_max = 41;
    Floats x(size_t{rows_max} * inputs), scratch(size_t{inputs} * 32);
    for (float& value : x) value = RoundBf16(static_cast<float>(prng.Unit() * 4 - 2));
    for (const bool as_float : {false, true}) {
      const MatrixTiles matrix{.bf16 = as_float ? nullptr : packed.data(),
                               .fp32 = as_float ? weights.data() : nullptr,
                               .inputs = inputs,
                               .outputs = outputs};
      const auto multiply = [&](uint32_t first, uint32_t rows) {
        Floats y(size_t{rows} * outputs);
        kernels().matrix({.matrix = matrix,
                          .x = &x[size_t{first} * inputs],
                          .x_stride = inputs,
                          .y = y.data(),
                          .y_stride = outputs,
                          .rows = rows,
                          .tile_end = tiles,
                          .scratch = scratch.data()});
        return y;
      };
      Floats alone;
      for (uint32_t row = 0; row < rows_max; ++row) {
        const Floats y = multiply(row, 1);
        alone.insert(alone.end(), y.begin(), y.end());
        for (uint32_t o = 0; o < outputs; ++o) {
          double exact = 0;
          for (uint32_t i = 0; i < inputs; ++i) {
            exact += double{x[size_t{row} * inputs + i]} *
                     weights[(size_t{o / 32} * inputs + i) * 32 + o % 32];
          }
          ASSERT_NEAR(y[o], exact, 1e-3);
        }
      }
      for (uint32_t rows = 1; rows <= rows_max; rows += rows < 9 ? 1 : 8) {
        const Floats y = multiply(0, rows);
        ASSERT_EQ(std::memcmp(y.data(), alone.data(), y.size() * 4), 0) << rows << " rows";
      }
    }
  }
}

TEST_P(EveryKernel, SinkhornVectorOfTheSpecification) {
  const float logits[16] = {0,    -.4f, -.8f, .3f, -.1f, -.5f, .6f, .2f,
                            -.2f, .9f,  .5f,  .1f, 1.2f, .8f,  .4f, 1.5f};
  const float want[16] = {.3212407f, .2144104f, .1431072f, .3212407f, .2144104f, .1431072f,
                          .4280709f, .2144104f, .1431072f, .4280710f, .2857136f, .1431071f,
                          .3212407f, .2144104f, .1431072f, .4280710f};
  Floats mixes(32), base(24), scale = {1, 1, 1}, pre(4), post(4), comb(16);
  std::copy_n(logits, 16, mixes.begin() + 8);
  const float inverse_rms = 1;
  kernels().mhc_split(mixes.data(), 32, &inverse_rms, 1, base.data(), scale.data(), 20, 1e-6f,
                      pre.data(), post.data(), comb.data());
  for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(comb[i], want[i], 2e-6) << i;
  EXPECT_NEAR(pre[0], 0.5f + 1e-6f, 1e-6);
  EXPECT_NEAR(post[0], 1.0f, 1e-6);
  for (size_t column = 0; column < 4; ++column) {
    EXPECT_NEAR(comb[column] + comb[4 + column] + comb[8 + column] + comb[12 + column], 1, 1e-5);
  }
}

// Online softmax over blocks is the softmax over all keys, with the sink in the denominator.
TEST_P(EveryKernel, AttentionIsTheSoftmaxWithASink) {
  Prng prng(3);
  constexpr uint32_t kHeads = 8, kDim = 96;
  for (const uint32_t count : {0u, 1u, 3u, 64u, 65u, 128u, 190u}) {
    Floats query(kHeads * kDim), keys(size_t{count} * kDim), sinks(kHeads);
    for (Floats* v : {&query, &keys, &sinks}) {
      for (float& value : *v) value = RoundBf16(static_cast<float>(prng.Unit() * 2 - 1));
    }
    Floats top(kHeads, -1e30f), total(kHeads), sum(kHeads * kDim), out(kHeads * kDim);
    const float* pointers[kAttentionBlock];
    AttentionCall call{.query = query.data(),
                       .heads = kHeads,
                       .dim = kDim,
                       .scale = 0.1f,
                       .keys = pointers,
                       .top = top.data(),
                       .total = total.data(),
                       .sum = sum.data()};
    for (uint32_t at = 0; at < count; at += call.count) {
      call.count = std::min(kAttentionBlock, count - at);
      for (uint32_t i = 0; i < call.count; ++i) pointers[i] = &keys[size_t{at + i} * kDim];
      kernels().attention_block(call);
    }
    kernels().attention_end(call, sinks.data(), out.data());
    for (uint32_t head = 0; head < kHeads; ++head) {
      std::vector<double> want(kDim);
      double denominator = std::exp(double{sinks[head]});
      for (uint32_t k = 0; k < count; ++k) {
        double dot = 0;
        for (uint32_t d = 0; d < kDim; ++d)
          dot += double{query[head * kDim + d]} * keys[k * kDim + d];
        denominator += std::exp(dot * 0.1f);
        for (uint32_t d = 0; d < kDim; ++d) want[d] += std::exp(dot * 0.1f) * keys[k * kDim + d];
      }
      for (uint32_t d = 0; d < kDim; ++d) {
        ASSERT_NEAR(out[head * kDim + d], want[d] / denominator, 6e-3) << count << " keys";
      }
    }
  }
}

std::string NameOf(const testing::TestParamInfo<const Kernels*>& info) { return info.param->name; }
INSTANTIATE_TEST_SUITE_P(Sets, EveryKernel,
                         testing::ValuesIn(RunnableKernels().begin(), RunnableKernels().end()),
                         NameOf);

// ---- One another -------------------------------------------------------------------------------

TEST(Kernels, AllSetsGiveTheSameBits) {
  Prng prng(5);
  const size_t count = 384;
  for (int turn = 0; turn < 20; ++turn) {
    const Floats a = RandomValues(4 * count, &prng), b = RandomValues(4 * count, &prng);
    Floats small(64);
    for (float& value : small) value = static_cast<float>(prng.Unit());
    std::vector<Floats> results;
    for (const Kernels* kernels : RunnableKernels()) {
      Floats out(count * 4);
      Floats all;
      const auto keep = [&all, &out] { all.insert(all.end(), out.begin(), out.end()); };
      kernels->rms_norm(a.data(), b.data(), count, 1e-20f, out.data()), keep();
      kernels->swiglu(a.data(), b.data(), 0.3f, 10.0f, count, out.data()), keep();
      kernels->compress_pair(a.data(), b.data(), a.data() + count, b.data() + count, count,
                             out.data()),
          keep();
      kernels->mhc_collapse(a.data(), small.data(), count, out.data()), keep();
      out = a;
      kernels->mhc_update(b.data(), small.data(), small.data() + 4, count, out.data()), keep();
      out = a;
      kernels->rotate(out.data(), small.data(), small.data() + 32, 32), keep();
      out = a;
      kernels->add_scaled(0.7f, b.data(), count, out.data()), keep();
      all.push_back(kernels->dot3(a.data(), b.data(), a.data() + count, count));
      Floats pre(64), post(64), comb(256);
      kernels->mhc_split(a.data(), 32, small.data(), 16, small.data(), small.data() + 24, 20, 1e-6f,
                         pre.data(), post.data(), comb.data());
      for (const Floats* v : {&pre, &post, &comb}) all.insert(all.end(), v->begin(), v->end());
      Floats top(8, -1e30f), total(8), sum(8 * 96);
      const float* keys[12];
      for (size_t i = 0; i < 12; ++i) keys[i] = b.data() + 96 * i;
      const AttentionCall call{.query = a.data(),
                               .heads = 8,
                               .dim = 96,
                               .scale = 0.1f,
                               .keys = keys,
                               .count = 12,
                               .top = top.data(),
                               .total = total.data(),
                               .sum = sum.data()};
      kernels->attention_block(call);
      kernels->attention_end(call, small.data(), out.data()), keep();
      results.push_back(all);
    }
    for (const Floats& result : results) {
      ASSERT_EQ(result.size(), results[0].size());
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * 4), 0);
    }
  }
}

TEST(Kernels, BlockTopsAreThePlainLoop) {
  Prng prng(10);
  for (const uint32_t count : {1u, 7u, 15u, 16u, 17u, 31u, 100u, 257u, 1000u}) {
    Floats values(count);
    for (float& value : values) value = static_cast<float>(prng.Below(40)) / 8 - 2;
    for (const uint32_t size : {1u, 3u, 8u, 16u, 24u, 128u}) {
      const uint32_t blocks = count / size;
      Floats want(blocks);
      for (uint32_t block = 0; block < blocks; ++block) {
        want[block] =
            *std::max_element(values.begin() + block * size, values.begin() + (block + 1) * size);
      }
      for (const Kernels* kernels : RunnableKernels()) {
        Floats tops(blocks);
        kernels->block_tops(values.data(), blocks, size, tops.data());
        EXPECT_EQ(tops, want) << kernels->name << " " << count << " " << size;
      }
    }
  }
}

// Few different values, so that many are equal; and many, of both signs.
TEST(Kernels, LargestAreTheFirstOfAStableSort) {
  Prng prng(11);
  for (const uint32_t count : {1u, 7u, 15u, 16u, 17u, 31u, 100u, 257u, 2048u, 20000u}) {
    for (const uint32_t values_of : {1u, 3u, 40u, 1u << 24}) {
      Floats values(count);
      for (float& value : values) {
        value = (static_cast<float>(prng.Below(values_of)) - static_cast<float>(values_of / 3)) / 8;
      }
      std::vector<uint32_t> order(count);
      std::iota(order.begin(), order.end(), 0u);
      std::stable_sort(order.begin(), order.end(),
                       [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
      for (const uint32_t wanted : {0u, 1u, 2u, 15u, 64u, 200u, 3000u}) {
        std::vector<uint32_t> want(order.begin(), order.begin() + std::min(wanted, count));
        std::sort(want.begin(), want.end());
        for (const Kernels* kernels : RunnableKernels()) {
          std::vector<uint32_t> found(want.size() + 1, UINT32_MAX);
          EXPECT_EQ(kernels->largest(values.data(), count, wanted, found.data()), want.size());
          EXPECT_EQ(found.back(), UINT32_MAX) << "written past the last";
          found.pop_back();
          EXPECT_EQ(found, want) << kernels->name << " " << count << " " << values_of << " "
                                 << wanted;
        }
      }
    }
  }
}

TEST(Kernels, IndexScoresAreExactAndTheSameInAllSets) {
  Prng prng(9);
  constexpr uint32_t kHeads = 4, kRows = 5;
  for (const uint32_t dim : {32u, 64u, 128u}) {
    Bytes8 codes(kIndexEntries * dim / 2), scales(kIndexEntries * dim / 32);
    Bytes8 query_codes(kRows * kHeads * dim / 2), query_scales(kRows * kHeads * dim / 32);
    for (Bytes8* v : {&codes, &query_codes}) {
      for (uint8_t& code : *v) code = static_cast<uint8_t>(prng.Next());
    }
    std::fill(codes.begin(), codes.begin() + dim / 2, 0x77);  // The largest sums there can be.
    std::fill(query_codes.begin(), query_codes.begin() + dim / 2, 0x77);
    std::fill(query_codes.begin() + dim / 2, query_codes.begin() + dim, 0xff);
    for (Bytes8* v : {&scales, &query_scales}) {
      for (uint8_t& scale : *v) scale = static_cast<uint8_t>(122 + prng.Below(9));
    }
    Floats weights(kRows * kHeads);
    for (float& w : weights) w = RoundBf16(static_cast<float>(prng.Unit() - 0.3));
    const uint8_t *code_of[kIndexEntries], *scale_of[kIndexEntries];
    for (size_t i = 0; i < kIndexEntries; ++i) {
      code_of[i] = &codes[i * dim / 2];
      scale_of[i] = &scales[i * dim / 32];
    }
    std::vector<Floats> results;
    for (const Kernels* kernels : RunnableKernels()) {
      Bytes8 tile(IndexTileBytes(dim)), queries(kRows * kHeads * IndexQueryBytes(dim));
      Floats scores(kRows * kIndexEntries);
      kernels->index_tile(code_of, scale_of, dim, tile.data());
      for (size_t q = 0; q < kRows * kHeads; ++q) {
        kernels->index_query(&query_codes[q * dim / 2], &query_scales[q * dim / 32], dim,
                             &queries[q * IndexQueryBytes(dim)]);
      }
      kernels->index_scores(tile.data(), queries.data(), weights.data(), kHeads, dim, kRows,
                            scores.data(), kIndexEntries);
      results.push_back(scores);
    }
    for (const Floats& result : results) EXPECT_EQ(result, results[0]);
    for (size_t row = 0; row < kRows; ++row) {
      for (size_t entry = 0; entry < kIndexEntries; ++entry) {
        Floats key(dim), query(dim);
        DequantiseC(code_of[entry], scale_of[entry], dim, key.data());
        double score = 0;
        for (size_t head = 0; head < kHeads; ++head) {
          const size_t q = row * kHeads + head;
          DequantiseC(&query_codes[q * dim / 2], &query_scales[q * dim / 32], dim, query.data());
          double dot = 0;
          for (size_t d = 0; d < dim; ++d) dot += double{query[d]} * key[d];
          score += weights[q] * std::max(0.0, dot);
        }
        EXPECT_NEAR(results[0][row * kIndexEntries + entry], score, 1e-5 * (1 + std::fabs(score)));
      }
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cpu
