// Kernels at the shapes of V4.1-Flash, each beside the ceiling that binds it, which is measured in
// the same run. Prints one table; tests/device/run takes it to a GPU machine.
//
//     cuda_bench             all
//     cuda_bench experts     the sections whose names begin so
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/cuda/hbm_pool.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear.h"
#include "gpu/cuda/random_fill.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/bench_experts.h"
#include "tests/gpu/cuda/bench_kernels.h"
#include "tests/gpu/cuda/bench_model.h"
#include "tests/gpu/cuda/bench_sampling.h"
#include "tests/gpu/cuda/bench_small.h"
#include "tests/gpu/cuda/bench_table.h"
#include "tests/gpu/cuda/bench_weights.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {
namespace {

using test::Must;

constexpr uint32_t kHidden = 5120, kHeads = 64, kDim = 512, kTopk = 512;

class Bench {
 public:
  explicit Bench(std::string only) : only_(std::move(only)), facts_(Must(UseDevice())) {
    stream_ = Must(Stream::Create());
    std::printf(
        "%s, %d multiprocessors\n\n| measure | time | reached | ceiling | share | at least |\n"
        "|---|---|---|---|---|---|\n",
        facts_.name.c_str(), facts_.multiprocessors);
  }
  void Run() {
    Ceilings();
    if (Wanted("copies")) Copies();
    if (Wanted("experts")) BenchExperts(read_, bf16_);
    if (Wanted("linears")) Linears();
    if (Wanted("indexer")) Indexer();
    if (Wanted("attention")) Attention();
    if (Wanted("kernels")) BenchSmallKernels(read_, bf16_);
    if (Wanted("sampling")) BenchSampling(read_);
    if (Wanted("model")) BenchModel(read_);
    if (Wanted("sharded")) BenchSharded();
  }

 private:
  bool Wanted(const std::string& section) const { return section.starts_with(only_); }

  void Ceilings() {
    const uint64_t bytes = 4ull << 30;
    const DeviceMemory a = Must(DeviceMemory::Allocate(bytes)),
                       b = Must(DeviceMemory::Allocate(bytes));
    FillRandom(a.data(), bytes, 1, 255, stream_.get());
    const DeviceMemory sink = Must(DeviceMemory::Allocate(4));
    const double read = Seconds(
        stream_.get(), [&](int) { ReadAll(a.data(), bytes, sink.as<uint32_t>(), stream_.get()); });
    read_ = static_cast<double>(bytes) / read / 1e9;
    const double copy = Seconds(stream_.get(), [&](int) {
      Check(cudaMemcpyAsync(b.data(), a.data(), bytes, cudaMemcpyDeviceToDevice, stream_.get()));
    });
    std::printf("| HBM: reading 4 GiB | %.1f us | %.0f GB/s | | | |\n", read * 1e6, read_);
    std::printf("| HBM: copying 4 GiB, read and written | %.1f us | %.0f GB/s | | | |\n",
                copy * 1e6, 2.0 * static_cast<double>(bytes) / copy / 1e9);
    MatrixCeiling(a, b);
  }

