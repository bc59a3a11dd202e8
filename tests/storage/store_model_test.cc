// The store without its bytes: against the definitions, and within its own budgets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "protocol/base/prng.h"
#include "storage/economics/block_model.h"
#include "storage/economics/block_trace.h"
#include "storage/economics/paged_array.h"
#include "storage/economics/reference.h"
#include "storage/economics/reuse_study.h"
#include "storage/economics/window_model.h"

namespace reprise::economics {
namespace {

constexpr uint32_t kRecord = 28'672;

// Sessions that go on, fork and end: chains of numbers, as a trace has them.
class Chains {
 public:
  explicit Chains(uint64_t seed) : random_(seed) {}

  std::vector<uint32_t> Next() {
    std::vector<uint32_t>& chain = sessions_[random_.Below(sessions_.size())];
    const uint64_t dice = random_.Below(20);
    if (dice == 0 || chain.size() > 60) {
      chain.clear();
    } else if (dice == 1 && !chain.empty()) {
      chain.resize(random_.Below(chain.size()));
    }
    for (uint64_t n = 1 + random_.Below(8); n > 0; --n) chain.push_back(next_++);
    return chain;
  }

 private:
  Prng random_;
  std::vector<std::vector<uint32_t>> sessions_ = std::vector<std::vector<uint32_t>>(12);
  uint32_t next_ = 0;
};

constexpr uint32_t kBlocksMax = 40'000;
constexpr int kRequests = 4'000;

std::unique_ptr<BlockModel> Model(BlockModel::Options options) {
  options.record_bytes = kRecord;
  auto model = BlockModel::Create(options, kBlocksMax);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

uint32_t Serve(BlockModel* model, const std::vector<uint32_t>& blocks) {
  const BlockModel::Hit hit = model->Lookup(blocks);
  EXPECT_EQ(hit.blocks, hit.hbm + hit.dram + hit.ssd);
  const uint32_t loaded = model->Load(blocks, hit.blocks);
  model->Put(blocks, loaded, false);
  return loaded;
}

// One pool, touched tail first, with newcomers behind their parents: the definition of LRU, request
// by request, for every capacity that holds a request.
TEST(BlockModel, DramAloneIsTheReferenceLru) {
  for (const uint32_t capacity : {70u, 100u, 200u, 500u, 1'000u, 5'000u, kBlocksMax}) {
    const auto model = Model({.dram_bytes = uint64_t{capacity} * kRecord, .lease_blocks = 4096});
    const auto reference = MakeReferenceCache(ReferencePolicy::kLru, capacity);
    Chains chains(7);
    for (int i = 0; i < kRequests; ++i) {
      const std::vector<uint32_t> blocks = chains.Next();
      ASSERT_EQ(Serve(model.get(), blocks), reference->Serve(blocks)) << capacity << " " << i;
      ASSERT_EQ(model->dram_blocks(), reference->resident());
    }
  }
}

TEST(BlockModel, LeasesFromTheEndAreAsOneLease) {
  const auto one = Model({.dram_bytes = 300 * kRecord, .lease_blocks = 4096});
  const auto many = Model({.dram_bytes = 300 * kRecord, .lease_blocks = 16});
  Chains a(9), b(9);
  for (int i = 0; i < kRequests; ++i)
    ASSERT_EQ(Serve(one.get(), a.Next()), Serve(many.get(), b.Next()));
}

TEST(BlockModel, EnoughSpaceIsTheUpperBound) {
  const auto model = Model({.dram_bytes = 64 * kRecord, .ssd_bytes = 4_GiB, .region_bytes = 1_MiB});
  std::vector<bool> seen(kBlocksMax);
  Chains chains(3);
  for (int i = 0; i < kRequests; ++i) {
    const std::vector<uint32_t> blocks = chains.Next();
    uint32_t bound = 0;
    while (bound < blocks.size() && seen[blocks[bound]]) ++bound;
    for (const uint32_t block : blocks) seen[block] = true;
    ASSERT_EQ(Serve(model.get(), blocks), bound) << i;
  }
  EXPECT_EQ(model->counts().evicted_for_good, 0u);
}

struct TierCase {
  const char* name;
  BlockModel::Options options;
};

class BlockModelTiers : public testing::TestWithParam<TierCase> {};

// Whatever the policies: budgets hold, every block that is counted is somewhere, and what is
// written is what was appended.
TEST_P(BlockModelTiers, BudgetsHold) {
  BlockModel::Options options = GetParam().options;
  options.dram_bytes = 200 * kRecord;
  options.ssd_bytes = 24_MiB;
  options.region_bytes = 1_MiB;
  const auto model = Model(options);
  const storage::RegionGeometry cut = storage::CutRegion(kRecord, 1_MiB);
  Chains chains(5);
  for (int i = 0; i < kRequests; ++i) {
    Serve(model.get(), chains.Next());
    ASSERT_LE(model->dram_blocks(), 200u);
    ASSERT_LE(model->ssd_blocks(), 24 * cut.slots);
  }
  const BlockModel::Counts counts = model->counts();
  EXPECT_GT(counts.dram_evictions, 0u);
  EXPECT_GT(counts.ssd_evictions, 0u);
  EXPECT_GT(counts.ssd_reclaimed_regions, 0u);
  EXPECT_GT(counts.loads, 0u);
  EXPECT_EQ(counts.puts_busy, 0u);
  EXPECT_GE(counts.ssd_bytes_written, counts.ssd_reinserted * kRecord);
}

INSTANTIATE_TEST_SUITE_P(
    , BlockModelTiers,
    testing::Values(TierCase{"Through", {}}, TierCase{"Durable", {.durable = true}},
                    TierCase{"Demote", {.demote = true}},
                    TierCase{"DemoteTinyLfu", {.demote = true, .ssd_admission = "tinylfu"}},
                    TierCase{"S3Fifo", {.dram_eviction = "s3fifo", .ssd_eviction = "s3fifo"}},
                    TierCase{"SmallLeases", {.ssd_eviction = "lru", .lease_blocks = 16}}),
    [](const auto& tested) { return tested.param.name; });

TEST(BlockModel, HbmAnswersFirstAndIsNotAskedOfTheStore) {
  const auto model = Model({.hbm_bytes = 100 * kRecord, .dram_bytes = 1'000 * kRecord});
  const std::vector<uint32_t> chain = {0, 1, 2, 3};
  Serve(model.get(), chain);
  const BlockModel::Hit hit = model->Lookup(chain);
  EXPECT_EQ(hit.hbm, 4u);
  EXPECT_EQ(hit.dram, 0u);
  std::vector<uint32_t> other(100);
  for (uint32_t i = 0; i < other.size(); ++i) other[i] = 100 + i;
  Serve(model.get(), other);
  EXPECT_EQ(model->Lookup(chain).dram, 4u) << "left HBM, still in DRAM";
}

TEST(BlockModel, AnExactBlockReplacesOneFromAReplay) {
  const auto model = Model({.dram_bytes = 10 * kRecord});
  const std::vector<uint32_t> chain = {0, 1};
  model->Put(chain, 0, /*replay_derived=*/true);
  model->Put(chain, 0, /*replay_derived=*/true);
  EXPECT_EQ(model->counts().replaced, 0u);
  model->Put(chain, 0, /*replay_derived=*/false);
  EXPECT_EQ(model->counts().replaced, 2u);
  EXPECT_EQ(model->dram_blocks(), 2u);
}

TEST(BlockModel, AnSsdThatIsTooSmallIsRefused) {
  BlockModel::Options options{
      .record_bytes = kRecord, .dram_bytes = 1_MiB, .ssd_bytes = 2_MiB, .region_bytes = 1_MiB};
  EXPECT_FALSE(BlockModel::Create(options, 100).ok());
  options.dram_eviction = "mru";
  EXPECT_FALSE(BlockModel::Create(options, 100).ok());
}

// ---- Windows -----------------------------------------------------------------------------------

TEST(WindowModel, TtlBudgetAndPositions) {
  WindowModel windows({.pool_bytes = 4 * 200'000,
                       .snapshot_bytes = 200'000,
                       .record_bytes = kRecord,
                       .ttl_ns = 10 * kSecond,
                       .positions_per_session = 2});
  const auto place = [](uint64_t n) { return WindowModel::Place{.prefix = n, .position = 128}; };
  windows.Put(place(1), 1, 0);
  windows.Put(place(2), 1, 1 * kSecond);
  EXPECT_TRUE(windows.Use(place(1), 2 * kSecond));
  windows.Put(place(3), 1, 3 * kSecond);  // The third position of the session: the first leaves.
  EXPECT_FALSE(windows.Has(place(1), 3 * kSecond));
  EXPECT_TRUE(windows.Has(place(2), 3 * kSecond));
  EXPECT_FALSE(windows.Has(place(2), 12 * kSecond));  // Its TTL is over.
  for (uint64_t n = 10; n < 20; ++n) windows.Put(place(n), 0, 4 * kSecond);
  EXPECT_LE(windows.bytes_peak(), 4u * 200'000);
  EXPECT_GT(windows.stats().evicted, 0u);
  EXPECT_EQ(windows.bytes(100 * kSecond), 0u);
}

// ---- Traces larger than memory -----------------------------------------------------------------

TEST(PagedArray, GrowsAndKeepsWhatItHas) {
  PagedArray<uint64_t> array;
  EXPECT_TRUE(array.empty());
  std::vector<uint64_t> many(1000);
  uint64_t next = 0;
  while (next < 1'000'000) {
    for (uint64_t& value : many) value = next++ * 7;
    ASSERT_TRUE(array.Append(many).ok());
    ASSERT_TRUE(array.Append(next++ * 7).ok());
  }
  PagedArray<uint64_t> moved(std::move(array));
  ASSERT_EQ(moved.size(), next);
  for (uint64_t i = 0; i < next; ++i) ASSERT_EQ(moved[i], i * 7);
}

TEST(PagedArray, WithoutAFolderItSaysWhatToSet) {
  const char* before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TMPDIR", "/nowhere/at/all", 1);
  PagedArray<uint32_t> array;
  const absl::Status status = array.Append(1);
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
  EXPECT_THAT(Message(status), testing::HasSubstr("TMPDIR"));
  EXPECT_TRUE(array.empty());
}

// ---- Reuse -------------------------------------------------------------------------------------

TEST(ReuseStudy, AgreesWithTheDefinitions) {
  constexpr uint32_t kTokens = 128;
  BlockTrace trace(kTokens);
  const std::vector<Nanos> bounds = {kSecond, 2 * kSecond, 16 * kSecond, 128 * kSecond};
  ReuseIntervals intervals(bounds);
  std::vector<WindowReference> windows;
  for (const Nanos bound : bounds) windows.emplace_back(bound);
  Chains chains(11);
  Prng random(4);
  Nanos now = 0;
  for (int i = 0; i < 3'000; ++i) {
    const std::vector<uint32_t> blocks = chains.Next();
    now += static_cast<Nanos>(random.Below(3 * kSecond));
    const uint64_t tokens = blocks.size() * kTokens;
    const BlockRequest request{
        .time_ns = now, .input_tokens = tokens, .block_tokens = kTokens, .blocks = blocks};
    intervals.Add(request);
    for (WindowReference& window : windows) window.Add(request);
    ASSERT_TRUE(trace
                    .Add({.time_ns = now,
                          .session = 0,
                          .input_tokens = static_cast<uint32_t>(tokens),
                          .snapshot = {.prefix = blocks.back(), .position = tokens}},
                         blocks, {})
                    .ok());
  }
  std::vector<uint32_t> expanded;
  trace.Expand(trace.size() - 1, &expanded);
  EXPECT_EQ(expanded.size(), trace.block_count(trace.size() - 1));
  const ReuseStudy study(trace);
  EXPECT_EQ(study.reused_tokens(), intervals.reused_tokens());
  EXPECT_EQ(study.hits(), intervals.tips());
  for (size_t b = 0; b < bounds.size(); ++b) {
    uint64_t tokens = 0, tips = 0;
    for (const ReuseStudy::Bin& bin : study.bins()) {
      if (bin.upto_ns > bounds[b]) break;
      tokens += bin.tokens;
      tips += bin.tips;
    }
    EXPECT_EQ(tokens, intervals.tokens_within()[b]);
    EXPECT_EQ(tips, intervals.tips_within()[b]);
    // Hits of one block are not adopted there.
    const WindowReference::Figures& figures = windows[b].figures();
    EXPECT_GE(study.At(bounds[b]).found, figures.found);
    EXPECT_LE(study.At(bounds[b]).found, figures.found + study.hits() - figures.adopted_hits);
  }
  EXPECT_EQ(study.At(0).snapshot_seconds, 0);
}

}  // namespace
}  // namespace reprise::economics
