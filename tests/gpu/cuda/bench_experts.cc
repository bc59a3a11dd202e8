#include "tests/gpu/cuda/bench_experts.h"

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/cuda/kernels.h"
#include "gpu/cuda/random_fill.h"
#include "tests/gpu/cuda/bench_table.h"
#include "tests/gpu/cuda/bench_weights.h"
#include "tests/gpu/cuda/device_fixture.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::bench {
namespace {

using test::Must;
using test::OnDevice;
using test::RouteOutputs;

constexpr uint32_t kHidden = 5120, kInner = 2304;
constexpr double kExpertBytes = 18'800'640;

class ExpertsBench {
 public:
  ExpertsBench(double read, double bf16)
      : stream_(Must(Stream::Create())), read_(read), bf16_(bf16) {}

  // Every expert with so many rows.
  void Each() {
    constexpr uint32_t kExperts = 64;
    const BenchWeights up(WeightFormat::kFp4, 2 * kInner, kHidden, kExperts, true, stream_.get());
    const BenchWeights down(WeightFormat::kFp4, kHidden, kInner, kExperts, true, stream_.get());
    for (const uint32_t rows : {1u, 4u, 8u, 16u, 32u, 64u, 128u, 256u, 512u}) {
      const uint32_t slots = kExperts * rows, tile_rows = LinearTileRows(rows);
      std::vector<ExpertTile> list;
      for (uint32_t e = 0; e < kExperts; ++e) {
        const uint32_t step = TileStep(rows, tile_rows);
        for (uint32_t at = 0; at < rows; at += step) {
          list.push_back({e, e * rows + at, std::min(step, rows - at)});
        }
      }
      const auto count = static_cast<uint32_t>(list.size());
      const OnDevice<ExpertTile> tiles(list);
      const OnDevice<uint32_t> tile_count(std::vector<uint32_t>{count});
      const DeviceMemory x = Values(uint64_t{slots} * kHidden);
      const DeviceMemory z = Values(uint64_t{slots} * kInner);
      const DeviceMemory y = Values(uint64_t{slots} * kHidden);
      LinearCall call{.matrix = up.view,
                      .output = LinearOutput::kSwiglu,
                      .x = x.data(),
                      .x_stride = kHidden,
                      .y = z.data(),
                      .y_stride = kInner,
                      .rows = slots,
                      .limit = 10,
                      .tiles = tiles.data(),
                      .tile_count = tile_count.data(),
                      .tiles_max = count};
      const LinearCall second = DownAfter(call, down.view, y);
      const double seconds = Seconds(stream_.get(), [&](int) {
        Check(LaunchLinear(call, tile_rows, stream_.get()));
        Check(LaunchLinear(second, tile_rows, stream_.get()));
      });
      const std::string name = "experts, FP4, " + std::to_string(rows) + " rows each";
      if (rows <= 64) {
        Row(name, seconds, kExperts * kExpertBytes / seconds / 1e9, read_, "GB/s",
            rows <= 16 ? 75 : 0);
      } else {
        Row(name, seconds, 2.0 * slots * 3 * kInner * kHidden / seconds / 1e12, bf16_, "TFLOP/s",
            55);
      }
    }
  }

