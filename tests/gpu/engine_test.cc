// What the engine promises of itself: the same bytes however rows are cut, batched or threaded, and
// after a save and a restore; replays that write no global KV; drafts that change nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "gpu/engine/generator.h"
#include "gpu/engine/snapshot.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/nano.h"

namespace reprise::engine::test {
namespace {

cpu::CpuEngine& SharedEngine() {
  static auto* const engine = NanoEngine({.rows_max = 640}).release();
  return *engine;
}

// Text-like ids: bytes, with a marker now and then.
std::vector<TokenId> RandomTokens(uint32_t count, uint64_t seed) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(prng.Chance(20) ? 256 + prng.Below(12) : 32 + prng.Below(90));
  }
  return tokens;
}

std::vector<float> LogitsRow() {
  return std::vector<float>(SharedEngine().geometry().config.vocab_size);
}

// A sequence with its memory.
struct Held {
  explicit Held(uint32_t tokens_max = 2048)
      : memory(SharedEngine(), tokens_max), sequence(&SharedEngine(), memory.memory()) {}
  std::vector<float> Prefill(const std::vector<TokenId>& tokens,
                             PrefillMode mode = PrefillMode::kBounded) {
    std::vector<float> logits = LogitsRow();
    const absl::Status status = sequence.Prefill(tokens, mode, logits);
    EXPECT_TRUE(status.ok()) << status;
    return logits;
  }
  std::string Stored() {
    return memory.StoredBytes(SharedEngine(), sequence.length(),
                              std::max(sequence.held().encoder_from, sequence.held().decoder_from));
  }
  TestSequence memory;
  Sequence sequence;
};

TEST(Engine, ChunksDoNotMatter) {
  const std::vector<TokenId> tokens = RandomTokens(323, 1);
  TestSequence whole(SharedEngine());
  const std::vector<float> want = whole.RunExact(SharedEngine(), tokens, 0, 640);
  const std::string stored = whole.StoredBytes(SharedEngine(), 323);
  for (const uint32_t chunk : {3u, 127u, 129u, 254u}) {
    TestSequence cut(SharedEngine());
    EXPECT_EQ(cut.RunExact(SharedEngine(), tokens, 0, chunk), want) << chunk;
    EXPECT_TRUE(cut.StoredBytes(SharedEngine(), 323) == stored) << chunk;
  }
}

TEST(Engine, ThreadsAndKernelsDoNotMatter) {
  const std::vector<TokenId> tokens = RandomTokens(300, 2);
  TestSequence first(SharedEngine());
  const std::vector<float> want = first.RunExact(SharedEngine(), tokens, 0, 300);
  const std::string stored = first.StoredBytes(SharedEngine(), 300);
  for (const uint32_t threads : {1u, 2u, 3u}) {
    const auto engine = NanoEngine({.threads = threads, .rows_max = 640});
    TestSequence other(*engine);
    EXPECT_EQ(other.RunExact(*engine, tokens, 0, 100), want) << threads;
    EXPECT_TRUE(other.StoredBytes(*engine, 300) == stored) << threads;
  }
  const std::vector<TokenId> few(tokens.begin(), tokens.begin() + 40);  // "portable" is slow.
  TestSequence start(SharedEngine());
  const std::vector<float> want_few = start.RunExact(SharedEngine(), few, 0, 40);
  for (const cpu::Kernels* kernels : cpu::RunnableKernels()) {
    const auto engine = NanoEngine({.rows_max = 640, .kernels = kernels->name});
    TestSequence other(*engine);
    EXPECT_EQ(other.RunExact(*engine, few, 0, 15), want_few) << kernels->name;
    EXPECT_TRUE(other.StoredBytes(*engine, 40) == start.StoredBytes(SharedEngine(), 40))
        << kernels->name;
  }
}

