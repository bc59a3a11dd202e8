// The CUDA engine on the small model: against the CPU engine, and against itself.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "gpu/engine/sampler.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

double EqualShare(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  size_t equal = 0;
  for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(a.size());
}

// A window without its tails, which are float, and of which some are older than what was run.
std::vector<std::byte> WindowRows(std::vector<std::byte> window) {
  window.resize(CudaNano().window_layout().tails_offset);
  return window;
}
// The tails that the next row would need at an odd length.
std::vector<float> TailsAt(std::vector<std::byte> window, uint32_t length) {
  const LiveWindowLayout& layout = CudaNano().window_layout();
  std::vector<float> tails;
  for (uint32_t layer = 0; layer < layout.tail_of_layer.size(); ++layer) {
    if (layout.tail_of_layer[layer] == kNoLayer) continue;
    const float* tail = layout.tail(window.data(), layer, length - 1);
    tails.insert(tails.end(), tail, tail + 2 * layout.latent);
  }
  return tails;
}

TEST(CudaEngineTest, EachLayerAloneFromTheSameInput) {
  RP_NEEDS_DEVICE();
  const ModelConfig& c = NanoGeometry().config;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(490);
  TwinSequence sequence(gpu, 512);
  const Segment on_host = WholeRows(sequence.host(), tokens, 0);
  const Segment on_device = WholeRows(sequence.device(), tokens, 0);
  std::vector<float> stream = Embedded(tokens), pre(tokens.size() * c.hc_mult);
  for (size_t row = 0; row < tokens.size(); ++row) pre[row * c.hc_mult] = 1;
  double worst = 0;
  for (uint32_t layer = 0; layer < c.layer_count; ++layer) {
    std::vector<float> gpu_stream = stream, gpu_pre = pre;
    ASSERT_TRUE(cpu->RunLayer(layer, on_host, &stream, &pre).ok());
    const absl::Status status = gpu.RunLayer(layer, on_device, &gpu_stream, &gpu_pre);
    ASSERT_TRUE(status.ok()) << Message(status);
    const double error = RelativeRms(gpu_stream, stream);
    worst = std::max(worst, error);
    EXPECT_LE(error, 2e-3) << "layer " << layer;
    EXPECT_LE(RelativeRms(gpu_pre, pre), 2e-3) << "pre of layer " << layer;
    if (NanoGeometry().layers[layer].ratio == 0) continue;
    const auto selected = gpu.Selections(static_cast<uint32_t>(tokens.size()));
    ASSERT_TRUE(selected.ok());
    size_t same = 0;
    for (size_t i = 0; i < selected->size(); ++i) same += (*selected)[i] == cpu->selections()[i];
    std::printf("layer %u: relative RMS %.2e, selections equal %.5f\n", layer, error,
                static_cast<double>(same) / static_cast<double>(selected->size()));
    EXPECT_GE(static_cast<double>(same) / static_cast<double>(selected->size()), 0.99);
  }
  const double records = EqualShare(sequence.DeviceBlocks(), sequence.host_blocks());
  const double windows =
      EqualShare(WindowRows(sequence.DeviceWindow()), WindowRows(sequence.host_window()));
  std::printf("worst relative RMS %.2e; record bytes equal %.5f, window bytes %.5f\n", worst,
              records, windows);
  EXPECT_GE(records, 0.995);
  EXPECT_GE(windows, 0.995);
}

TEST(CudaEngineTest, NextTokensOverWholeRuns) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  uint32_t equal = 0, all = 0;
  for (const uint32_t length : {1u, 127u, 129u, 300u, 509u}) {
    const std::vector<TokenId> tokens = Text(length);
    TwinSequence sequence(gpu, 512);
    std::vector<float> want(length * vocab), got(length * vocab);
    const Segment on_host = WholeRows(sequence.host(), tokens, 0);
    const Segment on_device = WholeRows(sequence.device(), tokens, 0);
    ASSERT_TRUE(cpu->Forward({&on_host, 1}, want).ok());
    const absl::Status status = gpu.Forward({&on_device, 1}, got);
    ASSERT_TRUE(status.ok()) << Message(status);
    const uint32_t same = EqualTokens(got, want, vocab);
    std::printf("%u rows: next token equal in %u, logits off by %.1e\n", length, same,
                RelativeRms(got, want));
    equal += same;
    all += length;
  }
  EXPECT_GE(static_cast<double>(equal) / all, 0.98);
}

