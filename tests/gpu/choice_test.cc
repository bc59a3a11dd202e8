// What is wanted of rows: tokens, logits or both. Models of random shape.
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/engine/batch.h"
#include "gpu/engine/generator.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/nano.h"
#include "tests/gpu/random_model.h"

namespace reprise::engine::test {
namespace {

class Choice : public testing::TestWithParam<uint64_t> {
 protected:
  Choice()
      : geometry_(*ModelGeometry::For(RandomConfig(GetParam()))),
        checkpoint_(RandomCheckpoint(geometry_, GetParam())),
        engine_(RandomEngine(geometry_, *checkpoint_, 2)),
        vocab_(geometry_.config.vocab_size) {}

  std::vector<TokenId> Tokens(size_t count) const {
    Prng prng(GetParam() + 900);
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng.Below(vocab_));
    return tokens;
  }
  static Segment Whole(const SequenceMemory& memory, std::span<const TokenId> tokens,
                       uint32_t logits_from) {
    return {.memory = memory, .tokens = tokens, .logits_from = logits_from};
  }

  ModelGeometry geometry_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<cpu::CpuEngine> engine_;
  size_t vocab_;
  SystemClock clock_;
};

TEST_P(Choice, TokensAreThoseOfTheLogits) {
  constexpr uint32_t kRows = 9;
  const std::vector<TokenId> tokens = Tokens(40);
  TestSequence one(*engine_, 128), other(*engine_, 128);
  std::vector<float> all(kRows * vocab_), logits(all.size(), -7);
  const Segment plain = Whole(one.memory(), tokens, 40 - kRows);
  ASSERT_TRUE(engine_->Forward({&plain, 1}, all).ok());
  std::vector<LogitRow> rows(kRows);
  for (uint32_t i = 0; i < kRows; ++i) {
    const Sampler sampler({.temperature = i % 3 * 0.6, .top_p = i % 2 == 0 ? 0.8 : 1, .seed = i});
    rows[i] = {.draw = sampler.DrawAt(i), .choose = i != 4, .token = -1};
    if (i % 2 == 0) rows[i].logits = &logits[i * vocab_];
  }
  const Segment chosen = Whole(other.memory(), tokens, 40 - kRows);
  ASSERT_TRUE(engine_->ForwardRows({&chosen, 1}, rows).ok());
  for (uint32_t i = 0; i < kRows; ++i) {
    const auto own = std::span(all).subspan(i * vocab_, vocab_);
    const auto copied = std::span(logits).subspan(i * vocab_, vocab_);
    EXPECT_EQ(rows[i].token, i == 4 ? -1 : ChooseToken(rows[i].draw, own));
    EXPECT_EQ(std::equal(own.begin(), own.end(), copied.begin()), i % 2 == 0);
  }
}

TEST_P(Choice, AsManyRowsAsGiveLogits) {
  const std::vector<TokenId> tokens = Tokens(10);
  TestSequence sequence(*engine_, 128);
  const Segment segment = Whole(sequence.memory(), tokens, 8);
  std::vector<LogitRow> rows(3);
  EXPECT_EQ(engine_->ForwardRows({&segment, 1}, rows).code(), absl::StatusCode::kInvalidArgument);
  std::vector<float> logits(2 * vocab_ + 1);
  EXPECT_EQ(engine_->Forward({&segment, 1}, logits).code(), absl::StatusCode::kInvalidArgument);
  logits.resize(2 * vocab_);
  EXPECT_TRUE(engine_->Forward({&segment, 1}, logits).ok());
}

// Each token's logits, for those who want them, are what it was chosen from; the text is the same.
TEST_P(Choice, LogitsComeWithTokensWhenTheyAreWanted) {
  const std::vector<TokenId> prompt = Tokens(50);
  const SamplingOptions sampling{.temperature = 0.8, .top_p = 0.9, .seed = 4};
  std::vector<TokenId> texts[3];
  for (int turn = 0; turn < 3; ++turn) {
    TestSequence memory(*engine_, 256);
    Sequence sequence(engine_.get(), memory.memory());
    std::vector<float> logits(vocab_);
    ASSERT_TRUE(sequence.Prefill(prompt, PrefillMode::kBounded, logits).ok());
    const GenerateOptions options{
        .tokens_max = 15, .sampling = sampling, .draft = turn == 1, .give_logits = turn > 0};
    const auto give = [&](TokenId token, std::span<const float> of_token) {
      const bool first = texts[turn].empty();
      EXPECT_EQ(of_token.size(), first || turn > 0 ? vocab_ : 0);
      if (!of_token.empty()) {
        EXPECT_EQ(Sampler(sampling).Choose(of_token, prompt.size() + texts[turn].size()), token);
      }
      texts[turn].push_back(token);
      return true;
    };
    ASSERT_TRUE(Generate(&sequence, logits, options, clock_, give).ok());
  }
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

// One turn with logits and one without, in the same steps.
TEST_P(Choice, TurnsOfABatchWantWhatTheyWant) {
  const std::vector<TokenId> prompt = Tokens(60);
  TestSequence memories[2] = {TestSequence(*engine_, 256), TestSequence(*engine_, 256)};
  std::vector<TokenId> texts[2];
  std::unique_ptr<Turn> turns[2];
  std::vector<Turn*> active;
  for (uint32_t i = 0; i < 2; ++i) {
    const GenerateOptions options{.tokens_max = 12, .give_logits = i == 1};
    turns[i] = std::make_unique<Turn>(Sequence(engine_.get(), memories[i].memory()), options,
                                      [&, i](TokenId token, std::span<const float> logits) {
                                        EXPECT_EQ(logits.size(), i == 1 ? vocab_ : 0);
                                        if (!logits.empty()) {
                                          EXPECT_EQ(LikeliestToken(logits), token);
                                        }
                                        texts[i].push_back(token);
                                        return true;
                                      });
    ASSERT_TRUE(turns[i]->Begin(prompt, PrefillMode::kBounded).ok());
    active.push_back(turns[i].get());
  }
  BatchRunner runner(engine_.get(), &clock_, {});
  while (!active.empty()) {
    ASSERT_TRUE(runner.Step(active).ok());
    std::erase_if(active, [](Turn* turn) { return turn->phase() == Turn::Phase::kDone; });
  }
  EXPECT_EQ(texts[0].size(), 12u);
  EXPECT_EQ(texts[0], texts[1]);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Choice, testing::Range<uint64_t>(1, 1 + kRandomShapes));

}  // namespace
}  // namespace reprise::engine::test
