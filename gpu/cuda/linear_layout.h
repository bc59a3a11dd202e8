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
//   scales  [output tiles][input tiles][FP8: 4 warps; FP4: 4 warps x 8] words
//
// The bits of FP4 and FP8 codes are scattered over the 32-bit words of their thread so that a
// register of two bf16 values comes out by a shift or two and one mask: kFp4Bits, kFp8Bits. Any
// bits at all are some codes. A word of scales holds ScaleByte of the thread's upper and lower row,
// for inputs 0..31 and 32..63 of the tile, as bytes (upper 0, upper 1, lower 0, lower 1) and then
// turned left by seven bits: `word & 0x7f807f80` is the factors of the first inputs as bf16 (upper
// in the low half), and the same of the word turned right by eight those of the others.
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

// Where the bits of a code lie in its word, from the lowest bit of the code on, for the low half of
// a register; for the high half they lie 16 places further, past the end from 0 on.
// The last register of a word is two shifts of it xor each other: each of its bits comes by one of
// them. The other one, eight places off, brings some other bit of the word there, which the packer
// has added beforehand.
// FP4: word = step of 16 inputs, by the register of the step.
inline constexpr uint8_t kFp4Bits[4][4] = {
    {6, 7, 8, 15}, {2, 3, 4, 11}, {28, 29, 30, 5}, {0, 1, 10, 9}};
// FP8: word = two registers of a step, by which of the two.
inline constexpr uint8_t kFp8Bits[2][8] = {{4, 5, 6, 7, 8, 9, 10, 15},
                                           {0, 1, 2, 3, 12, 13, 14, 11}};

// Kernels read codes as bf16 with the smallest exponents, E4M3 times 2^-120 and E2M1 times 2^-126:
// the factor undoes it. The exponent of a scale's factor:
constexpr uint32_t ScaleByte(WeightFormat format, uint8_t scale) {
  return scale + (format == WeightFormat::kFp8 ? 120u : 126u);
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
  // From an input on that is a multiple of 32.
  WeightRow operator()(uint32_t output, uint32_t first_input = 0) const;

 private:
  WeightFormat format_ = WeightFormat::kBf16;
  uint32_t inputs_ = 0;
  const uint8_t* codes_ = nullptr;
  const uint8_t* scales_ = nullptr;
};

}  // namespace reprise::engine::cuda
