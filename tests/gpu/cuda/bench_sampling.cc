#include "tests/gpu/cuda/bench_sampling.h"

#include <string>
#include <vector>

#include "gpu/cuda/linear.h"
#include "gpu/cuda/random_fill.h"
#include "gpu/cuda/sampling.h"
#include "gpu/engine/sampler.h"
#include "tests/gpu/cuda/bench_table.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {
namespace {

using test::Must;
using test::OnDevice;

class SamplingBench {
 public:
  explicit SamplingBench(double read)
      : config_(Must(ModelConfig::Preset("v4.1-flash"))), read_(read) {
    stream_ = Must(Stream::Create());
    logits_ = Random(uint64_t{kRowsMax} * config_.vocab_size * 4, true);
  }

  void Run() {
    for (const uint32_t rows : {1u, 64u}) {
      Tokens(rows, "likeliest tokens", {});
      Tokens(rows, "tokens drawn", {.temperature = 1});
      Tokens(rows, "tokens of the nucleus 0.95 drawn", {.temperature = 0.8, .top_p = 0.95});
    }
    for (const uint32_t requests : {1u, 16u}) {
      Drafts(requests, "likeliest", {});
      Drafts(requests, "drawn", {.temperature = 0.8, .top_p = 0.95});
    }
  }

 private:
  static constexpr uint32_t kRowsMax = 80;

  DeviceMemory Random(uint64_t bytes, bool floats) {
    DeviceMemory memory = Must(DeviceMemory::Allocate(bytes));
    if (floats) {
      FillFloat(memory.data(), bytes / 4, 7, 0, 4, stream_.get());
    } else {
      FillBf16(memory.data(), bytes / 2, 8, 1, stream_.get());
    }
    return memory;
  }
  // Of [rows]: rows' draws differ, as those of many sequences do.
  static std::vector<TokenDraw> DrawsOf(uint32_t rows, const SamplingOptions& options) {
    std::vector<TokenDraw> draws;
    for (uint32_t row = 0; row < rows; ++row) draws.push_back(Sampler(options).DrawAt(row));
    return draws;
  }
  void Print(const std::string& name, double bytes, const std::function<cudaError_t()>& launch) {
    const double seconds = Seconds(stream_.get(), [&](int) { Check(launch()); });
    Row(name + ", " + std::to_string(static_cast<uint64_t>(bytes / 1024)) + " KiB", seconds,
        bytes / seconds / 1e9, read_, "GB/s", 0);
  }

  void Tokens(uint32_t rows, const std::string& name, const SamplingOptions& options) {
    const OnDevice<TokenDraw> draws(DrawsOf(rows, options));
    const OnDevice<uint32_t> tokens(rows);
    Print(name + ", " + std::to_string(rows) + " rows", 4.0 * rows * config_.vocab_size, [&] {
      return LaunchChoose({.logits = logits_.as<float>(),
                           .stride = config_.vocab_size,
                           .rows = rows,
                           .vocab = config_.vocab_size,
                           .draws = draws.data(),
                           .tokens = tokens.data()},
                          stream_.get());
    });
  }

  // The sequential part: five products and choices one after the other.
  void Drafts(uint32_t requests, const std::string& name, const SamplingOptions& options) {
    const uint32_t vocab = config_.vocab_size, rank = config_.draft_markov_rank;
    const uint32_t block = config_.draft_block;
    const DeviceMemory head = Random(uint64_t{vocab} * rank * 2, false);
    const DeviceMemory embed = Random(uint64_t{vocab} * rank * 2, false);
    const DeviceMemory corrections = Random(uint64_t{requests} * vocab * 4, true);
    const OnDevice<TokenDraw> draws(DrawsOf(requests * block, options));
    const OnDevice<uint32_t> first(std::vector<uint32_t>(requests, 5)), tokens(requests * block);
    const DeviceLinear markov{.format = WeightFormat::kBf16,
                              .outputs = vocab,
                              .inputs = rank,
                              .output_tiles = vocab / kTileOutputs,
                              .input_tiles = rank / kTileInputs,
                              .codes = head.data()};
    const double bytes = block * (2.0 * vocab * rank + 3.0 * 4 * requests * vocab);
    const auto launch = [&] {
      cudaError_t error = cudaSuccess;
      const uint32_t* previous = first.data();
      for (uint32_t k = 0; k < block && error == cudaSuccess; ++k) {
        error = LaunchLinear({.matrix = markov,
                              .output = LinearOutput::kFloat,
                              .x = embed.data(),
                              .x_stride = rank,
                              .y = corrections.data(),
                              .y_stride = vocab,
                              .rows = requests,
                              .gather = previous},
                             stream_.get());
        if (error != cudaSuccess) return error;
        uint32_t* const chosen = tokens.data() + k * requests;
        error = LaunchChoose({.logits = logits_.as<float>() + uint64_t{k} * vocab,
                              .stride = uint64_t{block} * vocab,
                              .corrections = corrections.as<float>(),
                              .rows = requests,
                              .vocab = vocab,
                              .draws = draws.data() + k * requests,
                              .tokens = chosen},
                             stream_.get());
        previous = chosen;
      }
      return error;
    };
    Print("five drafts one after another, " + name + ", of " + std::to_string(requests), bytes,
          launch);
  }

  ModelConfig config_;
  double read_;  // GB/s
  Stream stream_;
  DeviceMemory logits_;  // [kRowsMax][vocab]
};

}  // namespace

void BenchSampling(double read_gb_per_s) { SamplingBench(read_gb_per_s).Run(); }

}  // namespace reprise::engine::cuda::bench
