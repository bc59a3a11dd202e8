#include "tests/gpu/cuda/bench_weights.h"

#include "gpu/cuda/random_fill.h"
#include "tests/gpu/cuda/device_fixture.h"

namespace reprise::engine::cuda::bench {

using test::Must;

BenchWeights::BenchWeights(WeightFormat format, uint32_t outputs, uint32_t inputs, uint32_t copies,
                           bool experts, cudaStream_t stream)
    : view{.format = format,
           .outputs = outputs,
           .inputs = inputs,
           .output_tiles = (outputs + 63) / 64,
           .input_tiles = (inputs + 63) / 64,
           .slices = SlicesOf(outputs, experts)} {
  const uint64_t tiles = uint64_t{view.output_tiles} * view.input_tiles * copies;
  codes = Must(DeviceMemory::Allocate(tiles * TileBytes(format)));
  scales = Must(DeviceMemory::Allocate(tiles * TileScaleBytes(format) + 16));
  if (format == WeightFormat::kBf16) {
    FillBf16(codes.data(), codes.bytes() / 2, 1, 0.02f, stream);
  } else {
    FillRandom(codes.data(), codes.bytes(), 1, 255, stream);
  }
  FillScaleWords(scales.data(), scales.bytes(), 2, ScaleByte(format, 118), ScaleByte(format, 121),
                 stream);
  view.codes = codes.data();
  view.scales = scales.data();
}

}  // namespace reprise::engine::cuda::bench
