// The small model on two GPUs: against one, rank against rank, and against itself.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "client/engine/sequence_memory.h"
#include "gpu/cuda/sharded_engine.h"
#include "gpu/engine/sampler.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

using bench::SequenceBuffers;

absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> MakeNano(uint32_t rows_max, bool graphs) {
  RP_TRY(UseDevice(1).status());
  auto made = ShardedCudaEngine::Make(NanoGeometry(), NanoCheckpoint(), NanoEngramMap(),
                                      {.devices = {0, 1}, .rows_max = rows_max, .graphs = graphs});
  RP_TRY(UseDevice(0).status());
  return made;
}
// Made once.
const absl::StatusOr<std::unique_ptr<ShardedCudaEngine>>& Nano() {
  static const auto* const made =
      new absl::StatusOr<std::unique_ptr<ShardedCudaEngine>>(MakeNano(512, true));
  return *made;
}

class ShardedEngineTest : public testing::Test {
 protected:
  // What a machine lacks (a second GPU, NCCL) skips; anything else fails.
  void SetUp() override {
    RP_NEEDS_DEVICE();
    const absl::Status& status = Nano().status();
    const bool lacking = status.code() == absl::StatusCode::kInvalidArgument ||
                         status.code() == absl::StatusCode::kUnavailable ||
                         status.code() == absl::StatusCode::kFailedPrecondition;
    if (lacking) GTEST_SKIP() << "two GPUs: " << Message(status);
    ASSERT_TRUE(status.ok()) << Message(status);
    engine_ = Nano()->get();
    Must(engine_->EnterThread());
  }
  ShardedCudaEngine* engine_ = nullptr;
  const size_t vocab_ = NanoGeometry().config.vocab_size;
};

// What a rank holds of a sequence: its blocks; its windows without the tails, of which some are
// older than what was run.
struct Held {
  std::vector<std::byte> blocks, window;
  bool operator==(const Held&) const = default;
};
Held HeldBy(const ShardedCudaEngine& engine, uint32_t rank, const SequenceMemory& memory) {
  const size_t payload = engine.geometry().record.payload_bytes;
  Held held;
  held.blocks.resize(memory.blocks.size() * payload);
  held.window.resize(engine.window_layout().tails_offset);
  for (size_t b = 0; b < memory.blocks.size(); ++b) {
    Must(engine.ranks_memory().FromRank(rank, memory.blocks[b],
                                        std::span(held.blocks).subspan(b * payload, payload)));
  }
  Must(engine.ranks_memory().FromRank(rank, memory.window, held.window));
  return held;
}
void ExpectRanksAlike(const ShardedCudaEngine& engine, const SequenceMemory& memory,
                      const char* after) {
  const Held first = HeldBy(engine, 0, memory);
  for (uint32_t rank = 1; rank < engine.ranks(); ++rank) {
    const Held other = HeldBy(engine, rank, memory);
    EXPECT_TRUE(other.blocks == first.blocks) << "blocks of rank " << rank << " after " << after;
    EXPECT_TRUE(other.window == first.window) << "windows of rank " << rank << " after " << after;
  }
}

// Tokens [first, end) in pieces; the logits.
std::vector<float> RunIn(Engine& engine, const SequenceMemory& memory,
                         std::span<const TokenId> tokens, uint32_t first, uint32_t piece) {
  const size_t vocab = engine.geometry().config.vocab_size;
  std::vector<float> logits((tokens.size() - first) * vocab);
  for (auto at = first; at < tokens.size(); at += piece) {
    const auto end = std::min<size_t>(tokens.size(), size_t{at} + piece);
    const Segment segment = WholeRows(memory, tokens.first(end), at);
    Must(engine.Forward({&segment, 1},
                        std::span(logits).subspan((at - first) * vocab, (end - at) * vocab)));
  }
  return logits;
}
bool Same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Both replays of a hit at 400: rows from 272 on, 20 new ones.
Segment Replay(const SequenceMemory& memory, std::span<const TokenId> tokens) {
  return {.memory = memory,
          .tokens = tokens,
          .first = 272,
          .write_from = 400,
          .encoder_from = 272,
          .decoder_first = 292,
          .decoder_from = 292,
          .logits_from = 419};
}
DraftRequest DraftAfter(const SequenceMemory& memory, uint32_t length) {
  return {.memory = memory,
          .length = length,
          .decoder_from = 0,
          .token = Text(length + 1)[length],
          .draws = {}};
}

