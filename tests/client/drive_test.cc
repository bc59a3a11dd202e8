#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "client/drive/chain_builder.h"
#include "client/drive/client_store.h"
#include "client/drive/driver.h"
#include "client/drive/pattern.h"
#include "client/drive/report.h"
#include "client/trace/trace.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"

namespace reprise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kPayloadBytes =
    3'000;  // Not a multiple of the pattern's stride; record of 4 KiB.
constexpr uint32_t kWindowBytes = 5'001;

Hash256 TestNamespace() {
  Hash256 hash;
  hash.bytes.fill(std::byte{7});
  return hash;
}

// Time that passes by sleeping only. Thread-safe.
class TestClock final : public WaitingClock {
 public:
  Instant Now() const override { return now_.load(); }
  int64_t WallMillis() const override { return 1'700'000'000'000; }
  void Sleep(Nanos duration_ns) const override { now_ += duration_ns; }

 private:
  mutable std::atomic<Instant> now_{kSecond};
};

// A store in memory, shared by its connections. Faults are fields.
class FakeStore {
 public:
  std::mutex mutex;
  std::map<BlockKey, std::vector<std::byte>> blocks;
  std::map<std::pair<BlockKey, uint64_t>, std::vector<std::byte>> windows;
  std::map<BlockKey, Tier> tiers;  // Dram when absent.
  std::vector<uint64_t> window_sessions;
  std::vector<int> calls_of_connection;
  uint32_t connects = 0;
  uint32_t refuse_connects_from = UINT32_MAX;
  uint32_t busy_puts = 0;      // The first record of this many puts.
  uint32_t busy_acquires = 0;  // This many acquires give nothing.
  uint32_t lookups_until_lost = UINT32_MAX;
  uint32_t lookups_until_timeout = UINT32_MAX;
  Outcome put_outcome = Outcome::kOk;  // Of every new record.
  bool forget_after_lookup = false;    // Acquire finds one block less than the verdict said.
  bool forget_windows = false;
  bool bend_records = false, bend_windows = false;
};

class FakeConnection final : public DriveStore {
 public:
  explicit FakeConnection(FakeStore* store) : store_(*store), slots_(kSlots * kRecordBytes) {}

  absl::StatusOr<Verdict> Lookup(std::span<const BlockKey> keys,
                                 std::span<const wire::WindowKey> windows) override {
    const std::lock_guard lock(store_.mutex);
    if (store_.lookups_until_lost-- == 0) return Unavailable("gone");
    if (store_.lookups_until_timeout-- == 0) return DeadlineExceeded("late");
    EXPECT_LE(windows.size(), wire::kWindowCandidatesMax);
    Verdict verdict;
    while (verdict.hit_blocks < keys.size() && store_.blocks.contains(keys[verdict.hit_blocks])) {
      const auto tier = store_.tiers.find(keys[verdict.hit_blocks++]);
      verdict.tiers.push_back(tier == store_.tiers.end() ? Tier::kDram : tier->second);
    }
    const uint64_t end = uint64_t{verdict.hit_blocks} * kBlockTokens;
    verdict.hit_tokens = end;
    const auto offer = [&](const wire::WindowKey& key, wire::WindowState state) {
      const auto found = store_.windows.find({key.prefix, key.position});
      if (found == store_.windows.end()) return;
      verdict.window = state;
      verdict.window_key = key;
      verdict.window_bytes = static_cast<uint32_t>(found->second.size());
    };
    if (end > 0) offer({keys[verdict.hit_blocks - 1], end}, wire::WindowState::kBoundary);
    for (const wire::WindowKey& key : windows) {
      if (key.position > end && key.position < end + kBlockTokens) {
        offer(key, wire::WindowState::kExact);
      }
    }
    return verdict;
  }

