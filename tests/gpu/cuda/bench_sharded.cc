// One model on all GPUs of the machine: steps of V4.1-Flash with random weights, and what the ranks
// exchange.
#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "client/engine/sequence_memory.h"
#include "gpu/cuda/sharded_engine.h"
#include "gpu/tokenizer/engram_hash.h"
#include "protocol/base/clock.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/bench_model.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {
namespace {

using test::Must;

constexpr uint32_t kRowsMax = 4096, kSequences = 16, kLength = 1 << 17;

// Microseconds of a call on every rank's stream, many in a row; of the slowest rank.
template <typename Call>
double TimeOnRanks(const std::vector<int>& devices, const Call& call) {
  constexpr int kTurns = 50;
  std::vector<double> times(devices.size());
  StepGate gate(static_cast<uint32_t>(devices.size()));
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < devices.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Must(UseDevice(devices[rank]).status());
      const Stream stream = Must(Stream::Create());
      const Event begin = Must(Event::Create(true)), end = Must(Event::Create(true));
      Must(gate.Meet(absl::OkStatus()));
      for (int i = 0; i < 5; ++i) Must(call(rank, stream.get()));
      Must(CudaStatus(cudaEventRecord(begin.get(), stream.get()), "bench"));
      for (int i = 0; i < kTurns; ++i) Must(call(rank, stream.get()));
      Must(CudaStatus(cudaEventRecord(end.get(), stream.get()), "bench"));
      Must(stream.Wait());
      float ms = 0;
      Must(CudaStatus(cudaEventElapsedTime(&ms, begin.get(), end.get()), "bench"));
      times[rank] = ms * 1e3 / kTurns;
      Must(gate.Meet(absl::OkStatus()));  // What it frees, it frees when all are done.
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(times.begin(), times.end());
}

void BenchSums(const std::vector<int>& devices, uint32_t hidden) {
  const auto communicators = Must(Communicator::Connect(devices));
  const uint64_t ranks = devices.size();
  std::vector<DeviceMemory> from, to;
  for (const int device : devices) {
    Must(UseDevice(device).status());
    from.push_back(Must(DeviceMemory::Allocate((kRowsMax + ranks) * hidden * 4)));
    to.push_back(Must(DeviceMemory::Allocate(ranks * (kRowsMax + ranks) * hidden * 4)));
  }
  for (const uint32_t rows : {1u, 16u, 128u, 512u, 4096u}) {
    const uint64_t part = uint64_t{rows} * hidden * 4, share = (rows + ranks - 1) / ranks * hidden;
    const double gathered = TimeOnRanks(devices, [&](uint32_t rank, cudaStream_t stream) {
      return communicators[rank]->AllGather(to[rank].data() + rank * part, to[rank].data(), part,
                                            stream);
    });
    const double shared =
        TimeOnRanks(devices, [&](uint32_t rank, cudaStream_t stream) -> absl::Status {
          RP_TRY(
              communicators[rank]->Exchange(from[rank].data(), to[rank].data(), share * 4, stream));
          RP_CUDA_TRY(LaunchSumParts(to[rank].as<float>(), static_cast<uint32_t>(ranks), share,
                                     from[rank].as<Bf16Bits>() + rank * share, stream));
          return communicators[rank]->AllGather(from[rank].as<Bf16Bits>() + rank * share,
                                                from[rank].data(), share * 2, stream);
        });
    std::printf("| sum over %zu GPUs of %u rows | %.1f us gathered | %.1f us by shares | | | |\n",
                devices.size(), rows, gathered, shared);
  }
}

// As many routed experts, up to V4.1's 384, as fit beside the rest on every GPU.
uint32_t ExpertsThatFit(const ModelConfig& config, uint64_t free_bytes, uint32_t ranks) {
  constexpr uint64_t kRest = uint64_t{30} << 30;  // Other weights, activations, sequences.
  const uint64_t expert = uint64_t{3} * config.expert_dim * config.hidden_size * 17 / 32;
  const uint64_t of_layer =
      (free_bytes - std::min(free_bytes, kRest)) / expert / config.layer_count;
  const uint64_t all = of_layer * ranks / 32 * 32;
  return static_cast<uint32_t>(std::clamp<uint64_t>(all, 32, config.routed_experts));
}

// Random codes for every block and window, on every GPU.
void FillSequences(const ShardedCudaEngine& engine,
                   const std::vector<reprise::bench::SequenceBuffers>& sequences) {
  const RecordLayout& record = engine.geometry().record;
  Prng prng(9);
  std::vector<std::byte> block(record.payload_bytes), window(engine.window_layout().bytes);
  const auto fill = [&](uint32_t at, uint32_t bytes, uint32_t low, uint32_t high) {
    for (uint32_t i = 0; i < bytes; ++i) {
      block[at + i] = static_cast<std::byte>(low + prng.Below(high - low + 1));
    }
  };
  for (const SourcePlanes& planes : record.sources) {
    fill(planes.main_codes, planes.rows * 256, 0, 255);
    fill(planes.main_scales, planes.rows * 32, 0x30, 0x38);
    fill(planes.indexer_codes, planes.rows * 64, 0, 255);
    fill(planes.indexer_scales, planes.rows * 4, 125, 127);
  }
  for (std::byte& one : window) one = static_cast<std::byte>(110 + prng.Below(8));
  std::vector<MemoryCopy> copies;
  for (const auto& sequence : sequences) {
    const SequenceMemory memory = sequence.lent();
    for (std::byte* to : memory.blocks) copies.push_back({to, block.data(), block.size()});
    copies.push_back({memory.window, window.data(), window.size()});
  }
  Must(engine.memory().Copy(copies));
}

}  // namespace