  // cuBLAS as the machine has it; without, the datasheet's figure, and it says so.
  void MatrixCeiling(const DeviceMemory& a, const DeviceMemory& b) {
    bf16_ = 989;
    void* library = dlopen("libcublas.so.13", RTLD_NOW);
    if (library == nullptr) library = dlopen("/usr/local/cuda/lib64/libcublas.so.13", RTLD_NOW);
    const char* error = dlerror();
    if (library == nullptr) {
      std::printf("| bf16 products | | 989 TFLOP/s by the datasheet: %s | | | |\n", error);
      return;
    }
    using Create = int (*)(void**);
    using SetStream = int (*)(void*, cudaStream_t);
    using Gemm = int (*)(void*, int, int, int, int, int, const void*, const void*, int, int,
                         const void*, int, int, const void*, void*, int, int, int, int);
    const auto create = reinterpret_cast<Create>(dlsym(library, "cublasCreate_v2"));
    const auto set_stream = reinterpret_cast<SetStream>(dlsym(library, "cublasSetStream_v2"));
    const auto gemm = reinterpret_cast<Gemm>(dlsym(library, "cublasGemmEx"));
    constexpr int kSize = 8192, kBf16Type = 14, kCompute32F = 68, kTranspose = 1;
    void* handle = nullptr;
    if (create == nullptr || gemm == nullptr || create(&handle) != 0) return;
    set_stream(handle, stream_.get());
    FillBf16(a.data(), 2ull * kSize * kSize, 3, 1, stream_.get());
    std::byte* const second = a.data() + 2ull * kSize * kSize;
    const float one = 1, zero = 0;
    int status = 0;
    const double seconds = Seconds(stream_.get(), [&](int) {
      status = gemm(handle, kTranspose, 0, kSize, kSize, kSize, &one, a.data(), kBf16Type, kSize,
                    second, kBf16Type, kSize, &zero, b.data(), kBf16Type, kSize, kCompute32F, -1);
    });
    if (status != 0) {
      std::printf("| bf16 products | | cuBLAS says %d: 989 TFLOP/s by the datasheet | | | |\n",
                  status);
      return;
    }
    bf16_ = 2.0 * kSize * kSize * kSize / seconds / 1e12;
    std::printf("| bf16 products: cuBLAS, 8192 cubed | %.1f us | %.0f TFLOP/s | | | |\n",
                seconds * 1e6, bf16_);
  }

  void Copies() {
    constexpr uint64_t kRecord = 114'688;
    constexpr uint32_t kRecords = 1024;
    HbmPool pool = Must(HbmPool::Create(kRecord, kRecords, stream_.get()));
    const PinnedMemory host = Must(PinnedMemory::Allocate(4 * kRecords * kRecord));
    std::memset(host.data(), 1, host.bytes());
    const DeviceMemory plain = Must(DeviceMemory::Allocate(kRecords * kRecord));
    std::vector<uint32_t> order(4 * kRecords);
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    Prng prng(3);
    for (uint32_t i = static_cast<uint32_t>(order.size()); i > 1; --i) {
      std::swap(order[i - 1], order[prng.Below(i)]);
    }
    std::vector<SlotCopy> copies;
    for (uint32_t i = 0; i < kRecords; ++i) {
      copies.push_back({.slot = Must(pool.Take()), .host = host.data() + order[i] * kRecord});
    }
    const uint64_t bytes = kRecords * kRecord;
    for (const bool load : {true, false}) {
      const cudaStream_t stream = load ? pool.loads().stream() : pool.stores().stream();
      const double one = Seconds(stream, [&](int) {
        Check(cudaMemcpyAsync(load ? plain.data() : host.data(), load ? host.data() : plain.data(),
                              bytes, load ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                              stream));
      });
      const double batched = Seconds(
          stream, [&](int) { Must((load ? pool.Load(copies) : pool.Store(copies)).status()); });
      Row(load ? "1,024 scattered records into HBM" : "1,024 records out of HBM", batched,
          static_cast<double>(bytes) / batched / 1e9, static_cast<double>(bytes) / one / 1e9,
          "GB/s", load ? 95 : 0);
    }
  }