// Runs tokens [first, end) in pieces, and gives the logits.
std::vector<float> RunIn(CudaEngine& gpu, const SequenceMemory& memory,
                         const std::vector<TokenId>& tokens, uint32_t first, uint32_t piece) {
  const size_t vocab = gpu.geometry().config.vocab_size;
  std::vector<float> logits((tokens.size() - first) * vocab);
  for (auto at = first; at < tokens.size(); at += piece) {
    const auto end = std::min<size_t>(tokens.size(), size_t{at} + piece);
    const Segment segment = WholeRows(memory, std::span(tokens).first(end), at);
    Must(gpu.Forward({&segment, 1},
                     std::span(logits).subspan((at - first) * vocab, (end - at) * vocab)));
  }
  return logits;
}

TEST(CudaEngineTest, WhatARowBecomesDoesNotDependOnPiecesNorOnTheBatch) {
  RP_NEEDS_DEVICE();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(401);
  TwinSequence whole(gpu, 512);
  const std::vector<float> logits = RunIn(gpu, whole.device(), tokens, 0, 401);
  const auto blocks = whole.DeviceBlocks(), window = WindowRows(whole.DeviceWindow());
  const auto tails = TailsAt(whole.DeviceWindow(), 401);
  for (const uint32_t piece : {1u, 7u, 64u, 130u, 257u}) {
    SCOPED_TRACE(piece);
    TwinSequence cut(gpu, 512);
    const std::vector<float> cut_logits = RunIn(gpu, cut.device(), tokens, 0, piece);
    EXPECT_TRUE(cut.DeviceBlocks() == blocks);
    EXPECT_TRUE(WindowRows(cut.DeviceWindow()) == window);
    EXPECT_TRUE(TailsAt(cut.DeviceWindow(), 401) == tails);
    EXPECT_EQ(std::memcmp(cut_logits.data(), logits.data(), logits.size() * 4), 0);
  }
  // Beside two others in one call.
  const size_t vocab = NanoGeometry().config.vocab_size;
  TwinSequence batched(gpu, 512), second(gpu, 512), third(gpu, 512);
  const std::vector<TokenId> other = Text(90);
  const Segment batch[] = {WholeRows(second.device(), other, 0),
                           WholeRows(batched.device(), tokens, 0),
                           WholeRows(third.device(), std::span(other).first(13), 0)};
  std::vector<float> all((90 + 401 + 13) * vocab);
  Must(gpu.Forward(batch, all));
  EXPECT_TRUE(batched.DeviceBlocks() == blocks);
  EXPECT_TRUE(WindowRows(batched.DeviceWindow()) == window);
  EXPECT_EQ(std::memcmp(all.data() + 90 * vocab, logits.data(), logits.size() * 4), 0);
}

TEST(CudaEngineTest, SavedAndRestoredItGoesOnTheSame) {
  RP_NEEDS_DEVICE();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(330);
  for (const uint32_t cut : {200u, 201u, 256u}) {
    SCOPED_TRACE(cut);
    TwinSequence first(gpu, 512), second(gpu, 512);
    const std::vector<TokenId> begin(tokens.begin(), tokens.begin() + cut);
    RunIn(gpu, first.device(), begin, 0, 100);
    first.FromDevice();
    std::memcpy(second.host().window, first.host().window, first.host_window().size());
    for (size_t i = 0; i < first.host().blocks.size(); ++i) {
      std::memcpy(second.host().blocks[i], first.host().blocks[i],
                  gpu.geometry().record.payload_bytes);
    }
    second.ToDevice();
    const std::vector<float> a = RunIn(gpu, first.device(), tokens, cut, 50);
    const std::vector<float> b = RunIn(gpu, second.device(), tokens, cut, 3);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * 4), 0);
    EXPECT_TRUE(first.DeviceBlocks() == second.DeviceBlocks());
    EXPECT_TRUE(WindowRows(first.DeviceWindow()) == WindowRows(second.DeviceWindow()));
  }
}

