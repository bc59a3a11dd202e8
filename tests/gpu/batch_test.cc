// Turns that run together: each gives what it gives alone, whatever the others do.
#include "gpu/engine/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "gpu/engine/generator.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/nano.h"
#include "tests/gpu/random_model.h"

namespace reprise::engine::test {
namespace {

class Batch : public testing::TestWithParam<uint64_t> {
 protected:
  Batch()
      : geometry_(*ModelGeometry::For(RandomConfig(GetParam()))),
        checkpoint_(RandomCheckpoint(geometry_, GetParam())),
        engine_(RandomEngine(geometry_, *checkpoint_, 2)),
        prng_(GetParam() + 5000) {}

  std::vector<TokenId> Tokens(size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(prng_.Below(geometry_.config.vocab_size));
    }
    return tokens;
  }

  struct Alone {
    std::vector<TokenId> text;
    std::string stored;
  };
  Alone RunAlone(const std::vector<TokenId>& prompt, const GenerateOptions& options) {
    TestSequence memory(*engine_, 768);
    Sequence sequence(engine_.get(), memory.memory());
    std::vector<float> logits(geometry_.config.vocab_size);
    EXPECT_TRUE(sequence.Prefill(prompt, PrefillMode::kBounded, logits).ok());
    Alone alone;
    const auto report =
        Generate(&sequence, logits, options, clock_, [&](TokenId token, std::span<const float>) {
          alone.text.push_back(token);
          return true;
        });
    EXPECT_TRUE(report.ok()) << report.status();
    alone.stored = Stored(&memory, sequence);
    return alone;
  }
  std::string Stored(TestSequence* memory, const Sequence& sequence) {
    return memory->StoredBytes(
        *engine_, sequence.length(),
        std::max(sequence.held().encoder_from, sequence.held().decoder_from));
  }

