#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"

// How a weight matrix lies in device memory, and packing it so. Host code alone.
//
// A tile is 64 outputs x 64 inputs, in the order in which the 128 threads of a warpgroup hold it as
// operand A of wgmma (m64k16, four steps): a thread loads its part by 16-byte accesses, side by
// side with its neighbours, and turns the codes into bf16 in registers. FP8 and FP4 weights times
// their power-of-two scales are bf16 values exactly, so this is what the reference computes.
//
//   codes   [output tiles][input tiles][bytes of a thread / 16][128 threads][16 bytes]
//   scales  [output tiles][input tiles][FP8: 4 warps; FP4: 4 warps x 8][4]: of the thread's upper
//           and lower row, for inputs 0..31 and 32..63 of the tile: (upper 0, upper 1, lower 0, 1)
namespace reprise::engine::cuda {

enum class WeightFormat : uint8_t { kBf16, kFp8, kFp4 };

inline constexpr uint32_t kTileOutputs = 64;
inline constexpr uint32_t kTileInputs = 64;

constexpr uint32_t TileBytes(WeightFormat format) {
  return kTileOutputs * kTileInputs * 2 >> static_cast<uint32_t>(format);
}
constexpr uint32_t TileScaleBytes(WeightFormat format) {
  return format == WeightFormat::kBf16 ? 0 : format == WeightFormat::kFp8 ? 16 : 128;
}

// A matrix packed in host memory. Outputs and inputs beyond the matrix are zeros.
struct PackedLinear {
  WeightFormat format = WeightFormat::kBf16;
  uint32_t outputs = 0, inputs = 0;
  uint32_t output_tiles = 0, input_tiles = 0;
  std::vector<uint8_t> codes, scales;
};

// One row of a weight matrix as it lies in a checkpoint.
struct WeightRow {
  const uint8_t* codes = nullptr;   // Null: zeros.
  const uint8_t* scales = nullptr;  // One per 32 inputs.
};

// `row(i)` gives output i; inputs must be a multiple of 32. Refuses scales whose weights would not
// be bf16 values; `name` is for that message.
absl::StatusOr<PackedLinear> PackLinear(const std::string& name, WeightFormat format,
                                        uint32_t outputs, uint32_t inputs,
                                        const std::function<WeightRow(uint32_t)>& row);

// A tensor of a checkpoint, row by row: BF16, F8_E4M3 with its "<stem>.scale" of 32 x 32 blocks, or
// I8 with one per 32 inputs.
class WeightRows {
 public:
  static absl::StatusOr<WeightRows> Find(const Checkpoint& checkpoint, const std::string& name,
                                         uint32_t outputs, uint32_t inputs);
  WeightFormat format() const { return format_; }
  WeightRow operator()(uint32_t output) const;

 private:
  WeightFormat format_ = WeightFormat::kBf16;
  uint32_t inputs_ = 0;
  const uint8_t* codes_ = nullptr;
  const uint8_t* scales_ = nullptr;
};

}  // namespace reprise::engine::cuda