  absl::StatusOr<Loaded> Acquire(std::span<const BlockKey> keys) override {
    const std::lock_guard lock(store_.mutex);
    Loaded loaded;
    if (store_.busy_acquires > 0) {
      --store_.busy_acquires;
      loaded.stopped_by = Outcome::kBusy;
      return loaded;
    }
    const size_t granted = keys.size() - (store_.forget_after_lookup ? 1 : 0);
    for (size_t i = 0; i < granted; ++i) {
      loaded.records.push_back(store_.blocks.at(keys[i]));
      loaded.from_ssd += store_.tiers.contains(keys[i]) ? 1 : 0;
    }
    if (granted < keys.size()) loaded.stopped_by = Outcome::kNotFound;
    return loaded;
  }
  void Release() override {}

  uint32_t put_slots() const override { return kSlots; }
  Bytes put_slot(uint32_t slot) override {
    return Bytes(slots_).subspan(size_t{slot} * kRecordBytes, kRecordBytes);
  }
  absl::Status Put(std::span<const uint32_t> slots, bool, std::span<Outcome> outcomes) override {
    const std::lock_guard lock(store_.mutex);
    for (size_t i = 0; i < slots.size(); ++i) {
      const Bytes record = put_slot(slots[i]);
      const RecordHeader header = LoadRecordHeader(record);
      const BlockKey key = KeyOf(header.block_hash);
      EXPECT_EQ(VerifyRecord(record, key), Outcome::kOk);
      if (i == 0 && store_.busy_puts > 0) {
        --store_.busy_puts;
        outcomes[i] = Outcome::kBusy;
      } else if (store_.blocks.contains(key)) {
        outcomes[i] = Outcome::kExists;
      } else {
        outcomes[i] = store_.put_outcome;
        if (outcomes[i] != Outcome::kOk) continue;
        std::vector<std::byte>& kept = store_.blocks[key];
        kept.assign(record.begin(), record.end());
        if (store_.bend_records) kept[17] ^= std::byte{1};
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Snapshot> GetWindow(const wire::WindowKey& key) override {
    const std::lock_guard lock(store_.mutex);
    if (store_.forget_windows) return NotFound("expired");
    return Snapshot{store_.windows.at({key.prefix, key.position})};
  }
  absl::StatusOr<Outcome> PutWindow(const wire::WindowKey& key, uint64_t session_id,
                                    ConstBytes snapshot) override {
    const std::lock_guard lock(store_.mutex);
    EXPECT_EQ(key.position % 2, 0u);
    store_.window_sessions.push_back(session_id);
    std::vector<std::byte>& kept = store_.windows[{key.prefix, key.position}];
    kept.assign(snapshot.begin(), snapshot.end());
    if (store_.bend_windows) kept.back() ^= std::byte{0x80};
    return Outcome::kOk;
  }
  absl::StatusOr<StoreCounters> Counters() override { return StoreCounters(); }

 private:
  static constexpr uint32_t kSlots = 3;
  static constexpr uint32_t kRecordBytes = RecordBytesFor(kPayloadBytes);

  FakeStore& store_;
  std::vector<std::byte> slots_;
};

class FakeMaker final : public DriveStoreMaker {
 public:
  explicit FakeMaker(FakeStore* store) : store_(store) {}
  absl::StatusOr<std::unique_ptr<DriveStore>> Connect() override {
    const std::lock_guard lock(store_->mutex);
    if (store_->connects++ >= store_->refuse_connects_from) return Unavailable("refused");
    return std::unique_ptr<DriveStore>(std::make_unique<FakeConnection>(store_));
  }

 private:
  FakeStore* store_;
};

// Requests from memory.
class ListTrace final : public TraceReader {
 public:
  struct Row {
    double time_s;
    int64_t session;
    uint32_t input_tokens;
    std::vector<uint64_t> ids;
  };
  ListTrace(uint32_t block_tokens, std::vector<Row> rows)
      : block_tokens_(block_tokens), rows_(std::move(rows)) {}

  absl::StatusOr<bool> Next(TraceRequest* request) override {
    if (next_ == rows_.size()) return false;
    const Row& row = rows_[next_++];
    *request = TraceRequest();
    request->time_ns = static_cast<Nanos>(row.time_s * kSecond);
    request->session = row.session;
    request->input_tokens = row.input_tokens;
    request->block_tokens = block_tokens_;
    request->hash_ids = row.ids;
    return true;
  }
  TraceFormat format() const override { return TraceFormat::kMooncake; }

 private:
  const uint32_t block_tokens_;
  const std::vector<Row> rows_;
  size_t next_ = 0;
};

// The six hand-checked requests of the toy trace, with blocks of 128 instead of 4.
std::vector<ListTrace::Row> ToyRows() {
  return {{0, -1, 384, {1, 2, 3}},      {10, -1, 512, {1, 2, 3, 4}}, {20, -1, 256, {1, 5}},
          {400, -1, 576, {1, 2, 3, 4}}, {410, -1, 256, {6, 7}},      {420, -1, 384, {1, 5, 8}}};
}

class DriveTest : public ::testing::Test {
 protected:
  DriveTest() : maker_(&store_) {
    options_.request = {.name_space = TestNamespace(),
                        .payload_bytes = kPayloadBytes,
                        .window_bytes = kWindowBytes};
  }
  absl::StatusOr<DriveFigures> Run(TraceReader* trace) {
    return Drive(trace, &maker_, options_, &clock_);
  }
  DriveFigures RunToy() {
    ListTrace trace(128, ToyRows());
    const auto figures = Run(&trace);
    EXPECT_TRUE(figures.ok()) << figures.status();
    return figures.ok() ? *figures : DriveFigures();
  }

  FakeStore store_;
  FakeMaker maker_;
  DriveOptions options_;
  TestClock clock_;
};

TEST_F(DriveTest, ToyTraceByHand) {
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.requests, 6u);
  EXPECT_EQ(figures.input_tokens, 74u * 32);
  EXPECT_EQ(figures.hit_tokens, 40u * 32);  // 3 + 1 + 4 + 2 blocks.
  EXPECT_EQ(figures.hit_tokens_by_tier[static_cast<size_t>(Tier::kDram)], 40u * 32);
  // Row 2 ends where row 1 did, row 4 where row 2 did, row 6 where row 3 did; row 3 forks after one
  // block.
  EXPECT_EQ(figures.exact_hits, 3u);
  EXPECT_EQ(figures.replayed_hits, 1u);
  EXPECT_EQ(figures.misses, 2u);
  EXPECT_EQ(figures.replayed_tokens, 128u);
  EXPECT_EQ(figures.blocks_put, 8u);
  EXPECT_EQ(figures.blocks_existing, 0u);
  EXPECT_EQ(figures.put_bytes, 8u * 4096);
  EXPECT_EQ(figures.loaded_bytes, 10u * 4096);
  EXPECT_EQ(figures.window_loaded_bytes, 3u * kWindowBytes);
  EXPECT_EQ(figures.wrong_bytes, 0u);
  EXPECT_TRUE(figures.errors.empty());
  EXPECT_EQ(figures.latencies[static_cast<size_t>(DriveCall::kLookup)].count(), 6u);
  EXPECT_EQ(figures.latencies[static_cast<size_t>(DriveCall::kAcquireDram)].count(), 4u);
  EXPECT_THAT(store_.window_sessions, ::testing::Each(0u));
}

TEST_F(DriveTest, ReplayDerivedBlocksAreMarked) {
  RunToy();
  uint32_t derived = 0;
  for (const auto& [key, record] : store_.blocks) {
    derived += (LoadRecordHeader(record).flags & kReplayDerived) != 0 ? 1 : 0;
  }
  EXPECT_EQ(derived, 1u);  // Block [1, 5], whose window at [1] had to be replayed.
}

TEST_F(DriveTest, WithoutWindowsEveryHitIsReplayed) {
  options_.request.window_bytes = 0;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.replayed_hits, 4u);
  EXPECT_EQ(figures.replayed_tokens, 512u);
  EXPECT_TRUE(store_.windows.empty());
}

TEST_F(DriveTest, TiersAreTheVerdicts) {
  RunToy();
  Hash256 first;
  for (const auto& [key, record] : store_.blocks) {
    if (LoadRecordHeader(record).block_index == 0) store_.tiers[key] = Tier::kSsd;
  }
  ListTrace again(128, ToyRows());
  const auto figures = Run(&again);
  ASSERT_TRUE(figures.ok());
  EXPECT_EQ(figures->hit_tokens_by_tier[static_cast<size_t>(Tier::kSsd)], 6u * 128);
  EXPECT_EQ(figures->hit_tokens, 18u * 128);
  EXPECT_EQ(figures->latencies[static_cast<size_t>(DriveCall::kAcquireSsd)].count(), 6u);
}

// A session whose prompts end inside blocks: snapshots at exact positions are asked for and found.
TEST_F(DriveTest, ExactWindowInsideABlock) {
  ListTrace trace(64,
                  {{0, 5, 200, {1, 2, 3}},             // 1 block; snapshot at 192.
                   {1, 5, 330, {1, 2, 3, 4, 5}},       // Hit 128, exact at 192; snapshot at 320.
                   {2, 5, 400, {1, 2, 3, 4, 5, 6}},    // Hit 256, exact at 320.
                   {3, 6, 400, {1, 2, 3, 9, 5, 6}}});  // Another session: hit 128, not asked for.
  const auto figures = Run(&trace);
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->hit_tokens, 128u + 256 + 128);
  EXPECT_EQ(figures->exact_hits, 2u);
  EXPECT_EQ(figures->replayed_hits, 1u);
  EXPECT_EQ(figures->misses, 1u);
  EXPECT_THAT(store_.window_sessions, ElementsAre(6, 6, 6, 7));
  EXPECT_EQ(figures->wrong_bytes, 0u);
}