TEST(CudaEngineTest, RecordsOfTheCpuAreReadByTheDeviceAndBack) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(380);
  const std::span<const TokenId> begin = std::span(tokens).first(300);
  TwinSequence sequence(gpu, 512);
  std::vector<float> unused(300 * vocab), want(80 * vocab), got(80 * vocab);
  Segment on_host = WholeRows(sequence.host(), begin, 0);
  ASSERT_TRUE(cpu->Forward({&on_host, 1}, unused).ok());
  sequence.ToDevice();
  EXPECT_TRUE(sequence.DeviceBlocks() == sequence.host_blocks());
  on_host = WholeRows(sequence.host(), tokens, 300);
  ASSERT_TRUE(cpu->Forward({&on_host, 1}, want).ok());
  got = RunIn(gpu, sequence.device(), tokens, 300, 80);
  EXPECT_GE(EqualTokens(got, want, vocab), 78u);

  // The other way round.
  TwinSequence back(gpu, 512);
  RunIn(gpu, back.device(), std::vector<TokenId>(begin.begin(), begin.end()), 0, 300);
  back.FromDevice();
  on_host = WholeRows(back.host(), tokens, 300);
  ASSERT_TRUE(cpu->Forward({&on_host, 1}, want).ok());
  got = RunIn(gpu, back.device(), tokens, 300, 80);
  EXPECT_GE(EqualTokens(got, want, vocab), 78u);
}

TEST(CudaEngineTest, ReplaysRebuildWindowsAndWriteNoRecords) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(420);
  TwinSequence sequence(gpu, 512);
  std::vector<float> unused(400 * vocab);
  Segment segment = WholeRows(sequence.host(), std::span(tokens).first(400), 0);
  ASSERT_TRUE(cpu->Forward({&segment, 1}, unused).ok());
  sequence.ToDevice();
  const auto blocks = sequence.DeviceBlocks();
  // Both replays of a hit at 400: rows from 272 on, 20 new ones.
  const auto replay = [&](const SequenceMemory& memory) {
    return Segment{.memory = memory,
                   .tokens = tokens,
                   .first = 272,
                   .write_from = 400,
                   .encoder_from = 272,
                   .decoder_first = 292,
                   .decoder_from = 292,
                   .logits_from = 400};
  };
  std::vector<float> got(20 * vocab), want(20 * vocab);
  segment = replay(sequence.device());
  Must(gpu.Forward({&segment, 1}, got));
  segment = replay(sequence.host());
  ASSERT_TRUE(cpu->Forward({&segment, 1}, want).ok());
  EXPECT_GE(EqualTokens(got, want, vocab), 19u);
  EXPECT_LE(RelativeRms(got, want), 0.06);
  const auto after = sequence.DeviceBlocks();
  const size_t payload = gpu.geometry().record.payload_bytes;
  for (uint32_t block = 0; block < 3; ++block) {
    EXPECT_EQ(std::memcmp(after.data() + block * payload, blocks.data() + block * payload, payload),
              0);
  }
  EXPECT_GE(EqualShare(after, sequence.host_blocks()), 0.99);
}

TEST(CudaEngineTest, RepeatedStepsRunAsGraphsAndGiveTheSame) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(420);
  std::vector<float> first;
  for (int turn = 0; turn < 3; ++turn) {  // Eager, captured, replayed: each in memory of its own.
    TwinSequence sequence(gpu, 512);
    RunIn(gpu, sequence.device(), std::vector<TokenId>(tokens.begin(), tokens.begin() + 400), 0,
          100);
    const uint64_t before = gpu.graphs_replayed();
    const Segment replay{.memory = sequence.device(),
                         .tokens = tokens,
                         .first = 272,
                         .write_from = 400,
                         .encoder_from = 272,
                         .decoder_first = 292,
                         .decoder_from = 292,
                         .logits_from = 419};
    std::vector<float> logits(vocab);
    Must(gpu.Forward({&replay, 1}, logits));
    if (turn == 0) first = logits;
    EXPECT_EQ(std::memcmp(first.data(), logits.data(), logits.size() * 4), 0);
    if (turn > 0) {
      EXPECT_EQ(gpu.graphs_replayed(), before + 1);
    }
  }
  // Decode: steps that differ in position alone share a graph.
  TwinSequence sequence(gpu, 512);
  const uint64_t before = gpu.graphs_replayed();
  RunIn(gpu, sequence.device(), std::vector<TokenId>(tokens.begin(), tokens.begin() + 200), 0, 1);
  EXPECT_GE(gpu.graphs_replayed(), before + 150);
}

