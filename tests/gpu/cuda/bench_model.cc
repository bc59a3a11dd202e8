#include "tests/gpu/cuda/bench_model.h"

#include <cuda_profiler_api.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "gpu/cuda/cuda_engine.h"
#include "gpu/cuda/hbm_pool.h"
#include "gpu/cuda/random_fill.h"
#include "gpu/engine/sampler.h"
#include "gpu/tokenizer/engram_hash.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {

using test::Must;

namespace {

// Host microseconds of a call that blocks: the best of several.
template <typename Call>
double BestTime(const Call& call) {
  double best = 1e12;
  for (int i = 0; i < 8; ++i) {
    const Instant begin = SystemClock().Now();
    Must(call());
    best = std::min(best, static_cast<double>(SystemClock().Now() - begin) / 1e3);
  }
  return best;
}

}  // namespace

void BenchChoices(Engine& engine, const Segment& last, std::span<const DraftRequest> requests) {
  for (const SamplingOptions& options :
       {SamplingOptions(), SamplingOptions{.temperature = 0.8, .top_p = 0.95}}) {
    const size_t length = last.tokens.size();
    LogitRow row{.draw = Sampler(options).DrawAt(length)};
    const double time = BestTime([&] { return engine.ForwardRows({&last, 1}, {&row, 1}); });
    std::printf("| decode at %zu, the %s token instead of logits | %.0f us | | | | |\n", length,
                options.temperature == 0 ? "likeliest" : "drawn", time);
  }
  for (const size_t count : {size_t{1}, requests.size()}) {
    std::vector<DraftResult> results(count);
    const double time = BestTime([&] { return engine.Draft(requests.first(count), results); });
    std::printf("| drafts of %zu sequences | %.0f us | | | | |\n", count, time);
  }
}