TEST_F(DriveTest, WrongBytesAreCounted) {
  store_.bend_records = store_.bend_windows = true;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.wrong_bytes, 10u + 3);
  EXPECT_EQ(figures.wrong_records, 10u + 3);

  FakeStore other;
  FakeMaker maker(&other);
  other.bend_records = true;
  options_.request.verify = false;
  ListTrace trace(128, ToyRows());
  EXPECT_EQ(Drive(&trace, &maker, options_, &clock_)->wrong_bytes, 0u);
}

TEST_F(DriveTest, BusyIsTriedAgain) {
  store_.busy_puts = 3;
  store_.busy_acquires = 2;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.retries, 5u);
  EXPECT_EQ(figures.blocks_put, 8u);
  EXPECT_EQ(figures.hit_tokens, 40u * 32);
  EXPECT_TRUE(figures.errors.empty());
}

TEST_F(DriveTest, BusyForTooLongIsAnError) {
  store_.busy_puts = UINT32_MAX;
  const DriveFigures figures = RunToy();
  EXPECT_THAT(figures.errors, ElementsAre(::testing::Pair("put/busy", ::testing::Gt(0u))));
  EXPECT_GT(figures.misses, 2u);
}

TEST_F(DriveTest, RefusedPutsAreErrorsByOutcome) {
  store_.put_outcome = Outcome::kRejected;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.misses, 6u);
  EXPECT_THAT(figures.errors, ElementsAre(::testing::Pair("put/rejected", 18u)));
}

