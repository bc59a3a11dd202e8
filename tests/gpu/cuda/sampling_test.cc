// Tokens and drafts that the device chooses, against the host's.
#include "gpu/cuda/sampling.h"

#include <cmath>

#include "gpu/engine/sampler.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// Draws of all kinds, by row.
std::vector<TokenDraw> Draws(uint32_t rows) {
  const SamplingOptions kinds[] = {{},
                                   {.temperature = 1},
                                   {.temperature = 0.7, .top_p = 0.95},
                                   {.temperature = 1, .top_p = 0.3},
                                   {.temperature = 1e-310, .top_p = 0.5},
                                   {.temperature = 100, .top_p = 0.999999},
                                   {.temperature = 0.05},
                                   {.temperature = 2, .top_p = 1e-9},
                                   {.temperature = 100}};
  std::vector<TokenDraw> draws;
  for (uint32_t row = 0; row < rows; ++row) {
    SamplingOptions options = kinds[row % std::size(kinds)];
    options.seed = row;
    draws.push_back(Sampler(options).DrawAt(1000 + row));
  }
  return draws;
}

// Logits as models give them; many equal ones; all equal; one far above; most far below.
Floats LogitsOf(uint32_t rows, uint32_t vocab, uint64_t stride) {
  Floats logits = RandomFloats(rows * stride, 0, 4, vocab);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t i = 0; i < vocab; ++i) {
      float& logit = logits[row * stride + i];
      switch (row / 9 % 5) {
        case 1:
          logit = std::round(logit);
          break;
        case 2:
          logit = i % 2 == 0 ? 0.0f : -0.0f;
          break;
        case 3:
          logit += i == vocab / 3 ? 60.0f : 0.0f;
          break;
        case 4:
          logit = i % 7 == 3 ? logit : -1e30f;
          break;
        default:
          break;
      }
    }
  }
  return logits;
}

void ExpectHostsChoices(uint32_t rows, uint32_t vocab, uint64_t stride, bool corrected) {
  const Floats logits = LogitsOf(rows, vocab, stride);
  const Floats corrections = RandomFloats(size_t{rows} * vocab, 0, 1, 5);
  const std::vector<TokenDraw> draws = Draws(rows);
  const OnDevice<float> device_logits(logits), device_corrections(corrections);
  const OnDevice<TokenDraw> device_draws(draws);
  const OnDevice<uint32_t> tokens(rows);
  Launched(LaunchChoose({.logits = device_logits.data(),
                         .stride = stride,
                         .corrections = corrected ? device_corrections.data() : nullptr,
                         .rows = rows,
                         .vocab = vocab,
                         .draws = device_draws.data(),
                         .tokens = tokens.data()},
                        nullptr));
  const std::vector<uint32_t> got = tokens.Get();
  Floats row(vocab);
  for (uint32_t r = 0; r < rows; ++r) {
    for (uint32_t i = 0; i < vocab; ++i) {
      row[i] = logits[r * stride + i] + (corrected ? corrections[size_t{r} * vocab + i] : 0.0f);
    }
    EXPECT_EQ(got[r], static_cast<uint32_t>(ChooseToken(draws[r], row)))
        << "row " << r << " of " << vocab << " tokens";
  }
}

class VocabTest : public testing::TestWithParam<uint32_t> {};

TEST_P(VocabTest, TokensAreThoseOfTheHost) {
  RP_NEEDS_DEVICE();
  const uint32_t vocab = GetParam();
  for (const uint32_t rows : {1u, 45u, 133u}) ExpectHostsChoices(rows, vocab, vocab, false);
  ExpectHostsChoices(45, vocab, vocab + 3, true);
}
INSTANTIATE_TEST_SUITE_P(Tokens, VocabTest, testing::Values(1u, 7u, 288u, 4'097u, 129'280u),
                         testing::PrintToStringParamName());

// So many ties that they end beyond one digit of their ids.
TEST(SamplingKernels, TiesEndAtTheSameToken) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kVocab = 129'283;
  const OnDevice<float> logits(Floats(kVocab, 1.5f));
  for (const double top_p : {1e-5, 0.0163, 0.5, 0.999}) {
    const Sampler sampler({.temperature = 1, .top_p = top_p, .seed = 3});
    const OnDevice<TokenDraw> draw(std::vector<TokenDraw>{sampler.DrawAt(7)});
    const OnDevice<uint32_t> token(1);
    Launched(LaunchChoose({.logits = logits.data(),
                           .stride = kVocab,
                           .rows = 1,
                           .vocab = kVocab,
                           .draws = draw.data(),
                           .tokens = token.data()},
                          nullptr));
    EXPECT_EQ(token.Get()[0], static_cast<uint32_t>(sampler.Choose(Floats(kVocab, 1.5f), 7)));
  }
}

TEST(SamplingKernels, DraftInputsAreRowsAndEmbeddings) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kDrafts = 5, kVocab = 41;
  for (const uint32_t requests : {1u, 3u, 17u}) {
    for (const uint32_t hidden : {64u, 5120u}) {
      for (const uint32_t rank : {8u, 40u, 256u}) {
        const uint32_t width = (hidden + rank + 63) / 64 * 64;
        const Bits y = RandomBits(size_t{requests} * kDrafts * hidden, 1, 1);
        const Bits embed = RandomBits(size_t{kVocab} * rank, 1, 2);
        std::vector<uint32_t> first, tokens;
        for (uint32_t r = 0; r < requests; ++r) first.push_back(r * 7 % kVocab);
        for (uint32_t i = 0; i < requests * kDrafts; ++i) tokens.push_back(i * 11 % kVocab);
        const OnDevice<uint16_t> device_y(y), device_embed(embed);
        const OnDevice<uint32_t> device_first(first), device_tokens(tokens);
        const OnDevice<uint16_t> inputs(size_t{requests} * kDrafts * width);
        Launched(LaunchDraftInputs({.y = device_y.data(),
                                    .requests = requests,
                                    .drafts = kDrafts,
                                    .hidden = hidden,
                                    .embed = device_embed.data(),
                                    .first = device_first.data(),
                                    .tokens = device_tokens.data(),
                                    .rank = rank,
                                    .inputs = inputs.data(),
                                    .width = width},
                                   nullptr));
        const Bits got = inputs.Get();
        for (uint32_t k = 0; k < kDrafts; ++k) {
          for (uint32_t r = 0; r < requests; ++r) {
            const uint32_t previous = k == 0 ? first[r] : tokens[(k - 1) * requests + r];
            Bits want(width, 0xffff);  // What nobody writes stays poisoned.
            const auto of_y = RowOf(y, r * kDrafts + k, hidden);
            const auto of_embed = RowOf(embed, previous, rank);
            std::copy(of_y.begin(), of_y.end(), want.begin());
            std::copy(of_embed.begin(), of_embed.end(), want.begin() + hidden);
            const auto row = RowOf(got, k * requests + r, width);
            ASSERT_TRUE(std::equal(row.begin(), row.end(), want.begin()));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