// The whole model with random weights: every layer's real dimensions, as many routed experts as
// fit beside the rest, Engram tables of fewer rows.
void BenchModel(double read_gb_per_s) {
  ModelConfig config = Must(ModelConfig::Preset("v4.1-flash"));
  config.routed_experts = 128;
  config.engram_vocab_size = 16'000;
  for (uint32_t e = 0; e < config.engram_rows.size(); ++e) {
    config.engram_rows[e] = EngramHash::TableRows(config, e);
  }
  const ModelGeometry geometry = Must(ModelGeometry::For(config));
  std::vector<uint32_t> map(config.vocab_size);
  for (uint32_t i = 0; i < map.size(); ++i) map[i] = i % config.engram_compressed_vocab;
  constexpr uint32_t kRowsMax = 4096;
  const auto engine = Must(CudaEngine::MakeRandom(geometry, map, {.rows_max = kRowsMax}));
  std::printf("| model: weights %.1f GB, activations %.1f GB, %u routed experts | | | | | |\n",
              static_cast<double>(engine->weight_bytes()) / 1e9,
              static_cast<double>(engine->workspace_bytes()) / 1e9, config.routed_experts);

  // One sequence of 1M tokens whose records and windows are random codes.
  constexpr uint32_t kTokens = 1 << 20;
  const uint64_t payload = geometry.record.payload_bytes;
  const uint32_t blocks = kTokens / 128;
  HbmPool pool = Must(HbmPool::Create(payload, blocks, engine->stream().get()));
  std::vector<std::byte*> list;
  for (uint32_t b = 0; b < blocks; ++b) {
    std::byte* const block = pool.data(Must(pool.Take()));
    list.push_back(block);
    for (const SourcePlanes& planes : geometry.record.sources) {
      const uint32_t seed = b * 8 + planes.layer;
      FillRandom(block + planes.main_codes, planes.rows * 256, seed, 255, nullptr);
      FillBytes(block + planes.main_scales, planes.rows * 32, seed + 1, 0x30, 0x38, nullptr);
      FillRandom(block + planes.indexer_codes, planes.rows * 64, seed + 2, 255, nullptr);
      FillBytes(block + planes.indexer_scales, planes.rows * 4, seed + 3, 125, 127, nullptr);
    }
  }
  constexpr uint32_t kSequences = 16;
  const LiveWindowLayout& layout = engine->window_layout();
  const DeviceMemory windows = Must(DeviceMemory::Allocate(kSequences * layout.bytes));
  FillBytes(windows.data(), windows.bytes(), 77, 110, 117, nullptr);
  Must(CudaStatus(cudaDeviceSynchronize(), "bench"));
  std::vector<TokenId> tokens(kTokens);
  Prng prng(6);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.Below(config.vocab_size));
  std::vector<float> logits(config.vocab_size);
  const auto memory = [&](uint32_t sequence, uint32_t length) {
    return SequenceMemory{.blocks = std::span<std::byte* const>(list).first((length + 127) / 128),
                          .window = windows.data() + sequence * layout.bytes};
  };
  // Host seconds of a call, which blocks: the best of several. One more is shown to a profiler that
  // waits for it (ncu --profile-from-start off).
  const auto time = [&](std::span<const Segment> batch, std::span<float> out, int turns) {
    double best = 1e9;
    for (int i = 0; i < turns; ++i) {
      const Instant begin = SystemClock().Now();
      Must(engine->Forward(batch, out));
      best = std::min(best, static_cast<double>(SystemClock().Now() - begin) / 1e9);
    }
    if (turns == 1) return best;
    RP_CHECK(cudaProfilerStart() == cudaSuccess);
    Must(engine->Forward(batch, out));
    RP_CHECK(cudaProfilerStop() == cudaSuccess);
    return best;
  };
  // A step of decode: the last of so many rows.
  const auto last_of = [&](uint32_t length) {
    return Segment{.memory = memory(0, length),
                   .tokens = std::span(tokens).first(length),
                   .first = length - 1,
                   .write_from = length - 1,
                   .encoder_from = length - 128,
                   .decoder_first = length - 1,
                   .decoder_from = length - 128,
                   .logits_from = length - 1};
  };
  double short_step = 0;
  for (const uint32_t length : {1u << 12, 1u << 17, 1u << 20}) {
    const Segment segment = last_of(length);
    const double seconds = time({&segment, 1}, logits, 8);
    if (short_step == 0) short_step = seconds;
    std::printf("| decode, one sequence at %u | %.0f us | %.2f of the first | | | at most 1.35 |\n",
                length, seconds * 1e6, seconds / short_step);
  }
  // Of steps, mostly the token alone is wanted, drawn where the logits are.
  std::vector<DraftRequest> requests;
  for (uint32_t s = 0; s < kSequences; ++s) {
    requests.push_back({.memory = memory(s, 1 << 12), .length = 4000, .token = tokens[s]});
  }
  BenchChoices(*engine, last_of(1 << 12), requests);

  // Replays: 128 rows through the encoder, alone and sixteen at once.
  const uint32_t length = 1 << 17;
  std::vector<Segment> replays;
  for (uint32_t s = 0; s < kSequences; ++s) {
    replays.push_back({.memory = memory(s, length),
                       .tokens = std::span(tokens).first(length),
                       .first = length - 128,
                       .write_from = length,
                       .encoder_from = length - 128,
                       .decoder_first = length,
                       .decoder_from = length,
                       .logits_from = length});
  }
  const double replay = time({replays.data(), 1}, {}, 5), batched = time(replays, {}, 3);
  double layer_bytes = 0;
  layer_bytes += 126.6e6 + 2 * 2 * 24 * 4.0 * 5120 * 4 + 35.4e6;
  layer_bytes += config.routed_experts * 18'800'640.0;
  const double floor = 20 * layer_bytes / read_gb_per_s / 1e9;
  std::printf(
      "| encoder replay of 128 rows | %.0f us | %.2f of the byte floor, %.0f us | | | at most "
      "1.5 |\n",
      replay * 1e6, replay / floor, floor * 1e6);
  std::printf("| sixteen of them | %.0f us | %.2f of one | | | at most 2.5 |\n", batched * 1e6,
              batched / replay);

  // Resuming 128K tokens from DRAM: records loaded, both replays of their end, against prefill.
  const PinnedMemory host = Must(PinnedMemory::Allocate(1024 * payload));
  std::memset(host.data(), 0x11, host.bytes());
  std::vector<SlotCopy> copies;
  for (uint32_t b = 0; b < 1024; ++b)
    copies.push_back({.slot = b, .host = host.data() + b * payload});
  Segment both = replays[0];
  both.decoder_first = both.decoder_from = length - 128;
  both.write_from = length - 1;
  both.logits_from = length - 1;
  std::vector<uint32_t> slots(1024);
  for (uint32_t b = 0; b < 1024; ++b) slots[b] = b;
  double resume = 1e9;
  for (int i = 0; i < 3; ++i) {
    const Instant begin = SystemClock().Now();
    Must(pool.Load(copies).status());
    Must(pool.BeginStep(slots, {}));
    Must(engine->Forward({&both, 1}, logits));
    Must(pool.EndStep(slots, {}).status());
    resume = std::min(resume, static_cast<double>(SystemClock().Now() - begin) / 1e9);
  }
  double prefill = 0, last_piece = 0;
  for (uint32_t at = 0; at < length; at += kRowsMax) {
    const bool last = at + kRowsMax == length;
    const Segment piece{.memory = memory(0, at + kRowsMax),
                        .tokens = std::span(tokens).first(at + kRowsMax),
                        .first = at,
                        .write_from = at,
                        .encoder_from = at < 128 ? 0 : at - 128,
                        .decoder_first = last ? length - 128 : at + kRowsMax,
                        .decoder_from = last ? length - 128 : at + kRowsMax,
                        .logits_from = last ? length - 1 : at + kRowsMax};
    last_piece = time({&piece, 1}, last ? std::span<float>(logits) : std::span<float>(), 1);
    prefill += last_piece;
  }
  std::printf(
      "| prefill of 128K tokens in pieces of 4,096 | %.0f us | %.0f tokens/s; the last piece "
      "%.0f us | | | |\n",
      prefill * 1e6, length / prefill, last_piece * 1e6);
  std::printf(
      "| resuming 128K tokens from DRAM with both replays | %.0f us | 1/%.0f of the prefill | | "
      "| 1/100 |\n",
      resume * 1e6, prefill / resume);
}

}  // namespace reprise::engine::cuda::bench