  ModelGeometry geometry_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<cpu::CpuEngine> engine_;
  Prng prng_;
  SystemClock clock_;
};

// Prompts of different lengths that come at different times, with few rows for each step.
TEST_P(Batch, TurnsAreAsAlone) {
  constexpr size_t kTurns = 5;
  const GenerateOptions options{.tokens_max = 12};
  std::vector<std::vector<TokenId>> prompts, texts(kTurns);
  std::deque<TestSequence> memories;
  std::vector<std::unique_ptr<Turn>> turns;
  std::vector<Alone> want;
  for (size_t i = 0; i < kTurns; ++i) {
    prompts.push_back(Tokens(1 + prng_.Below(400)));
    want.push_back(RunAlone(prompts[i], options));
    memories.emplace_back(*engine_, 768);
    turns.push_back(std::make_unique<Turn>(Sequence(engine_.get(), memories[i].memory()), options,
                                           [&texts, i](TokenId token, std::span<const float>) {
                                             texts[i].push_back(token);
                                             return true;
                                           }));
  }
  BatchRunner runner(engine_.get(), &clock_, {.prefill_rows_beside = 40});
  std::vector<Turn*> active;
  for (uint32_t step = 0; step < 1000; ++step) {
    if (step % 3 == 0 && step / 3 < kTurns) {
      ASSERT_TRUE(turns[step / 3]->Begin(prompts[step / 3], PrefillMode::kBounded).ok());
      active.push_back(turns[step / 3].get());
    }
    std::erase_if(active, [](Turn* turn) { return turn->phase() == Turn::Phase::kDone; });
    if (active.empty() && step / 3 >= kTurns) break;
    if (active.empty()) continue;
    const auto report = runner.Step(active);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_GT(report->turns, 0u);
    if (report->generate_rows > 0) {
      EXPECT_LE(report->prefill_rows, 40u);
    }
  }
  for (size_t i = 0; i < kTurns; ++i) {
    EXPECT_EQ(texts[i], want[i].text) << i;
    EXPECT_TRUE(Stored(&memories[i], turns[i]->sequence()) == want[i].stored) << i;
  }
}

// Replays of several sequences in one batch, beside one that generates.
TEST_P(Batch, ReplaysRunTogether) {
  const GenerateOptions options{.tokens_max = 6};
  struct Case {
    std::vector<TokenId> tokens;
    uint32_t hit;
    std::string records;
    std::vector<TokenId> alone, text;
  };
  std::vector<Case> cases;
  std::deque<TestSequence> memories;
  for (int i = 0; i < 3; ++i) {
    const auto hit = static_cast<uint32_t>(140 + prng_.Below(200));
    Case c{.tokens = Tokens(hit + 1 + prng_.Below(150)),
           .hit = hit,
           .records = {},
           .alone = {},
           .text = {}};
    memories.emplace_back(*engine_, 768);
    Sequence cold(engine_.get(), memories.back().memory());
    std::vector<float> logits(geometry_.config.vocab_size);
    ASSERT_TRUE(cold.Prefill(c.tokens, PrefillMode::kBounded, logits).ok());
    c.records = memories.back().RecordBytes(*engine_, hit);
    // Alone, on a copy.
    TestSequence copy(*engine_, 768);
    for (uint32_t b = 0; b < copy.block_count(); ++b) {
      std::copy_n(memories.back().block(b), geometry_.record.payload_bytes, copy.block(b));
    }
    Sequence resumed(engine_.get(), copy.memory());
    resumed.Resume({c.tokens.begin(), c.tokens.begin() + hit}, {.hit = hit});
    ASSERT_TRUE(
        resumed.Prefill(std::span(c.tokens).subspan(hit), PrefillMode::kBounded, logits).ok());
    ASSERT_TRUE(
        Generate(&resumed, logits, options, clock_, [&](TokenId token, std::span<const float>) {
          c.alone.push_back(token);
          return true;
        }).ok());
    cases.push_back(std::move(c));
  }
  std::vector<std::unique_ptr<Turn>> turns;
  std::vector<Turn*> active;
  for (size_t i = 0; i < cases.size(); ++i) {
    Case& c = cases[i];
    Sequence sequence(engine_.get(), memories[i].memory());
    sequence.Resume({c.tokens.begin(), c.tokens.begin() + c.hit}, {.hit = c.hit});
    turns.push_back(std::make_unique<Turn>(std::move(sequence), options,
                                           [&c](TokenId token, std::span<const float>) {
                                             c.text.push_back(token);
                                             return true;
                                           }));
    ASSERT_TRUE(
        turns.back()->Begin(std::span(c.tokens).subspan(c.hit), PrefillMode::kBounded).ok());
    turns.back()->StopAt(c.hit);
    active.push_back(turns.back().get());
  }
  BatchRunner runner(engine_.get(), &clock_, {});
  while (!active.empty()) {
    ASSERT_TRUE(runner.Step(active).ok());
    std::erase_if(active, [](Turn* turn) { return turn->phase() == Turn::Phase::kDone; });
  }
  for (size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(cases[i].text, cases[i].alone) << i;
    EXPECT_TRUE(memories[i].RecordBytes(*engine_, cases[i].hit) == cases[i].records) << i;
    EXPECT_EQ(turns[i]->sequence().replayed_rows(), geometry_.config.window);
    EXPECT_FALSE(turns[i]->sequence().encoder_exact());
  }
}

// A second answer to the same prompt, from a copy of the state at its end.
TEST_P(Batch, AnswersShareAPrompt) {
  const std::vector<TokenId> prompt = Tokens(150 + prng_.Below(100));
  const GenerateOptions options{.tokens_max = 10};
  const Alone want = RunAlone(prompt, options);
  TestSequence first_memory(*engine_, 768), second_memory(*engine_, 768);
  std::vector<TokenId> first_text, second_text;
  const auto into = [](std::vector<TokenId>* text) {
    return [text](TokenId token, std::span<const float>) {
      text->push_back(token);
      return true;
    };
  };
  Turn first(Sequence(engine_.get(), first_memory.memory()), options, into(&first_text));
  ASSERT_TRUE(first.Begin(prompt, PrefillMode::kBounded).ok());
  first.KeepPromptLogits();
  first.StopAt(100);
  BatchRunner runner(engine_.get(), &clock_, {});
  bool stopped = false;
  while (first.phase() == Turn::Phase::kPrefill) {
    Turn* turn = &first;
    ASSERT_TRUE(runner.Step({&turn, 1}).ok());
    stopped = stopped || (first.sequence().rows_left() > 0 && first.sequence().next_row() == 100);
  }
  EXPECT_TRUE(stopped);
  for (uint32_t b = 0; b < second_memory.block_count(); ++b) {
    std::copy_n(first_memory.block(b), geometry_.record.payload_bytes, second_memory.block(b));
  }
  std::copy_n(first_memory.window(), engine_->window_layout().bytes, second_memory.window());
  Sequence copy = first.sequence();
  copy.SetMemory(second_memory.memory());
  Turn second(std::move(copy), options, into(&second_text));
  second.BeginAfter(first);
  std::vector<Turn*> active = {&first, &second};
  while (!active.empty()) {
    ASSERT_TRUE(runner.Step(active).ok());
    std::erase_if(active, [](Turn* turn) { return turn->phase() == Turn::Phase::kDone; });
  }
  EXPECT_EQ(first_text, want.text);
  EXPECT_EQ(second_text, want.text);
}

TEST_P(Batch, ForcedTokensAreGiven) {
  const std::vector<TokenId> prompt = Tokens(50), forced = Tokens(9);
  const Alone got = RunAlone(prompt, {.tokens_max = 9, .forced = forced});
  EXPECT_EQ(got.text, forced);
}

INSTANTIATE_TEST_SUITE_P(Shapes, Batch,
                         testing::Range<uint64_t>(1, std::min<uint64_t>(kRandomShapes, 4) + 1));

}  // namespace
}  // namespace reprise::engine::test
