// Sequences on an engine whose memory is its own: the same logits and the same bytes as on one that
// takes the host's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/engine/sequence_memory.h"
#include "gpu/engine/generator.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/arena_engine.h"
#include "tests/gpu/random_model.h"

namespace reprise::engine::test {
namespace {

struct Ran {
  std::vector<float> logits;
  std::vector<TokenId> text;
  std::vector<std::byte> bytes;  // Of blocks and window.
};

constexpr uint32_t kTokensMax = 640;

// A prompt; a short suffix without decoder windows, whose replay keeps the encoder's and puts them
// back; and what is generated after it. How much is drafted depends on the clock, and rejected
// drafts leave bytes behind the text.
Ran RunOn(Engine* engine, const std::vector<TokenId>& tokens, bool draft) {
  Ran run;
  run.logits.resize(engine->geometry().config.vocab_size);
  const auto buffers = bench::SequenceBuffers::Make(*engine, kTokensMax);
  EXPECT_TRUE(buffers.ok()) << buffers.status();
  Sequence sequence(engine, buffers->lent());
  const auto first = std::span(tokens).first(400);
  EXPECT_TRUE(sequence.Prefill(first, PrefillMode::kBounded, run.logits).ok());
  ResumePoint held = sequence.held();
  held.decoder_window = false;
  sequence.Resume({first.begin(), first.end()}, held);
  EXPECT_TRUE(
      sequence.Prefill(std::span(tokens).subspan(400), PrefillMode::kBounded, run.logits).ok());
  EXPECT_GT(sequence.replayed_rows(), 0u);
  const SystemClock clock;
  const auto report = Generate(&sequence, run.logits, {.tokens_max = 20, .draft = draft}, clock,
                               [&](TokenId token, std::span<const float>) {
                                 run.text.push_back(token);
                                 return true;
                               });
  EXPECT_TRUE(report.ok()) << report.status();
  auto copy = bench::SequenceBuffers::Make(*engine, kTokensMax);
  EXPECT_TRUE(copy->CopyFrom(*buffers).ok());
  const uint64_t payload = engine->geometry().record.payload_bytes;
  const uint64_t window = engine->window_layout().bytes;
  const SequenceMemory lent = copy->lent();
  run.bytes.resize(lent.blocks.size() * payload + window);
  std::vector<MemoryCopy> out;
  for (size_t i = 0; i < lent.blocks.size(); ++i) {
    out.push_back({run.bytes.data() + i * payload, lent.blocks[i], payload});
  }
  out.push_back({run.bytes.data() + lent.blocks.size() * payload, lent.window, window});
  EXPECT_TRUE(engine->memory().Copy(out).ok());
  return run;
}

TEST(ArenaEngine, SequencesAreAsInHostMemory) {
  for (uint64_t seed = 1; seed <= kRandomShapes; ++seed) {
    SCOPED_TRACE(seed);
    const ModelGeometry geometry = *ModelGeometry::For(RandomConfig(seed));
    const auto checkpoint = RandomCheckpoint(geometry, seed);
    const auto in_place = RandomEngine(geometry, *checkpoint, 1);
    const auto arena = MakeArenaEngine(RandomEngine(geometry, *checkpoint, 1), 64 << 20);
    Prng prng(seed);
    std::vector<TokenId> tokens(440);
    for (TokenId& token : tokens) {
      token = static_cast<TokenId>(prng.Below(geometry.config.vocab_size));
    }
    const Ran want = RunOn(in_place.get(), tokens, false);
    const Ran got = RunOn(arena.get(), tokens, false);
    EXPECT_EQ(got.logits, want.logits);
    EXPECT_EQ(got.text, want.text);
    EXPECT_TRUE(got.bytes == want.bytes);
    EXPECT_EQ(RunOn(arena.get(), tokens, true).text, want.text);
  }
}

TEST(MakeEngine, DevicesAreNamed) {
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:12", "auto"}) {
    EXPECT_TRUE(CheckDeviceName(name).ok()) << name;
  }
  for (const char* name : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "CPU"}) {
    const absl::Status status = CheckDeviceName(name);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("use cpu, cuda")) << name;
  }
}

}  // namespace
}  // namespace reprise::engine::test