  void Linears() {
    const struct {
      const char* name;
      WeightFormat format;
      uint32_t outputs, inputs;
      uint32_t blocks = 1;  // Block-diagonal; then through quantiser A, as wo_a is.
    } shapes[] = {{"wq_b, FP8", WeightFormat::kFp8, kHeads * kDim, 1280},
                  {"wo_a, FP8", WeightFormat::kFp8, 8192, 4096, 8},
                  {"wo_b, FP8", WeightFormat::kFp8, kHidden, 8192},
                  {"wq_a and wkv, FP8", WeightFormat::kFp8, 1280 + kDim, kHidden},
                  {"gate of 384, BF16", WeightFormat::kBf16, 384, kHidden},
                  {"head, BF16", WeightFormat::kBf16, 129'280, kHidden}};
    for (const auto& shape : shapes) {
      // Enough copies that no run finds its weights in L2.
      const uint64_t bytes =
          uint64_t{shape.outputs} * shape.inputs * 2 >> static_cast<int>(shape.format);
      const uint32_t copies = static_cast<uint32_t>(std::max<uint64_t>(1, (256ull << 20) / bytes));
      const BenchWeights weights(shape.format, shape.outputs, shape.inputs, copies, false,
                                 stream_.get());
      for (const uint32_t rows : {1u, 64u, 128u, 4096u}) {
        if (rows > 128 && shape.outputs > 100'000) continue;
        const uint64_t x_stride = uint64_t{shape.inputs} * shape.blocks;
        const DeviceMemory x = Must(DeviceMemory::Allocate(rows * x_stride * 2));
        const DeviceMemory y = Must(DeviceMemory::Allocate(uint64_t{rows} * shape.outputs * 2));
        FillBf16(x.data(), rows * x_stride, 5, 1, stream_.get());
        uint32_t turn = 0;
        const auto launch = [&] {
          LinearCall call{.matrix = weights.view,
                          .x = x.data(),
                          .x_stride = x_stride,
                          .y = y.data(),
                          .y_stride = shape.outputs,
                          .rows = rows};
          if (shape.blocks > 1) {
            call.output = LinearOutput::kRounded;
            call.block_outputs = shape.outputs / shape.blocks;
            call.block_inputs = shape.inputs;
          }
          const uint64_t copy = turn++ % copies;
          const uint64_t tiles = copy * weights.view.output_tiles * weights.view.input_tiles;
          call.matrix.codes = weights.codes.data() + tiles * TileBytes(shape.format);
          call.matrix.scales = weights.scales.data() + tiles * TileScaleBytes(shape.format);
          Check(LaunchLinear(call, stream_.get()));
        };
        const double flops = 2.0 * rows * shape.outputs * shape.inputs;
        const auto print = [&](const std::string& name, double seconds) {
          if (rows <= 128) {
            Row(name, seconds, static_cast<double>(bytes) / seconds / 1e9, read_, "GB/s", 0);
          }
          if (rows >= 128) {
            Row(name, seconds, flops / seconds / 1e12, bf16_, "TFLOP/s", rows > 128 ? 55 : 0);
          }
        };
        const std::string name = std::string(shape.name) + ", " + std::to_string(rows) + " rows";
        print(name, Seconds(stream_.get(), [&](int) { launch(); }));
        if (rows > 128) continue;
        // One behind the other, each begins before the last one ends.
        constexpr int kInARow = 8;
        print(name + ", of eight in a row", Seconds(stream_.get(), [&](int) {
                                              for (int i = 0; i < kInARow; ++i) launch();
                                            }) / kInARow);
      }
    }
  }

  // Blocks of V4.1's decoder source alone: 128 entries each, random codes.
  struct Blocks {
    DeviceMemory payloads, window;
    std::vector<std::byte*> list;
    EntryView view;
  };
  Blocks RandomBlocks(uint64_t tokens) {
    Blocks blocks;
    const uint64_t payload = 128 * 356;
    const uint64_t count = (tokens + 127) / 128;
    blocks.payloads = Must(DeviceMemory::Allocate(count * payload));
    FillRandom(blocks.payloads.data(), blocks.payloads.bytes(), 9, 255, stream_.get());
    blocks.view = {.block_shift = 7,
                   .main_codes = 0,
                   .main_scales = 128 * 256,
                   .index_codes = 128 * 288,
                   .index_scales = 128 * 352,
                   .main_code_bytes = 256,
                   .main_scale_bytes = 32,
                   .index_code_bytes = 64,
                   .index_scale_bytes = 4};
    for (uint64_t b = 0; b < count; ++b) {
      std::byte* const block = blocks.payloads.data() + b * payload;
      blocks.list.push_back(block);
      FillBytes(block + blocks.view.main_scales, 128 * 32, 10, 0x28, 0x38, stream_.get());
      FillBytes(block + blocks.view.index_scales, 128 * 4, 11, 124, 127, stream_.get());
    }
    return blocks;
  }

  void Indexer() {
    const uint64_t tokens = 1 << 20;
    const Blocks blocks = RandomBlocks(tokens);
    const test::OnDevice<std::byte*> list(blocks.list);
    for (const uint32_t rows : {1u, 6u, 64u}) {
      std::vector<uint32_t> positions(rows), part_of_row(rows, 0);
      for (uint32_t i = 0; i < rows; ++i) positions[i] = static_cast<uint32_t>(tokens - rows + i);
      const test::OnDevice<uint32_t> device_positions(positions), device_parts(part_of_row);
      const test::OnDevice<DevicePart> part(std::vector<DevicePart>{{.rows = rows}});
      StepView step{.rows = rows,
                    .parts = 1,
                    .part = part.data(),
                    .part_of_row = device_parts.data(),
                    .positions = device_positions.data(),
                    .blocks = list.data()};
      const DeviceMemory queries = Must(DeviceMemory::Allocate(rows * 32 * 128 * 2));
      const DeviceMemory weights = Must(DeviceMemory::Allocate(rows * 32 * 2));
      const DeviceMemory scores = Must(DeviceMemory::Allocate(rows * tokens * 4));
      const DeviceMemory selected = Must(DeviceMemory::Allocate(rows * kTopk * 4));
      const DeviceMemory room = Must(DeviceMemory::Allocate(SelectRoomBytes()));
      FillBf16(queries.data(), rows * 32 * 128, 3, 2, stream_.get());
      FillBf16(weights.data(), rows * 32, 4, 1, stream_.get());
      Check(LaunchIndexQueries(step, queries.as<Bf16Bits>(), 32, 128, stream_.get()));
      const ScoreCall call{.step = step,
                           .entries = blocks.view,
                           .ratio = 1,
                           .rows = rows,
                           .one_part = true,
                           .queries = queries.as<Bf16Bits>(),
                           .weights = weights.as<Bf16Bits>(),
                           .factor = 1.0f / 64,
                           .heads = 32,
                           .dim = 128,
                           .scores = scores.as<float>(),
                           .stride = tokens};
      const double seconds = Seconds(stream_.get(), [&](int) {
        Check(LaunchScores(call, static_cast<uint32_t>(tokens), stream_.get()));
      });
      const std::string name = "indexer, 1M keys, " + std::to_string(rows) + " rows";
      // Keys are read once for four rows; scores are written.
      const double passes = rows < 4 ? rows : (rows + 3) / 4;
      const double bytes = static_cast<double>(tokens) * (68 * passes + 4.0 * rows);
      const double by_bytes = bytes / read_ / 1e9;
      const double by_products = 2.0 * static_cast<double>(tokens) * rows * 32 * 128 / bf16_ / 1e12;
      if (by_bytes > by_products) {
        Row(name, seconds, bytes / seconds / 1e9, read_, "GB/s", 70);
      } else {
        Row(name, seconds, 2.0 * static_cast<double>(tokens) * rows * 32 * 128 / seconds / 1e12,
            bf16_, "TFLOP/s", 70);
      }
      const double select = Seconds(stream_.get(), [&](int) {
        Check(LaunchSelect({.step = step,
                            .ratio = 1,
                            .rows = rows,
                            .scores = scores.as<float>(),
                            .stride = tokens,
                            .topk = kTopk,
                            .selected = selected.as<int32_t>(),
                            .room = room.data(),
                            .entries_max = static_cast<uint32_t>(tokens)},
                           stream_.get()));
      });
      Row("selection of 512 of 1M, " + std::to_string(rows) + " rows", select,
          static_cast<double>(tokens) * rows * 4 / select / 1e9, read_, "GB/s", 0);
    }
  }

  void Attention() {
    const uint64_t tokens = 1 << 17;
    const Blocks blocks = RandomBlocks(tokens);
    const test::OnDevice<std::byte*> list(blocks.list);
    const WindowView windows{
        .window = 128, .ring_rows = 144, .code_bytes = kDim, .scale_bytes = kDim / 32};
    for (const uint32_t rows : {1u, 64u, 256u}) {
      const uint64_t window_bytes = 144 * 528;
      const DeviceMemory window = Must(DeviceMemory::Allocate(rows * window_bytes));
      FillRandom(window.data(), window.bytes(), 12, 0x7e, stream_.get());
      std::vector<DevicePart> parts(rows);
      std::vector<uint32_t> positions(rows), part_of_row(rows);
      std::vector<int32_t> selections(rows * kTopk);
      Prng prng(5);
      for (uint32_t r = 0; r < rows; ++r) {
        std::byte* const state = window.data() + r * window_bytes;
        FillBytes(state + 144 * kDim, 144 * 16, 13, 115, 119, stream_.get());
        positions[r] = static_cast<uint32_t>(tokens - 1);
        parts[r] = {.window = state, .row = r, .rows = 1, .first = positions[r]};
        part_of_row[r] = r;
        for (uint32_t i = 0; i < kTopk; ++i) {
          selections[r * kTopk + i] =
              static_cast<int32_t>(i * (tokens / kTopk) + prng.Below(tokens / kTopk));
        }
      }
      const test::OnDevice<DevicePart> device_parts(parts);
      const test::OnDevice<uint32_t> device_positions(positions), device_rows(part_of_row);
      const test::OnDevice<int32_t> selected(selections);
      const test::OnDevice<float> cosines(std::vector<float>(rows * 32, 0.6f)),
          sines(std::vector<float>(rows * 32, 0.8f));
      const DeviceMemory query = Must(DeviceMemory::Allocate(uint64_t{rows} * kHeads * kDim * 2));
      const DeviceMemory out = Must(DeviceMemory::Allocate(uint64_t{rows} * kHeads * kDim * 2));
      FillBf16(query.data(), uint64_t{rows} * kHeads * kDim, 14, 1, stream_.get());
      const DeviceMemory codes = Must(DeviceMemory::Allocate(rows * kDim)),
                         scales = Must(DeviceMemory::Allocate(rows * 16));
      FillRandom(codes.data(), codes.bytes(), 15, 0x7e, stream_.get());
      FillBytes(scales.data(), scales.bytes(), 16, 115, 119, stream_.get());
      const test::OnDevice<float> sinks(std::vector<float>(kHeads, 0.0f));
      const DeviceMemory room = Must(DeviceMemory::Allocate(kAttentionRoomBytes));
      AttentionCall call{.windows = windows,
                         .entries = blocks.view,
                         .query = query.as<Bf16Bits>(),
                         .kv_codes = codes.as<uint8_t>(),
                         .kv_scales = scales.as<uint8_t>(),
                         .selected = selected.data(),
                         .topk = kTopk,
                         .sinks = sinks.data(),
                         .heads = kHeads,
                         .dim = kDim,
                         .scale = 0.0441941738f,
                         .out = out.as<Bf16Bits>(),
                         .room = room.data()};
      call.step = {.rows = rows,
                   .parts = rows,
                   .part = device_parts.data(),
                   .part_of_row = device_rows.data(),
                   .positions = device_positions.data(),
                   .blocks = list.data(),
                   .cosines = {cosines.data(), cosines.data()},
                   .sines = {sines.data(), sines.data()},
                   .pairs = 32};
      const double seconds =
          Seconds(stream_.get(), [&](int) { Check(LaunchAttention(call, stream_.get())); });
      const double flops = 4.0 * rows * kHeads * kDim * (kTopk + 128);
      Row("sparse attention, decode, " + std::to_string(rows) + " sequences at 128K", seconds,
          flops / seconds / 1e12, bf16_, "TFLOP/s", rows == 64 ? 60 : 0);
    }
  }

  std::string only_;
  DeviceFacts facts_;
  Stream stream_;
  double read_ = 0, bf16_ = 0;  // GB/s, TFLOP/s
};

}  // namespace
}  // namespace reprise::engine::cuda::bench

int main(int argc, char** argv) {
  const absl::Status device = reprise::engine::cuda::UseDevice().status();
  if (!device.ok()) {
    std::printf("cuda_bench: skipped: %s\n", reprise::Message(device).c_str());
    return 0;
  }
  reprise::engine::cuda::bench::Bench(argc > 1 ? argv[1] : "").Run();
  return 0;
}