TEST_F(ShardedEngineTest, EachLayerGivesWhatItGivesOnOneGpu) {
  const ModelConfig& c = NanoGeometry().config;
  const std::vector<TokenId> tokens = Text(300);
  CudaEngine& one = CudaNano();
  const auto on_one = Must(SequenceBuffers::Make(one, 512));
  const auto on_two = Must(SequenceBuffers::Make(*engine_, 512));
  std::vector<float> stream = Embedded(tokens), pre(tokens.size() * c.hc_mult);
  for (size_t row = 0; row < tokens.size(); ++row) pre[row * c.hc_mult] = 1;
  for (uint32_t layer = 0; layer < c.layer_count; ++layer) {
    std::vector<float> two_stream = stream, two_pre = pre;
    Must(one.RunLayer(layer, WholeRows(on_one.lent(), tokens, 0), &stream, &pre));
    Must(engine_->RunLayer(layer, WholeRows(on_two.lent(), tokens, 0), &two_stream, &two_pre));
    EXPECT_LE(RelativeRms(two_stream, stream), 2e-3) << "layer " << layer;
    EXPECT_LE(RelativeRms(two_pre, pre), 2e-3) << "pre of layer " << layer;
  }
}

TEST_F(ShardedEngineTest, NextTokensAreThoseOfOneGpu) {
  CudaEngine& one = CudaNano();
  uint32_t equal = 0, all = 0;
  for (const uint32_t length : {1u, 127u, 129u, 300u, 509u}) {
    const std::vector<TokenId> tokens = Text(length);
    const auto on_one = Must(SequenceBuffers::Make(one, 512));
    const auto on_two = Must(SequenceBuffers::Make(*engine_, 512));
    const std::vector<float> want = RunIn(one, on_one.lent(), tokens, 0, length);
    const std::vector<float> got = RunIn(*engine_, on_two.lent(), tokens, 0, length);
    const uint32_t same = EqualTokens(got, want, vocab_);
    std::printf("%u rows: next token equal in %u, logits off by %.1e\n", length, same,
                RelativeRms(got, want));
    equal += same;
    all += length;
  }
  EXPECT_GE(static_cast<double>(equal) / all, 0.98);
}

TEST_F(ShardedEngineTest, RanksHoldTheSameBytes) {
  const std::vector<TokenId> tokens = Text(460);
  const auto buffers = Must(SequenceBuffers::Make(*engine_, 512));
  const SequenceMemory memory = buffers.lent();
  RunIn(*engine_, memory, std::span(tokens).first(400), 0, 150);
  ExpectRanksAlike(*engine_, memory, "prefill");
  for (int turn = 0; turn < 3; ++turn) {  // One by one, captured, as a graph.
    std::vector<float> logits(vocab_);
    const Segment replay = Replay(memory, std::span(tokens).first(420));
    Must(engine_->Forward({&replay, 1}, logits));
    ExpectRanksAlike(*engine_, memory, "a replay");
  }
  const uint64_t before = engine_->rank(0).graphs_replayed();
  RunIn(*engine_, memory, tokens, 420, 1);
  ExpectRanksAlike(*engine_, memory, "decode");
  EXPECT_GE(engine_->rank(0).graphs_replayed(), before + 20);
  const Held held = HeldBy(*engine_, 1, memory);
  const DraftRequest request = DraftAfter(memory, 460);
  DraftResult result;
  Must(engine_->Draft({&request, 1}, {&result, 1}));
  ExpectRanksAlike(*engine_, memory, "drafts");
  EXPECT_TRUE(HeldBy(*engine_, 1, memory) == held);  // Drafts write nothing.
}