// Segments of different lengths and depths in one call, against each alone.
TEST(Engine, TheBatchDoesNotMatter) {
  const uint32_t lengths[] = {1, 130, 257, 64};
  const size_t vocab = SharedEngine().geometry().config.vocab_size;
  std::vector<std::vector<TokenId>> tokens;
  std::vector<TestSequence> together;
  std::vector<Segment> batch;
  for (uint32_t i = 0; i < 4; ++i) tokens.push_back(RandomTokens(lengths[i] + 3, 10 + i));
  for (uint32_t i = 0; i < 4; ++i) together.emplace_back(SharedEngine());
  std::vector<std::vector<float>> want;
  std::vector<std::string> stored;
  for (uint32_t i = 0; i < 4; ++i) {
    TestSequence alone(SharedEngine());
    const std::vector<TokenId> prefix(tokens[i].begin(), tokens[i].begin() + lengths[i]);
    alone.RunExact(SharedEngine(), prefix, 0, 640);
    const auto logits = alone.RunExact(SharedEngine(), tokens[i], lengths[i], 3);
    want.emplace_back(logits.end() - static_cast<ptrdiff_t>(vocab), logits.end());
    stored.push_back(alone.StoredBytes(SharedEngine(), lengths[i] + 3));
  }
  const auto run = [&](uint32_t first_row, bool prefix) {
    batch.clear();
    for (uint32_t i = 0; i < 4; ++i) {
      const auto end = static_cast<uint32_t>(lengths[i] + (prefix ? 0 : 3));
      const uint32_t first = prefix ? first_row : lengths[i];
      batch.push_back({.memory = together[i].memory(),
                       .tokens = std::span(tokens[i]).first(end),
                       .first = first,
                       .write_from = first,
                       .encoder_from = 0,
                       .decoder_first = first,
                       .decoder_from = 0,
                       .logits_from = prefix ? end : end - 1});
    }
    std::vector<float> logits(prefix ? 0 : 4 * vocab);
    EXPECT_TRUE(SharedEngine().Forward(batch, logits).ok());
    return logits;
  };
  run(0, true);
  const std::vector<float> logits = run(0, false);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(std::vector<float>(logits.begin() + static_cast<ptrdiff_t>(i * vocab),
                                 logits.begin() + static_cast<ptrdiff_t>((i + 1) * vocab)),
              want[i]);
    EXPECT_EQ(together[i].StoredBytes(SharedEngine(), lengths[i] + 3), stored[i]);
  }
}

TEST(Engine, SaveAndRestoreAtEveryParity) {
  for (const uint32_t length : {1u, 2u, 127u, 128u, 201u}) {
    const std::vector<TokenId> tokens = RandomTokens(length, 20 + length);
    const std::vector<TokenId> more = RandomTokens(7, 99);
    Held one;
    one.Prefill(tokens, PrefillMode::kOracle);
    std::vector<std::byte> snapshot(SnapshotBytes(SharedEngine().geometry(), length, true));
    SaveSnapshot(SharedEngine().geometry(), SharedEngine().window_layout(), one.memory.window(),
                 {.position = length, .decoder = true}, snapshot);

    Held two;  // Other memory: the records, and the snapshot.
    for (uint32_t i = 0; i < two.memory.block_count(); ++i) {
      std::copy_n(one.memory.block(i), SharedEngine().geometry().record.payload_bytes,
                  two.memory.block(i));
    }
    const auto info = RestoreSnapshot(SharedEngine().geometry(), SharedEngine().window_layout(),
                                      snapshot, two.memory.window());
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(info->position, length);
    const uint32_t from = length - std::min(length, 128u);
    two.sequence.Resume(tokens, {.hit = length,
                                 .encoder_window = true,
                                 .encoder_from = from,
                                 .decoder_window = true,
                                 .decoder_from = from});
    const size_t vocab = SharedEngine().geometry().config.vocab_size;
    for (const TokenId token : more) {
      std::vector<float> a(vocab), b(vocab);
      ASSERT_TRUE(one.sequence.Extend({&token, 1}, a).ok());
      ASSERT_TRUE(two.sequence.Extend({&token, 1}, b).ok());
      ASSERT_EQ(a, b) << length;
    }
    EXPECT_EQ(one.memory.StoredBytes(SharedEngine(), length + 7, from),
              two.memory.StoredBytes(SharedEngine(), length + 7, from));
  }
}