TEST_F(DriveTest, LostBlocksAndWindowsShortenTheHit) {
  store_.forget_after_lookup = true;
  DriveFigures figures = RunToy();
  EXPECT_EQ(figures.hit_tokens, (40u - 4 * 4) * 32);
  EXPECT_EQ(figures.lost_blocks, 4u);
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.errors["acquire/not_found"], 4u);
  EXPECT_EQ(figures.blocks_existing, 4u);

  FakeStore other;
  FakeMaker maker(&other);
  other.forget_windows = true;
  ListTrace trace(128, ToyRows());
  figures = *Drive(&trace, &maker, options_, &clock_);
  EXPECT_EQ(figures.exact_hits, 0u);
  EXPECT_EQ(figures.replayed_hits, 4u);
  EXPECT_EQ(figures.lost_windows, 3u);
}

TEST_F(DriveTest, TimeoutsDegradeToMisses) {
  store_.lookups_until_timeout = 3;
  DriveFigures figures = RunToy();
  EXPECT_EQ(figures.misses, 3u);
  EXPECT_EQ(figures.errors["lookup/deadline_exceeded"], 1u);
  EXPECT_EQ(figures.blocks_existing, 4u);
}

TEST_F(DriveTest, ALostConnectionIsMadeAgain) {
  store_.lookups_until_lost = 2;
  const DriveFigures figures = RunToy();
  EXPECT_EQ(figures.reconnects, 1u);
  EXPECT_EQ(figures.requests, 6u);
  EXPECT_EQ(figures.errors.at("lookup/unavailable"), 1u);
  EXPECT_EQ(figures.exact_hits + figures.replayed_hits + figures.misses, 5u);
}