void BenchSharded() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) {
    std::printf("| sharded: skipped, the machine has fewer than two GPUs | | | | | |\n");
    return;
  }
  std::vector<int> devices(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) devices[static_cast<size_t>(i)] = i;
  const auto ranks = static_cast<uint32_t>(devices.size());
  ModelConfig config = Must(ModelConfig::Preset("v4.1-flash"));
  uint64_t least = UINT64_MAX;
  for (const int device : devices) least = std::min(least, Must(UseDevice(device)).free_bytes);
  config.routed_experts = ExpertsThatFit(config, least, ranks);
  config.engram_vocab_size = 16'000;
  for (uint32_t e = 0; e < config.engram_rows.size(); ++e) {
    config.engram_rows[e] = EngramHash::TableRows(config, e);
  }
  const ModelGeometry geometry = Must(ModelGeometry::For(config));
  std::vector<uint32_t> map(config.vocab_size);
  for (uint32_t i = 0; i < map.size(); ++i) map[i] = i % config.engram_compressed_vocab;
  const auto made =
      ShardedCudaEngine::MakeRandom(geometry, map, {.devices = devices, .rows_max = kRowsMax});
  if (!made.ok()) {
    std::printf("| sharded: %s | | | | | |\n", Message(made.status()).c_str());
    return;
  }
  ShardedCudaEngine& engine = **made;
  std::printf(
      "| %u GPUs, %u routed experts: of each, weights %.1f GB, activations %.1f GB | | | | | "
      "|\n",
      ranks, config.routed_experts, static_cast<double>(engine.rank(0).weight_bytes()) / 1e9,
      static_cast<double>(engine.rank(0).workspace_bytes()) / 1e9);

  std::vector<reprise::bench::SequenceBuffers> sequences;
  for (uint32_t s = 0; s < kSequences; ++s) {
    sequences.push_back(Must(reprise::bench::SequenceBuffers::Make(engine, kLength)));
  }
  FillSequences(engine, sequences);
  std::vector<TokenId> tokens(kLength);
  Prng prng(6);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.Below(config.vocab_size));
  // Host microseconds of a call, which blocks: the best of several.
  const auto time = [&](std::span<const Segment> batch, std::span<float> out, int turns) {
    double best = 1e12;
    for (int i = 0; i < turns; ++i) {
      const Instant begin = SystemClock().Now();
      Must(engine.Forward(batch, out));
      best = std::min(best, static_cast<double>(SystemClock().Now() - begin) / 1e3);
    }
    return best;
  };
  const auto rows = [&](uint32_t sequence, uint32_t length, uint32_t first, uint32_t write_from,
                        uint32_t decoder_first) {
    const SequenceMemory memory = sequences[sequence].lent();
    return Segment{
        .memory = {.blocks = memory.blocks.first((length + 127) / 128), .window = memory.window},
        .tokens = std::span(tokens).first(length),
        .first = first,
        .write_from = write_from,
        .encoder_from = first < 128 ? 0 : first - (write_from == length ? 0 : 128),
        .decoder_first = decoder_first,
        .decoder_from = decoder_first == length ? length : decoder_first - 128,
        .logits_from = decoder_first};
  };
  std::vector<float> logits(kSequences * config.vocab_size);
  const auto one = std::span(logits).first(config.vocab_size);
  for (const uint32_t length : {1u << 12, kLength}) {
    const Segment segment = rows(0, length, length - 1, length - 1, length - 1);
    std::printf("| decode, one sequence at %u | %.0f us | | | | |\n", length,
                time({&segment, 1}, one, 8));
  }
  std::vector<Segment> decodes, replays;
  std::vector<DraftRequest> requests;
  for (uint32_t s = 0; s < kSequences; ++s) {
    requests.push_back({.memory = sequences[s].lent(), .length = kLength - 5, .token = tokens[s]});
    decodes.push_back(rows(s, kLength, kLength - 1, kLength - 1, kLength - 1));
    replays.push_back(rows(s, kLength, kLength - 128, kLength, kLength));
  }
  std::printf("| decode, %u sequences at %u | %.0f us | | | | |\n", kSequences, kLength,
              time(decodes, logits, 8));
  BenchChoices(engine, decodes[0], requests);
  std::printf("| encoder replay of 128 rows | %.0f us | | | | |\n",
              time({replays.data(), 1}, {}, 5));
  std::printf("| sixteen of them | %.0f us | | | | |\n", time(replays, {}, 3));
  const Segment piece = rows(0, kLength, kLength - kRowsMax, kLength - kRowsMax, kLength);
  const double prefill = time({&piece, 1}, {}, 3);
  std::printf("| prefill, 4,096 rows at 128K | %.0f us | %.0f tokens/s | | | |\n", prefill,
              kRowsMax / prefill * 1e6);
  sequences.clear();
  BenchSums(devices, config.hidden_size);
  Must(UseDevice().status());
}

}  // namespace reprise::engine::cuda::bench