  // As a layer has it: the router deals rows out, and all meet the shared expert.
  void Layer(const std::string& name, uint32_t rows) {
    constexpr uint32_t kExperts = 128, kChosen = 6;
    const uint32_t slots = rows * kChosen;
    const uint32_t tile_rows = LinearTileRows(2 * slots / kExperts);
    const auto weights = [&](WeightFormat format, uint32_t outputs, uint32_t inputs,
                             uint32_t copies) {
      return BenchWeights(format, outputs, inputs, copies, true, stream_.get());
    };
    const BenchWeights gate(WeightFormat::kBf16, kExperts, kHidden, 1, false, stream_.get());
    const BenchWeights up = weights(WeightFormat::kFp4, 2 * kInner, kHidden, kExperts);
    const BenchWeights down = weights(WeightFormat::kFp4, kHidden, kInner, kExperts);
    const BenchWeights shared_up = weights(WeightFormat::kFp8, 2 * kInner, kHidden, 1);
    const BenchWeights shared_down = weights(WeightFormat::kFp8, kHidden, kInner, 1);
    const DeviceMemory x = Values(uint64_t{rows} * kHidden), z = Values(uint64_t{slots} * kInner);
    const DeviceMemory y = Values(uint64_t{slots} * kHidden),
                       shared_z = Values(uint64_t{rows} * kInner);
    const DeviceMemory shared_y = Values(uint64_t{rows} * kHidden);
    const OnDevice<float> bias(std::vector<float>(kExperts, 0.0f));
    const OnDevice<uint8_t> image(std::vector<uint8_t>(rows, 0));
    const RouteOutputs routes(rows, kExperts, kChosen, tile_rows);
    const LinearCall logits_of{.matrix = gate.view,
                               .output = LinearOutput::kFloat,
                               .x = x.data(),
                               .x_stride = kHidden,
                               .y = routes.logits.data(),
                               .y_stride = kExperts,
                               .rows = rows};
    RouteCall route = routes.Call();
    route.bias = route.image_bias = bias.data();
    route.image = image.data();
    route.scaling = 1.5f;
    const LinearCall first{
        .matrix = up.view,
        .output = LinearOutput::kSwiglu,
        .x = x.data(),
        .x_stride = kHidden,
        .y = z.data(),
        .y_stride = kInner,
        .rows = slots,
        .gather = routes.row_of.data(),
        .limit = 10,
        .row_weights = routes.slot_weights.data(),
        .tiles = routes.tiles.data(),
        .tile_count = routes.tile_count.data(),
        .tiles_max = slots / tile_rows + kExperts,
        .beside = {.matrix = shared_up.view, .x = x.data(), .y = shared_z.data(), .rows = rows}};
    LinearCall second = DownAfter(first, down.view, y);
    second.beside = {
        .matrix = shared_down.view, .x = shared_z.data(), .y = shared_y.data(), .rows = rows};
    constexpr int kLayers = 4;
    const double seconds = Seconds(
        stream_.get(),
        [&](int) {
          Check(LaunchRoute(logits_of, route, stream_.get()));
          Check(LaunchLinear(first, tile_rows, stream_.get()));
          Check(LaunchLinear(second, tile_rows, stream_.get()));
        },
        kLayers);
    const std::vector<uint32_t> chosen = routes.expert_of.Get();
    std::vector<bool> met(kExperts);
    for (const uint32_t expert : chosen) met[expert] = true;
    const double bytes = kExpertBytes * static_cast<double>(std::ranges::count(met, true)) +
                         2 * kExpertBytes + 2.0 * kExperts * kHidden;
    const std::string of_layer = "router and experts of a layer, " + name;
    if (rows <= 512) return Row(of_layer, seconds, bytes / seconds / 1e9, read_, "GB/s", 0);
    const double products = 2.0 * 3 * kInner * kHidden * (slots + rows);
    Row(of_layer, seconds, products / seconds / 1e12, bf16_, "TFLOP/s", 0);
  }

 private:
  DeviceMemory Values(uint64_t count) {
    DeviceMemory memory = Must(DeviceMemory::Allocate(count * 2));
    FillBf16(memory.data(), count, 5, 1, stream_.get());
    return memory;
  }
  static LinearCall DownAfter(const LinearCall& up, const DeviceLinear& matrix,
                              const DeviceMemory& y) {
    return {.matrix = matrix,
            .x = up.y,
            .x_stride = kInner,
            .y = y.data(),
            .y_stride = kHidden,
            .rows = up.rows,
            .tiles = up.tiles,
            .tile_count = up.tile_count,
            .tiles_max = up.tiles_max,
            .planned_before = true};
  }

  Stream stream_;
  double read_, bf16_;
};

}  // namespace

void BenchExperts(double read_gb_per_s, double bf16_tflop_per_s) {
  ExpertsBench bench(read_gb_per_s, bf16_tflop_per_s);
  bench.Each();
  bench.Layer("replay of 128 rows", 128);
  bench.Layer("sixteen replays", 2048);
  bench.Layer("prefill of 4,096 rows", 4096);
}

}  // namespace reprise::engine::cuda::bench
