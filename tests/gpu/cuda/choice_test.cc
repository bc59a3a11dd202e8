// What the engine chooses on the device: rows' tokens, and drafts.
#include <algorithm>

#include "gpu/engine/sampler.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// ----------------------------------------------------------------------------------

// Eager, captured, replayed; beside logits and without.
TEST(SamplingEngine, RowsTokensAreThoseOfTheirLogits) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  CudaEngine& gpu = CudaNano();
  constexpr uint32_t kRows = 19;
  const std::vector<TokenId> tokens = Text(40);
  const std::vector<TokenDraw> draws = DrawsOfFourKinds(kRows);
  for (int turn = 0; turn < 4; ++turn) {
    TwinSequence sequence(gpu, 128);
    Segment segment = WholeRows(sequence.device(), tokens, 0);
    segment.logits_from = 40 - kRows;
    std::vector<float> logits(kRows * vocab);
    std::vector<LogitRow> rows(kRows);
    for (uint32_t i = 0; i < kRows; ++i) {
      rows[i] = {.draw = draws[i], .choose = i != 4, .token = -1};
      if (i % 3 != 1) rows[i].logits = &logits[i * vocab];
    }
    Must(gpu.ForwardRows({&segment, 1}, rows));
    TwinSequence other(gpu, 128);
    Segment again = WholeRows(other.device(), tokens, 0);
    again.logits_from = segment.logits_from;
    std::vector<float> all(kRows * vocab);
    Must(gpu.Forward({&again, 1}, all));
    for (uint32_t i = 0; i < kRows; ++i) {
      const auto own = std::span(all).subspan(i * vocab, vocab);
      const auto copied = std::span(logits).subspan(i * vocab, vocab);
      EXPECT_EQ(rows[i].token, i == 4 ? -1 : ChooseToken(draws[i], own)) << i;
      const bool same = std::equal(own.begin(), own.end(), copied.begin());
      EXPECT_EQ(same, i % 3 != 1) << i;
    }
  }
}

// What a draft is does not depend on the requests beside it, nor on how its launches are queued.
TEST(SamplingEngine, DraftsTogetherAreAsAlone) {
  RP_NEEDS_DEVICE();
  CudaEngine& gpu = CudaNano();
  const uint32_t block = NanoGeometry().config.draft_block;
  std::vector<TwinSequence> sequences;
  std::vector<DraftRequest> requests;
  for (int i = 0; i < 3; ++i) sequences.emplace_back(gpu, 384);
  const size_t vocab = NanoGeometry().config.vocab_size;
  for (uint32_t i = 0; i < 3; ++i) {
    const uint32_t length = 60 + 90 * i;
    const std::vector<TokenId> tokens = Text(length);
    std::vector<float> logits(length * vocab);
    const Segment segment = WholeRows(sequences[i].device(), tokens, 0);
    Must(gpu.Forward({&segment, 1}, logits));
    requests.push_back({.memory = sequences[i].device(),
                        .length = length,
                        .decoder_from = 0,
                        .token = Text(length + 1)[length],
                        .draws = {}});
    const Sampler sampler({.temperature = 0.9, .top_p = 0.9, .seed = i});
    for (uint32_t k = 0; i > 0 && k < block; ++k) {
      requests[i].draws.push_back(sampler.DrawAt(length + 1 + k));
    }
  }
  std::vector<DraftResult> alone(3), together(3);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t i = 0; i < 3; ++i) Must(gpu.Draft({&requests[i], 1}, {&alone[i], 1}));
    Must(gpu.Draft(requests, together));
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(together[i].tokens.size(), block);
      EXPECT_EQ(together[i].tokens, alone[i].tokens) << i;
      EXPECT_EQ(together[i].confidences, alone[i].confidences) << i;
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