TEST_F(ShardedEngineTest, WhatARowBecomesDoesNotDependOnPiecesNorOnTheBatch) {
  const std::vector<TokenId> tokens = Text(401);
  const auto whole = Must(SequenceBuffers::Make(*engine_, 512));
  const std::vector<float> logits = RunIn(*engine_, whole.lent(), tokens, 0, 401);
  const Held held = HeldBy(*engine_, 0, whole.lent());
  for (const uint32_t piece : {1u, 7u, 64u, 130u, 257u}) {
    SCOPED_TRACE(piece);
    const auto cut = Must(SequenceBuffers::Make(*engine_, 512));
    EXPECT_TRUE(Same(RunIn(*engine_, cut.lent(), tokens, 0, piece), logits));
    EXPECT_TRUE(HeldBy(*engine_, 0, cut.lent()) == held);
    EXPECT_TRUE(HeldBy(*engine_, 1, cut.lent()) == held);
  }
  const auto batched = Must(SequenceBuffers::Make(*engine_, 512));
  const auto beside = Must(SequenceBuffers::Make(*engine_, 512));
  const std::vector<TokenId> other = Text(90);
  const Segment batch[] = {WholeRows(beside.lent(), other, 0),
                           WholeRows(batched.lent(), tokens, 0)};
  std::vector<float> all((90 + 401) * vocab_);
  Must(engine_->Forward(batch, all));
  EXPECT_TRUE(Same(std::span(all).subspan(90 * vocab_), logits));
  EXPECT_TRUE(HeldBy(*engine_, 1, batched.lent()) == held);
}

// Many rows are summed by shares, and without graphs: the same bytes all the same.
TEST_F(ShardedEngineTest, ManyRowsBecomeWhatFewDo) {
  constexpr uint32_t kRows = 6001;
  const auto many = Must(MakeNano(kRows, false));
  const std::vector<TokenId> tokens = Text(kRows);
  const auto at_once = Must(SequenceBuffers::Make(*many, kRows));
  const auto in_pieces = Must(SequenceBuffers::Make(*engine_, kRows));
  const auto run = [&](Engine& engine, const SequenceMemory& memory, uint32_t piece) {
    std::vector<float> logits(vocab_);
    for (uint32_t at = 0; at < kRows; at += piece) {
      const uint32_t end = std::min(kRows, at + piece);
      Segment segment = WholeRows(memory, std::span(tokens).first(end), at);
      segment.logits_from = end == kRows ? end - 1 : end;
      Must(engine.Forward({&segment, 1}, end == kRows ? std::span(logits) : std::span<float>()));
    }
    return logits;
  };
  const std::vector<float> logits = run(*many, at_once.lent(), kRows);
  EXPECT_TRUE(Same(run(*engine_, in_pieces.lent(), 500), logits));
  const Held held = HeldBy(*many, 0, at_once.lent());
  for (const uint32_t rank : {0u, 1u}) {
    EXPECT_TRUE(HeldBy(*many, rank, at_once.lent()) == held);
    EXPECT_TRUE(HeldBy(*engine_, rank, in_pieces.lent()) == held);
  }
}