// A Reuse layer is what most layers are.
TEST(CudaEngineTest, LaunchesOfALayer) {
  RP_NEEDS_DEVICE();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(400);
  TwinSequence sequence(gpu, 512);
  const auto& layers = NanoGeometry().layers;
  const auto reuse = std::find_if(layers.begin(), layers.end(), [](const LayerPlan& plan) {
    return plan.mode == LayerMode::kReuse && plan.engram == kNoLayer && !plan.draft_tap;
  });
  ASSERT_NE(reuse, layers.end());
  const auto layer = static_cast<uint32_t>(reuse - layers.begin());
  const uint32_t prefill =
      Must(gpu.LaunchesOfLayer(layer, WholeRows(sequence.device(), std::span(tokens), 0)));
  const uint32_t decode =
      Must(gpu.LaunchesOfLayer(layer, WholeRows(sequence.device(), std::span(tokens), 399)));
  std::printf("launches of a Reuse layer: %u in prefill, %u in decode\n", prefill, decode);
  EXPECT_LE(prefill, 15u);
  EXPECT_LE(decode, 11u);
}

TEST(CudaEngineTest, DraftsAreThoseOfTheCpu) {
  RP_NEEDS_DEVICE();
  const size_t vocab = NanoGeometry().config.vocab_size;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  uint32_t equal = 0, all = 0;
  for (const uint32_t length : {60u, 180u, 333u}) {
    const std::vector<TokenId> tokens = Text(length);
    TwinSequence sequence(gpu, 512);
    std::vector<float> logits(length * vocab);
    const Segment segment = WholeRows(sequence.host(), tokens, 0);
    ASSERT_TRUE(cpu->Forward({&segment, 1}, logits).ok());
    sequence.ToDevice();
    const auto request = [&](const SequenceMemory& memory) {
      return DraftRequest{.memory = memory,
                          .length = length,
                          .decoder_from = 0,
                          .token = Text(length + 1)[length],
                          .draws = {}};
    };
    DraftResult want, got;
    DraftRequest on_host = request(sequence.host()), on_device = request(sequence.device());
    ASSERT_TRUE(cpu->Draft({&on_host, 1}, {&want, 1}).ok());
    const absl::Status status = gpu.Draft({&on_device, 1}, {&got, 1});
    ASSERT_TRUE(status.ok()) << Message(status);
    ASSERT_EQ(got.tokens.size(), want.tokens.size());
    for (size_t i = 0; i < want.tokens.size(); ++i) {
      equal += got.tokens[i] == want.tokens[i] ? 1 : 0;
      EXPECT_NEAR(got.confidences[i], want.confidences[i], 0.1);
      ++all;
    }
  }
  EXPECT_GE(equal + 1, all);
}

TEST(CudaEngineTest, SelectionAndPoolBeyondWhatFits) {
  RP_NEEDS_DEVICE();
  // 1,600 tokens: the pool of 64 blocks of 8 excludes most entries of the decoder.
  const size_t vocab = NanoGeometry().config.vocab_size;
  const auto cpu = CpuNano();
  CudaEngine& gpu = CudaNano();
  const std::vector<TokenId> tokens = Text(1600);
  TwinSequence sequence(gpu, 1664);
  std::vector<float> want, got;
  for (uint32_t at = 0; at < 1600; at += 400) {
    want.assign(400 * vocab, 0);
    const Segment segment = WholeRows(sequence.host(), std::span(tokens).first(at + 400), at);
    ASSERT_TRUE(cpu->Forward({&segment, 1}, want).ok());
  }
  got = RunIn(gpu, sequence.device(), tokens, 0, 400);
  const uint32_t same =
      EqualTokens(std::span(got).subspan(1200 * vocab), std::span<const float>(want), vocab);
  std::printf("rows 1,200 to 1,600: next token equal in %u of 400\n", same);
  EXPECT_GE(same, 388u);
}

}  // namespace
}  // namespace reprise::engine::cuda::test