TEST(Engine, DamagedSnapshotsAreRefusedAndTouchNothing) {
  Held held;
  held.Prefill(RandomTokens(131, 4), PrefillMode::kOracle);
  const ModelGeometry& geometry = SharedEngine().geometry();
  std::vector<std::byte> good(SnapshotBytes(geometry, 131, true));
  SaveSnapshot(geometry, SharedEngine().window_layout(), held.memory.window(),
               {.position = 131, .decoder = true}, good);
  std::vector<std::byte> window(SharedEngine().window_layout().bytes);
  const std::vector<std::byte> empty = window;
  for (const size_t at : {size_t{0}, size_t{4}, size_t{8}, size_t{12}, size_t{16}, size_t{24},
                          size_t{32}, size_t{64}, size_t{9'999}, good.size() - 1}) {
    std::vector<std::byte> bad = good;
    bad[at] ^= std::byte{2};
    EXPECT_FALSE(RestoreSnapshot(geometry, SharedEngine().window_layout(), bad, window.data()).ok())
        << at;
  }
  for (const size_t size : {size_t{0}, size_t{63}, size_t{64}, good.size() - 1}) {
    EXPECT_FALSE(RestoreSnapshot(geometry, SharedEngine().window_layout(),
                                 ConstBytes(good).first(size), window.data())
                     .ok());
  }
  EXPECT_EQ(window, empty);
}

// ---- Replay ------------------------------------------------------------------------------------

// Up to 128 tokens nothing is cut, so every mode gives the same.
TEST(Replay, ShortTextsAreExact) {
  for (const uint32_t length : {1u, 3u, 127u, 128u}) {
    const std::vector<TokenId> tokens = RandomTokens(length, 40 + length);
    Held bounded, oracle;
    EXPECT_EQ(bounded.Prefill(tokens), oracle.Prefill(tokens, PrefillMode::kOracle)) << length;
    EXPECT_TRUE(bounded.Stored() == oracle.Stored()) << length;
    EXPECT_TRUE(bounded.sequence.exact());
  }
}

// Hits at every boundary, with every window state and short and long suffixes: replayed rows never
// change a record, and the global KV of the hit is the one that was there.
TEST(Replay, NeverWritesGlobalKv) {
  const std::vector<TokenId> tokens = RandomTokens(600, 5);
  Held cold;
  cold.Prefill(tokens);
  uint32_t turn = 0;
  for (uint32_t hit = 126; hit <= 386; hit += hit % 128 < 2 || hit % 128 > 125 ? 1 : 41) {
    const uint32_t suffix = std::array{1u, 2u, 127u, 128u}[turn++ % 4];
    const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + hit);
    const std::vector<TokenId> rest(tokens.begin() + hit, tokens.begin() + hit + suffix);
    Held resumed;
    for (uint32_t i = 0; i < resumed.memory.block_count(); ++i) {
      std::copy_n(cold.memory.block(i), SharedEngine().geometry().record.payload_bytes,
                  resumed.memory.block(i));
    }
    const std::string before = resumed.memory.RecordBytes(SharedEngine(), hit);
    resumed.sequence.Resume(prefix, {.hit = hit});
    const uint64_t replayed = SharedEngine().counters().replayed_rows;
    resumed.Prefill(rest);
    EXPECT_TRUE(resumed.memory.RecordBytes(SharedEngine(), hit) == before) << hit << "+" << suffix;
    EXPECT_EQ(SharedEngine().counters().replayed_rows - replayed, std::min(hit, 128u));
    EXPECT_EQ(resumed.sequence.exact(), hit + suffix <= 128);
  }
}

// An exact rebuild gives the bytes of a run that never lost its windows.
TEST(Replay, ExactRebuildIsExact) {
  const std::vector<TokenId> tokens = RandomTokens(700, 6);
  for (const uint32_t hit : {129u, 400u}) {
    Held oracle;
    const std::vector<float> want = oracle.Prefill(tokens, PrefillMode::kOracle);
    Held rebuilt;
    for (uint32_t i = 0; i < rebuilt.memory.block_count(); ++i) {
      std::copy_n(oracle.memory.block(i), SharedEngine().geometry().record.payload_bytes,
                  rebuilt.memory.block(i));
    }
    rebuilt.sequence.Resume({tokens.begin(), tokens.begin() + hit}, {.hit = hit});
    EXPECT_EQ(rebuilt.Prefill({tokens.begin() + hit, tokens.end()}, PrefillMode::kExact), want);
    EXPECT_TRUE(rebuilt.sequence.exact());
    EXPECT_EQ(rebuilt.memory.StoredBytes(SharedEngine(), 700, 600),
              oracle.memory.StoredBytes(SharedEngine(), 700, 600));
  }
}

// A hit with its encoder window: the suffix's global KV is that of an uninterrupted run, however
// short the suffix is, because rows that the decoder alone needs leave the windows as they were.
TEST(Replay, AnEncoderWindowKeepsTheSuffixExact) {
  const std::vector<TokenId> tokens = RandomTokens(500, 7);
  for (const uint32_t hit : {129u, 256u}) {
    for (const uint32_t suffix : {1u, 31u}) {
      Held whole;
      whole.Prefill({tokens.begin(), tokens.begin() + hit});
      Held resumed;
      resumed.Prefill({tokens.begin(), tokens.begin() + hit});
      ResumePoint held = resumed.sequence.held();
      held.decoder_window = false;
      resumed.sequence.Resume({tokens.begin(), tokens.begin() + hit}, held);
      std::vector<float> logits(suffix * 288);
      for (uint32_t at = hit; at < hit + suffix; ++at) {
        std::vector<float> row = LogitsRow();
        ASSERT_TRUE(whole.sequence.Extend({&tokens[at], 1}, row).ok());
      }
      resumed.Prefill({tokens.begin() + hit, tokens.begin() + hit + suffix});
      EXPECT_TRUE(resumed.memory.RecordBytes(SharedEngine(), hit + suffix) ==
                  whole.memory.RecordBytes(SharedEngine(), hit + suffix))
          << hit << "+" << suffix;
      EXPECT_TRUE(resumed.sequence.encoder_exact());
    }
  }
}

// ---- Ends of the range, images ----------------------------------------------------------------

// As many positions as the configuration allows: the last one works, and one more is refused.
TEST(Engine, AllPositionsWork) {
  const uint32_t positions = SharedEngine().geometry().config.max_positions;
  ASSERT_EQ(positions, 32768u);
  Held held(positions + 128);
  std::vector<TokenId> tokens = RandomTokens(positions - 5, 32);
  for (const float logit : held.Prefill(tokens)) ASSERT_TRUE(std::isfinite(logit));
  std::vector<float> row = LogitsRow();
  for (int i = 0; i < 5; ++i) {
    const TokenId token = 'a' + i;
    ASSERT_TRUE(held.sequence.Extend({&token, 1}, row).ok()) << i;
    for (const float logit : row) ASSERT_TRUE(std::isfinite(logit));
  }
  const TokenId token = 'z';
  EXPECT_FALSE(held.sequence.Extend({&token, 1}, row).ok());
}

// Rows of an image take what they are given in place of an embedding, and are left out of Engram's
// n-grams; how they are cut into calls does not matter.
TEST(Engine, ImageRowsTakeTheirEmbeddingFromTheCaller) {
  const uint32_t hidden = SharedEngine().geometry().config.hidden_size;
  const std::vector<TokenId> tokens = RandomTokens(150, 77);
  std::vector<uint8_t> marks(tokens.size());
  for (uint32_t i = 40; i < 75; ++i) marks[i] = 1;
  std::vector<float> image(35 * size_t{hidden});
  Prng prng(4);
  for (float& value : image) value = prng.Below(2) == 0 ? 0.5f : -0.25f;
  const auto run = [&](uint32_t chunk, const std::vector<float>& rows, TestSequence* memory) {
    std::vector<float> logits(tokens.size() * 288);
    for (uint32_t at = 0; at < tokens.size(); at += chunk) {
      const auto end = std::min<size_t>(tokens.size(), at + chunk);
      const size_t before = static_cast<size_t>(std::count(marks.begin(), marks.begin() + at, 1));
      const size_t within =
          static_cast<size_t>(std::count(marks.begin() + at, marks.begin() + end, 1));
      const Segment segment{
          .memory = memory->memory(),
          .tokens = std::span(tokens).first(end),
          .first = at,
          .write_from = at,
          .decoder_first = at,
          .logits_from = at,
          .image_marks = std::span(marks).first(end),
          .image_rows = std::span(rows).subspan(before * hidden, within * hidden)};
      const absl::Status status = SharedEngine().Forward(
          {&segment, 1}, std::span(logits).subspan(at * 288, (end - at) * 288));
      EXPECT_TRUE(status.ok()) << status;
    }
    return logits;
  };
  TestSequence whole(SharedEngine(), 256), cut(SharedEngine(), 256), other(SharedEngine(), 256);
  const std::vector<float> want = run(150, image, &whole);
  for (const float logit : want) ASSERT_TRUE(std::isfinite(logit));
  EXPECT_TRUE(run(13, image, &cut) == want);
  EXPECT_TRUE(cut.StoredBytes(SharedEngine(), 150) == whole.StoredBytes(SharedEngine(), 150));
  std::vector<float> brighter = image;
  brighter[5] = 2.0f;
  const std::vector<float> changed = run(150, brighter, &other);
  EXPECT_TRUE(std::equal(want.begin(), want.begin() + 40 * 288, changed.begin()));
  EXPECT_FALSE(std::equal(want.begin() + 40 * 288, want.end(), changed.begin() + 40 * 288));
}

// ---- Drafts and sampling -----------------------------------------------------------------------

std::vector<TokenId> GenerateTokens(const std::vector<TokenId>& prompt, GenerateOptions options,
                                    std::string* stored, GenerateReport* report) {
  Held held;
  const std::vector<float> logits = held.Prefill(prompt);
  std::vector<TokenId> out;
  const auto result = Generate(&held.sequence, logits, options, SystemClock(),
                               [&](TokenId token, std::span<const float>) {
                                 out.push_back(token);
                                 return true;
                               });
  EXPECT_TRUE(result.ok()) << result.status();
  if (report != nullptr) *report = *result;
  EXPECT_EQ(held.sequence.length(), prompt.size() + out.size() - 1);
  *stored = held.Stored();
  return out;
}

TEST(Drafts, GreedyTextAndStateAreTheSame) {
  for (const uint32_t length : {1u, 257u}) {
    const std::vector<TokenId> prompt = RandomTokens(length, 60 + length);
    std::string plain_state, state;
    GenerateReport report;
    const auto plain =
        GenerateTokens(prompt, {.tokens_max = 40, .draft = false}, &plain_state, nullptr);
    for (const uint32_t drafts : {2u, 5u}) {
      EXPECT_EQ(GenerateTokens(prompt, {.tokens_max = 40, .drafts_max = drafts}, &state, &report),
                plain);
      EXPECT_TRUE(state == plain_state);
    }
    EXPECT_EQ(report.tokens, 40u);
  }
}

// Takes back 0 to 5 rows at both parities and goes on, against a run that never had them.
TEST(Drafts, RowsCanBeTakenBack) {
  for (const uint32_t length : {130u, 131u}) {
    const std::vector<TokenId> prompt = RandomTokens(length, length);
    const std::vector<TokenId> wrong = RandomTokens(6, 1), right = RandomTokens(12, 2);
    for (uint32_t kept = 0; kept <= 5; ++kept) {
      Held one, two;
      one.Prefill(prompt);
      two.Prefill(prompt);
      std::vector<float> rows(6 * 288);
      std::vector<TokenId> tried(right.begin(), right.begin() + kept);
      tried.insert(tried.end(), wrong.begin() + kept, wrong.end());
      ASSERT_TRUE(one.sequence.Extend(tried, rows).ok());
      one.sequence.Rewind(length + kept);
      std::vector<float> a(288), b(288);
      for (uint32_t i = 0; i < right.size(); ++i) {
        if (i >= kept) {
          ASSERT_TRUE(one.sequence.Extend({&right[i], 1}, a).ok());
        }
        ASSERT_TRUE(two.sequence.Extend({&right[i], 1}, b).ok());
      }
      EXPECT_EQ(a, b);
      EXPECT_TRUE(one.Stored() == two.Stored()) << length << " kept " << kept;
    }
  }
}

TEST(Sampling, TokensAreDistributedAsTheModelSays) {
  const std::vector<double> want = {0.5, 0.3, 0.2, 0.0};
  const std::vector<float> logits = {std::log(0.5f), std::log(0.3f), std::log(0.2f), -1e30f};
  const Sampler sampler({.temperature = 1, .seed = 3});
  std::vector<double> seen(4);
  constexpr int kDraws = 200'000;
  for (int i = 0; i < kDraws; ++i) {
    seen[static_cast<size_t>(sampler.Choose(logits, static_cast<uint64_t>(i)))] += 1.0 / kDraws;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(seen[i], want[i], 0.005);
}

// With the noise of its position a draft is right more often than one drawn on its own.
TEST(Sampling, DraftsAreDrawnWithTheSameNoise) {
  const std::vector<float> target = {1.0f, 0.6f, 0.2f, 0.1f}, draft = {0.9f, 0.8f, 0.1f, 0.2f};
  const Sampler sampler({.temperature = 1, .seed = 3}), other({.temperature = 1, .seed = 4});
  int same = 0, alone = 0;
  for (uint64_t position = 0; position < 10'000; ++position) {
    same += sampler.Choose(target, position) == sampler.Choose(draft, position) ? 1 : 0;
    alone += sampler.Choose(target, position) == other.Choose(draft, position) ? 1 : 0;
  }
  EXPECT_GT(same, 8'500);
  EXPECT_LT(alone, 5'000);
}

TEST(Drafts, SampledTextIsTheSame) {
  const std::vector<TokenId> prompt = RandomTokens(140, 9);
  std::string plain_state, state;
  const SamplingOptions sampling{.temperature = 0.9, .top_p = 0.95, .seed = 7};
  const auto plain = GenerateTokens(
      prompt, {.tokens_max = 40, .sampling = sampling, .draft = false}, &plain_state, nullptr);
  for (const uint32_t drafts : {1u, 5u}) {
    EXPECT_EQ(GenerateTokens(prompt, {.tokens_max = 40, .sampling = sampling, .drafts_max = drafts},
                             &state, nullptr),
              plain);
    EXPECT_TRUE(state == plain_state);
  }
}

TEST(Sampling, TopPAndTemperature) {
  const std::vector<float> logits = {1, 3, 2, -5};
  EXPECT_EQ(Sampler({}).Distribution(logits), (std::vector<double>{0, 1, 0, 0}));
  const auto narrow = Sampler({.temperature = 1, .top_p = 0.7}).Distribution(logits);
  EXPECT_EQ(narrow[0], 0);
  EXPECT_NEAR(narrow[1] + narrow[2], 1, 1e-12);
  EXPECT_FALSE(Validate(SamplingOptions{.temperature = -1}).ok());
  EXPECT_FALSE(Validate(SamplingOptions{.top_p = 0}).ok());
  EXPECT_FALSE(Validate(SamplingOptions{.temperature = std::nan("")}).ok());
}

// ---- Contradictions ----------------------------------------------------------------------------

TEST(Engine, RefusesSegmentsThatContradictThemselves) {
  TestSequence memory(SharedEngine(), 256);
  const std::vector<TokenId> tokens = RandomTokens(200, 8);
  const Segment good{.memory = memory.memory(),
                     .tokens = tokens,
                     .first = 100,
                     .write_from = 100,
                     .encoder_from = 0,
                     .decoder_first = 150,
                     .decoder_from = 150,
                     .logits_from = 200};
  EXPECT_TRUE(CheckSegments(SharedEngine(), {&good, 1}).ok());
  const std::function<void(Segment*)> lies[] = {
      [](Segment* s) { s->first = 200; },        [](Segment* s) { s->encoder_from = 101; },
      [](Segment* s) { s->decoder_first = 99; }, [](Segment* s) { s->decoder_first = 201; },
      [](Segment* s) { s->decoder_from = 151; }, [](Segment* s) { s->logits_from = 149; },
      [](Segment* s) { s->logits_from = 201; },  [](Segment* s) { s->memory.window = nullptr; },
      [](Segment* s) { s->memory.blocks = {}; }};
  for (const auto& lie : lies) {
    Segment bad = good;
    lie(&bad);
    EXPECT_EQ(CheckSegments(SharedEngine(), {&bad, 1}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  std::vector<TokenId> strange = tokens;
  strange[150] = 288;
  Segment bad = good;
  bad.tokens = strange;
  EXPECT_FALSE(SharedEngine().Forward({&bad, 1}, {}).ok());
}

}  // namespace
}  // namespace reprise::engine::test