TEST_F(ShardedEngineTest, SavedAndRestoredItGoesOnTheSame) {
  const std::vector<TokenId> tokens = Text(330);
  for (const uint32_t cut : {200u, 201u}) {
    SCOPED_TRACE(cut);
    const auto first = Must(SequenceBuffers::Make(*engine_, 512));
    const auto second = Must(SequenceBuffers::Make(*engine_, 512));
    RunIn(*engine_, first.lent(), std::span(tokens).first(cut), 0, 100);
    const size_t payload = engine_->geometry().record.payload_bytes;
    const size_t window = engine_->window_layout().bytes, blocks = first.lent().blocks.size();
    std::vector<std::byte> saved(blocks * payload + window);
    std::vector<MemoryCopy> out, in;
    for (size_t b = 0; b < blocks; ++b) {
      std::byte* const host = saved.data() + b * payload;
      out.push_back({host, first.lent().blocks[b], payload});
      in.push_back({second.lent().blocks[b], host, payload});
    }
    out.push_back({saved.data() + blocks * payload, first.lent().window, window});
    in.push_back({second.lent().window, saved.data() + blocks * payload, window});
    Must(engine_->memory().Copy(out));
    Must(engine_->memory().Copy(in));
    const std::vector<float> want = RunIn(*engine_, first.lent(), tokens, cut, 50);
    EXPECT_TRUE(Same(RunIn(*engine_, second.lent(), tokens, cut, 50), want));
    const Held held = HeldBy(*engine_, 0, first.lent());
    EXPECT_TRUE(HeldBy(*engine_, 0, second.lent()) == held);
    EXPECT_TRUE(HeldBy(*engine_, 1, second.lent()) == held);
  }
}

// Chosen among the columns of all ranks; in a graph and, of more rows than one takes, without.
TEST_F(ShardedEngineTest, RowsTokensAreThoseOfTheirLogits) {
  for (const uint32_t count : {19u, 19u, 19u, 300u}) {
    const std::vector<TokenId> tokens = Text(count);
    const std::vector<TokenDraw> draws = DrawsOfFourKinds(count);
    const auto buffers = Must(SequenceBuffers::Make(*engine_, 512));
    const Segment segment = WholeRows(buffers.lent(), tokens, 0);
    std::vector<float> logits(count * vocab_);
    std::vector<LogitRow> rows(count);
    for (uint32_t i = 0; i < count; ++i) {
      rows[i] = {.draw = draws[i], .logits = &logits[i * vocab_], .token = -1};
    }
    Must(engine_->ForwardRows({&segment, 1}, rows));
    for (uint32_t i = 0; i < count; ++i) {
      const auto own = std::span(logits).subspan(i * vocab_, vocab_);
      EXPECT_EQ(rows[i].token, ChooseToken(draws[i], own)) << i;
    }
  }
}

TEST_F(ShardedEngineTest, DraftsAreThoseOfOneGpu) {
  CudaEngine& one = CudaNano();
  uint32_t equal = 0, all = 0;
  for (const uint32_t length : {60u, 180u, 333u}) {
    const std::vector<TokenId> tokens = Text(length);
    const auto on_one = Must(SequenceBuffers::Make(one, 512));
    const auto on_two = Must(SequenceBuffers::Make(*engine_, 512));
    RunIn(one, on_one.lent(), tokens, 0, length);
    RunIn(*engine_, on_two.lent(), tokens, 0, length);
    DraftResult want, got;
    const DraftRequest of_one = DraftAfter(on_one.lent(), length);
    const DraftRequest of_two = DraftAfter(on_two.lent(), length);
    Must(one.Draft({&of_one, 1}, {&want, 1}));
    Must(engine_->Draft({&of_two, 1}, {&got, 1}));
    ASSERT_EQ(got.tokens.size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      equal += got.tokens[i] == want.tokens[i] ? 1 : 0;
      EXPECT_NEAR(got.confidences[i], want.confidences[i], 0.1);
      ++all;
    }
  }
  EXPECT_GE(equal + 1, all);
}

