#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "client/drive/chain_builder.h"
#include "client/drive/client_store.h"
#include "client/drive/pattern.h"
#include "client/drive/report.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "tests/client/fake_drive_store.h"

namespace reprise {
namespace {

using ::testing::HasSubstr;

// ---- Parts
// ----------------------------------------------------------------------------------------

std::vector<TokenId> AllTokens(const Prompt& prompt) {
  std::vector<TokenId> tokens(prompt.input_tokens());
  prompt.Tokens(0, tokens);
  return tokens;
}

TEST(PromptTest, ChainsFollowWhateverTheTracesBlockIs) {
  for (const uint32_t block : {3u, 4u, 16u, 64u, 100u, 128u, 192u, 512u}) {
    std::vector<uint64_t> ids;
    for (uint64_t id = 0; id < 2'000 / block; ++id) ids.push_back(id * 7 + 1);
    TraceRequest request = {.input_tokens = 2'000, .block_tokens = block, .hash_ids = ids};
    const Prompt prompt(request, 1);
    const std::vector<TokenId> tokens = AllTokens(prompt);
    EXPECT_TRUE(std::all_of(tokens.begin(), tokens.end(),
                            [](TokenId token) { return token >= 0 && token < 129'280; }));
    EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), 1'900u);
    const auto want = PrefixChain(TestNamespace(), tokens);
    ChainBuilder small(TestNamespace(), 2), large(TestNamespace());
    for (int round = 0; round < 2; ++round) {
      const auto chain = small.Build(prompt), kept = large.Build(prompt);
      EXPECT_TRUE(std::equal(want.begin(), want.end(), chain.begin(), chain.end())) << block;
      EXPECT_TRUE(std::equal(want.begin(), want.end(), kept.begin(), kept.end())) << block;
    }
    // 15 blocks, of which at most 3 reach beyond the ids and are hashed each time.
    EXPECT_LE(large.hashed_blocks(), 18u) << block;
    for (const uint32_t position : {2u, 128u, 130u, 1'920u, 1'998u}) {
      EXPECT_EQ(large.PrefixHash(prompt, position),
                ExactPrefixHash(TestNamespace(), want, tokens, position));
    }
    // Any part of the tokens is the same part.
    std::vector<TokenId> part(517);
    prompt.Tokens(1'001, part);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), tokens.begin() + 1'001));
  }
}

TEST(PromptTest, EqualIdsGiveEqualTokensAndTailsAreOnesOwn) {
  const std::vector<uint64_t> ids = {4, 5};
  const TraceRequest request = {.input_tokens = 300, .block_tokens = 128, .hash_ids = ids};
  const Prompt a(request, 1), b(request, 2);
  const auto tokens_a = AllTokens(a), tokens_b = AllTokens(b);
  EXPECT_TRUE(std::equal(tokens_a.begin(), tokens_a.begin() + 256, tokens_b.begin()));
  EXPECT_FALSE(std::equal(tokens_a.begin() + 256, tokens_a.end(), tokens_b.begin() + 256));
  EXPECT_EQ(a.snapshot_position(), 256u);
  const Prompt lengths_only({.input_tokens = 301}, 3);
  EXPECT_EQ(lengths_only.BlockFingerprint(0), 0u);
  EXPECT_EQ(lengths_only.snapshot_position(), 300u);
  const std::vector<TokenId> real = {1, 2, 3};
  const Prompt given({.input_tokens = 3, .tokens = real}, 4);
  EXPECT_EQ(AllTokens(given), real);
  EXPECT_EQ(given.snapshot_position(), 2u);
}

TEST(PatternTest, EveryWrongByteIsFound) {
  Prng prng(11);
  for (const size_t size : {0u, 1u, 63u, 64u, 65u, 5'001u, 113'920u}) {
    std::vector<std::byte> bytes(size);
    FillPattern(42, bytes);
    EXPECT_EQ(CountPatternErrors(42, bytes), 0u);
    if (size == 0) continue;
    EXPECT_GT(CountPatternErrors(43, bytes), size / 2);
    std::set<uint64_t> places = {0, size - 1};
    for (int i = 0; i < 20; ++i) places.insert(prng.Below(size));
    for (const uint64_t place : places) bytes[place] ^= std::byte{0x10};
    EXPECT_EQ(CountPatternErrors(42, bytes), places.size()) << size;
  }
}

TEST(PatternTest, RecordsAreWholeAndEveryPartIsChecked) {
  const Hash256 name_space = TestNamespace();
  std::vector<TokenId> tokens(kBlockTokens);
  for (uint32_t i = 0; i < kBlockTokens; ++i) tokens[i] = static_cast<TokenId>(i * 3);
  const Hash256 hash = BlockHash(name_space, tokens);
  const RecordIdentity identity = {&name_space, &hash,         &name_space,
                                   0,           kPayloadBytes, tokens.data()};
  std::vector<std::byte> record(RecordBytesFor(kPayloadBytes));
  BuildRecord(identity, kReplayDerived, 5, record);
  EXPECT_EQ(VerifyRecord(record, KeyOf(hash)), Outcome::kOk);
  EXPECT_EQ(CountRecordErrors(identity, record), 0u);
  const size_t header = record.size() - kRecordTailBytes;
  for (const size_t place :
       {size_t{0}, size_t{kPayloadBytes - 1}, size_t{kPayloadBytes}, header, header + 16,
        header + 50, header + 90, header + 112, header + 255, header + 256, record.size() - 1}) {
    record[place] ^= std::byte{4};
    EXPECT_EQ(CountRecordErrors(identity, record), 1u) << place;
    record[place] ^= std::byte{4};
  }
  EXPECT_EQ(CountRecordErrors(identity, ConstBytes(record).first(100)), 100u);
}

TEST(LatencyHistogramTest, PercentilesAreWithinABucket) {
  LatencyHistogram histogram;
  EXPECT_EQ(histogram.Percentile(0.99), 0);
  for (int64_t i = 1; i <= 100'000; ++i) histogram.Add(i * 1'000);
  for (const double share : {0.001, 0.5, 0.9, 0.99, 1.0}) {
    const double want = share * 1e8;
    const auto got = static_cast<double>(histogram.Percentile(share));
    EXPECT_GE(got, want);
    EXPECT_LE(got, want * 1.017);
  }
  EXPECT_EQ(histogram.max_ns(), 100'000'000);
  EXPECT_NEAR(histogram.mean_ns(), 50'000'500, 1);
  LatencyHistogram extremes;
  for (const int64_t value : {int64_t{-5}, int64_t{0}, int64_t{63}, int64_t{64}, INT64_MAX}) {
    extremes.Add(value);
  }
  EXPECT_EQ(extremes.Percentile(0.2), 0);
  EXPECT_EQ(extremes.Percentile(0.6), 63);
  EXPECT_EQ(extremes.Percentile(0.8), 64);
  EXPECT_EQ(extremes.Percentile(1), INT64_MAX);
  histogram.Merge(extremes);
  EXPECT_EQ(histogram.count(), 100'005u);
}

TEST(ReportTest, JsonHasTheFiguresOfSimulate) {
  DriveFigures figures;
  figures.requests = 4;
  figures.input_tokens = 1'000;
  figures.hit_tokens = 256;
  figures.hit_tokens_by_tier[static_cast<size_t>(Tier::kSsd)] = 256;
  figures.elapsed_ns = 2 * kSecond;
  figures.loaded_bytes = 4'000'000'000;
  figures.errors["put/busy"] = 3;
  figures.latencies[0].Add(1'500);
  const auto json = DriveJson(figures, {.ssd_written_bytes = 10}, {.ssd_written_bytes = 25});
  for (const char* name :
       {"requests", "input_tokens", "hit_tokens", "hit_rate", "hits_by_tier", "exact_hits",
        "replayed_hits", "replayed_tokens", "misses", "ssd_bytes_written", "ssd_bytes_read",
        "window_pool_peak_bytes", "wrong_bytes", "errors", "seconds", "latency_us"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_EQ(json["hit_rate"], 0.256);
  EXPECT_EQ(json["hits_by_tier"]["ssd"], 256);
  EXPECT_EQ(json["ssd_bytes_written"], 15);
  EXPECT_TRUE(json["ssd_bytes_read"].is_null());
  EXPECT_EQ(json["load_gb_per_s"], 2.0);
  EXPECT_EQ(json["errors"]["put/busy"], 3);
  EXPECT_EQ(json["latency_us"]["lookup"]["max"], 1.5);
  EXPECT_THAT(DriveTable(figures, {}, {}), HasSubstr("25.60 % of input"));
}

TEST(ReportTest, CountersComeFromTheStatus) {
  const auto counters =
      CountersFromStatus(R"({"tiers":{"ssd":{"bytes_written":7}},"window_pool":{"peak_bytes":9}})");
  ASSERT_TRUE(counters.ok());
  EXPECT_EQ(counters->ssd_written_bytes, 7u);
  EXPECT_EQ(counters->ssd_read_bytes, std::nullopt);
  EXPECT_EQ(counters->window_peak_bytes, 9u);
  EXPECT_FALSE(CountersFromStatus("[").ok());
}

TEST(ManifestTest, DriveNeverMeetsAModelsOwnBlocks) {
  const auto drive = DriveManifest("nano", "a"), other = DriveManifest("nano", "b");
  ASSERT_TRUE(drive.ok() && other.ok());
  const auto own = Manifest::For(KvGeometry::Nano());
  EXPECT_NE(NamespaceOf(*drive), NamespaceOf(*own));
  EXPECT_NE(NamespaceOf(*drive), NamespaceOf(*other));
  EXPECT_FALSE(DriveManifest("gpt", "").ok());
}

}  // namespace
}  // namespace reprise
