// The engine's promises on models of random shape: whole against cut, alone against batched, one
// thread against three, saved and restored, replayed, drafted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/engine/generator.h"
#include "gpu/engine/snapshot.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/nano.h"
#include "tests/gpu/random_model.h"

namespace reprise::engine::test {
namespace {

class RandomModel : public testing::TestWithParam<uint64_t> {
 protected:
  RandomModel()
      : geometry_(*ModelGeometry::For(RandomConfig(GetParam()))),
        checkpoint_(RandomCheckpoint(geometry_, GetParam())),
        engine_(RandomEngine(geometry_, *checkpoint_, 2)),
        prng_(GetParam() + 1000) {}

  std::vector<TokenId> Tokens(size_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(prng_.Below(geometry_.config.vocab_size));
    }
    return tokens;
  }
  uint32_t Below(uint32_t bound) { return static_cast<uint32_t>(prng_.Below(bound)); }
  void CopyRecords(TestSequence* from, TestSequence* to) {
    for (uint32_t i = 0; i < to->block_count(); ++i) {
      std::copy_n(from->block(i), geometry_.record.payload_bytes, to->block(i));
    }
  }

  ModelGeometry geometry_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<cpu::CpuEngine> engine_;
  Prng prng_;
};

TEST_P(RandomModel, CutsAndThreadsDoNotMatter) {
  const auto length = static_cast<uint32_t>(200 + prng_.Below(300));
  const std::vector<TokenId> tokens = Tokens(length);
  TestSequence whole(*engine_, 512);
  const std::vector<float> want = whole.RunExact(*engine_, tokens, 0, 1024);
  const std::string stored = whole.StoredBytes(*engine_, length);
  for (const float logit : want) ASSERT_TRUE(std::isfinite(logit));
  for (const uint32_t chunk : {1 + Below(9), 60 + Below(10), 120 + Below(20)}) {
    TestSequence cut(*engine_, 512);
    EXPECT_TRUE(cut.RunExact(*engine_, tokens, 0, chunk) == want) << chunk;
    EXPECT_TRUE(cut.StoredBytes(*engine_, length) == stored) << chunk;
  }
  const auto other = RandomEngine(geometry_, *checkpoint_, 3);
  TestSequence threaded(*other, 512);
  EXPECT_TRUE(threaded.RunExact(*other, tokens, 0, 100) == want);
  EXPECT_TRUE(threaded.StoredBytes(*other, length) == stored);
}

TEST_P(RandomModel, BatchesDoNotMatter) {
  const size_t vocab = geometry_.config.vocab_size;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<TestSequence> together;
  std::vector<std::vector<float>> want;
  std::vector<std::string> stored;
  for (uint32_t i = 0; i < 3; ++i) {
    tokens.push_back(Tokens(1 + prng_.Below(250)));
    TestSequence alone(*engine_, 256);
    want.push_back(alone.RunExact(*engine_, tokens[i], 0, 1024));
    stored.push_back(alone.StoredBytes(*engine_, static_cast<uint32_t>(tokens[i].size())));
    together.emplace_back(*engine_, 256);
  }
  std::vector<Segment> batch;
  std::vector<float> logits;
  for (uint32_t i = 0; i < 3; ++i) {
    batch.push_back({.memory = together[i].memory(), .tokens = tokens[i]});
    logits.resize(logits.size() + tokens[i].size() * vocab);
  }
  ASSERT_TRUE(engine_->Forward(batch, logits).ok());
  std::vector<float> all;
  for (const auto& part : want) all.insert(all.end(), part.begin(), part.end());
  EXPECT_TRUE(logits == all);
  for (uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(together[i].StoredBytes(*engine_, static_cast<uint32_t>(tokens[i].size())) ==
                stored[i]);
  }
}

TEST_P(RandomModel, SavedAndRestored) {
  const auto length = static_cast<uint32_t>(1 + prng_.Below(300));
  std::vector<TokenId> tokens = Tokens(length);
  TestSequence one(*engine_, 512), two(*engine_, 512);
  one.RunExact(*engine_, tokens, 0, 1024);
  std::vector<std::byte> snapshot(SnapshotBytes(geometry_, length, true));
  SaveSnapshot(geometry_, engine_->window_layout(), one.window(),
               {.position = length, .decoder = true}, snapshot);
  CopyRecords(&one, &two);
  ASSERT_TRUE(RestoreSnapshot(geometry_, engine_->window_layout(), snapshot, two.window()).ok());
  for (const TokenId token : Tokens(9)) tokens.push_back(token);
  EXPECT_TRUE(one.RunExact(*engine_, tokens, length, 4) ==
              two.RunExact(*engine_, tokens, length, 2))
      << length;
  const uint32_t from = length - std::min(length, geometry_.config.window);
  EXPECT_TRUE(one.StoredBytes(*engine_, length + 9, from) ==
              two.StoredBytes(*engine_, length + 9, from));
}

TEST_P(RandomModel, ReplaysReadGlobalKvAndNeverWriteIt) {
  for (int turn = 0; turn < 4; ++turn) {
    const auto hit = static_cast<uint32_t>(1 + prng_.Below(350));
    const std::vector<TokenId> tokens = Tokens(hit + 1 + prng_.Below(200));
    TestSequence cold(*engine_, 640), resumed(*engine_, 640);
    std::vector<float> want(geometry_.config.vocab_size), logits(want.size());
    Sequence whole(engine_.get(), cold.memory());
    ASSERT_TRUE(whole.Prefill(tokens, PrefillMode::kBounded, want).ok());
    CopyRecords(&cold, &resumed);
    const std::string before = resumed.RecordBytes(*engine_, hit);
    Sequence sequence(engine_.get(), resumed.memory());
    sequence.Resume({tokens.begin(), tokens.begin() + hit}, {.hit = hit});
    ASSERT_TRUE(
        sequence.Prefill(std::span(tokens).subspan(hit), PrefillMode::kBounded, logits).ok());
    EXPECT_TRUE(resumed.RecordBytes(*engine_, hit) == before) << hit;
    if (tokens.size() <= geometry_.config.window) {
      EXPECT_TRUE(logits == want);
    }
  }
}

TEST_P(RandomModel, DraftsChangeNothing) {
  const std::vector<TokenId> prompt = Tokens(1 + prng_.Below(200));
  std::vector<std::vector<TokenId>> texts;
  for (const bool draft : {false, true}) {
    TestSequence memory(*engine_, 512);
    Sequence sequence(engine_.get(), memory.memory());
    std::vector<float> logits(geometry_.config.vocab_size);
    ASSERT_TRUE(sequence.Prefill(prompt, PrefillMode::kBounded, logits).ok());
    texts.emplace_back();
    const auto report = Generate(&sequence, logits, {.tokens_max = 30, .draft = draft},
                                 SystemClock(), [&](TokenId token, std::span<const float>) {
                                   texts.back().push_back(token);
                                   return true;
                                 });
    ASSERT_TRUE(report.ok()) << report.status();
  }
  EXPECT_EQ(texts[0], texts[1]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomModel, testing::Range<uint64_t>(1, kRandomShapes + 1));

}  // namespace
}  // namespace reprise::engine::test