TEST_F(ShardedEngineTest, SlotsAreOnAllRanks) {
  EngineMemory& memory = engine_->memory();
  constexpr uint32_t kSlots = 16, kBytes = 27'136;
  const auto slots = Must(memory.MakeSlots(kBytes, kSlots));
  std::vector<std::byte> in(size_t{kSlots} * kBytes), out(in.size()), at(kBytes);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 31 % 251);
  const EngineBuffer pinned_in = Must(memory.Pin(in)), pinned_out = Must(memory.Pin(out));
  std::vector<SlotCopy> loads, stores;
  for (uint32_t i = 0; i < kSlots; ++i) {
    EXPECT_EQ(slots->SlotOf(slots->data(i)), i);
    loads.push_back({.slot = i, .host = in.data() + size_t{i} * kBytes});
    stores.push_back({.slot = i, .host = out.data() + size_t{i} * kBytes});
  }
  const uint64_t loaded = Must(slots->Load(loads));
  while (!Must(slots->LoadDone(loaded))) {
  }
  for (const uint32_t rank : {0u, 1u}) {
    Must(engine_->ranks_memory().FromRank(rank, slots->data(5), at));
    EXPECT_EQ(std::memcmp(at.data(), in.data() + 5 * kBytes, kBytes), 0) << rank;
  }
  const uint32_t cleared[] = {5};
  Must(slots->Clear(cleared));
  Must(memory.Copy({}));  // Blocks until what is queued for steps is done.
  std::fill_n(in.begin() + 5 * kBytes, kBytes, std::byte{});
  for (const uint32_t rank : {0u, 1u}) {
    Must(engine_->ranks_memory().FromRank(rank, slots->data(5), at));
    EXPECT_EQ(std::memcmp(at.data(), in.data() + 5 * kBytes, kBytes), 0) << rank;
  }
  const uint64_t stored = Must(slots->Store(stores));
  while (!Must(slots->StoreDone(stored))) {
  }
  EXPECT_TRUE(out == in);
}

// What an error on one rank relies on: the others do not wait for it for ever.
TEST_F(ShardedEngineTest, ACollectiveThatIsCutOffEnds) {
  constexpr int kDevices[] = {0, 1};
  constexpr uint64_t kBytes = 1 << 20;
  const auto communicators = Must(Communicator::Connect(kDevices));
  Must(UseDevice(0).status());
  const Stream stream = Must(Stream::Create());
  const OnDevice<uint8_t> from(kBytes), to(2 * kBytes);
  Must(communicators[0]->AllGather(from.data(), to.data(), kBytes, stream.get()));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_EQ(cudaStreamQuery(stream.get()), cudaErrorNotReady);  // Rank 1 does not come.
  for (const auto& communicator : communicators) communicator->Abort();
  Must(stream.Wait());
  const absl::Status refused =
      communicators[0]->AllGather(from.data(), to.data(), kBytes, stream.get());
  EXPECT_EQ(refused.code(), absl::StatusCode::kAborted);
}

TEST_F(ShardedEngineTest, WhatCannotBeRunIsRefusedAndTheNextCallIsNot) {
  const std::vector<TokenId> tokens = Text(40);
  const auto buffers = Must(SequenceBuffers::Make(*engine_, 128));
  const std::vector<float> logits = RunIn(*engine_, buffers.lent(), tokens, 0, 40);
  const EngineBuffer host = Must(HostMemory().Allocate(engine_->window_layout().bytes));
  SequenceMemory foreign = buffers.lent();
  foreign.window = host.data();
  const Segment segment = WholeRows(foreign, tokens, 0);
  std::vector<float> unused(40 * vocab_);
  const absl::Status refused = engine_->Forward({&segment, 1}, unused);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused), testing::HasSubstr("memory that is not the engine's"));
  // More drafts than rows fit: each rank finds that out for itself.
  std::vector<DraftRequest> requests(200, DraftAfter(buffers.lent(), 40));
  std::vector<DraftResult> results(requests.size());
  const absl::Status many = engine_->Draft(requests, results);
  EXPECT_EQ(many.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(many), testing::HasSubstr("rank 0 of 2"));
  const auto again = Must(SequenceBuffers::Make(*engine_, 128));
  EXPECT_TRUE(Same(RunIn(*engine_, again.lent(), tokens, 0, 40), logits));
}

}  // namespace
}  // namespace reprise::engine::cuda::test