TEST_F(DriveTest, ADaemonThatStaysAwayEndsTheRun) {
  store_.lookups_until_lost = 2;
  store_.refuse_connects_from = 1;
  ListTrace trace(128, ToyRows());
  const auto figures = Run(&trace);
  EXPECT_EQ(figures.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(figures.status()), HasSubstr("is the daemon still running"));
}

TEST_F(DriveTest, LimitsOfRequestsAndSessions) {
  std::vector<ListTrace::Row> rows;
  for (int i = 0; i < 30; ++i) rows.push_back({i * 1.0, i % 3, 128, {static_cast<uint64_t>(i)}});
  options_.requests_max = 7;
  ListTrace first(128, rows);
  EXPECT_EQ(Run(&first)->requests, 7u);
  options_.requests_max = 0;
  options_.sessions_max = 2;
  ListTrace second(128, rows);
  EXPECT_EQ(Run(&second)->requests, 20u);
}

TEST_F(DriveTest, SpeedFollowsTheTrace) {
  options_.speed = 2;
  const DriveFigures figures = RunToy();
  EXPECT_GE(figures.elapsed_ns, 210 * kSecond);
  EXPECT_LT(figures.elapsed_ns, 211 * kSecond);
}

TEST_F(DriveTest, ManyConnectionsGiveTheSameFiguresForSessions) {
  const std::string spec =
      "generated:sessions=12,turns=6,seed=3,system=900,append=300,fork_per_mille=0";
  DriveFigures by_connections[2];
  for (const uint32_t connections : {1u, 4u}) {
    FakeStore store;
    FakeMaker maker(&store);
    options_.connections = connections;
    auto trace = OpenTrace(spec, {});
    const auto figures = Drive(trace->get(), &maker, options_, &clock_);
    ASSERT_TRUE(figures.ok()) << figures.status();
    EXPECT_EQ(figures->wrong_bytes, 0u);
    EXPECT_EQ(store.connects, connections);
    EXPECT_EQ(figures->exact_hits + figures->replayed_hits + figures->misses, figures->requests);
    by_connections[connections > 1] = *figures;
  }
  // Only who comes first with a shared system prompt may differ.
  EXPECT_EQ(by_connections[0].requests, by_connections[1].requests);
  EXPECT_EQ(by_connections[0].input_tokens, by_connections[1].input_tokens);
  EXPECT_GT(by_connections[1].exact_hits, by_connections[1].requests / 2);
}

TEST_F(DriveTest, TraceErrorsEndTheRun) {
  const std::string path = ::testing::TempDir() + "/drive_test." + std::to_string(::getpid());
  std::ofstream(path)
      << "{\"timestamp\":0,\"input_length\":512,\"output_length\":1,\"hash_ids\":[1]}\nx\n";
  auto trace = OpenTrace(path, {});
  ASSERT_TRUE(trace.ok());
  EXPECT_THAT(Message(Run(trace->get()).status()), HasSubstr(":2: "));
  std::filesystem::remove(path);
}

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

// The kept traces lie beside the project, and are not part of it.
TEST_F(DriveTest, AgentTraceAgainstMemory) {
  const std::string path = std::string(RP_SOURCE_DIR) + "/../shared/traces/cc48.jsonl.zst";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  auto trace = OpenTrace(path, {.block_tokens = 64});
  ASSERT_TRUE(trace.ok());
  options_.requests_max = 40;
  const auto figures = Run(trace->get());
  ASSERT_TRUE(figures.ok()) << figures.status();
  EXPECT_EQ(figures->wrong_bytes, 0u);
  EXPECT_TRUE(figures->errors.empty());
  EXPECT_GT(figures->exact_hits, 25u);
}

}  // namespace
}  // namespace reprise
