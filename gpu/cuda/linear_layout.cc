#include "gpu/cuda/linear_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string>

namespace reprise::engine::cuda {
namespace {

// Where in its thread's part a weight lies. `step`: of 16 inputs; `pair`: of the four registers of
// a step; `high`: the upper half of that register.
struct Place {
  uint32_t thread, step, pair, high;
};

Place PlaceOf(uint32_t output, uint32_t input) {
  const uint32_t warp = output / 16, row = output % 16, k = input % 16;
  return {.thread = warp * 32 + (row % 8) * 4 + (k % 8) / 2,
          .step = input / 16,
          .pair = (k / 8) * 2 + row / 8,
          .high = k % 2};
}

// Offset of byte `at` of a thread's part within the tile.
uint32_t ByteOf(uint32_t thread, uint32_t at) { return at / 16 * 2048 + thread * 16 + at % 16; }

// Bits of a word that make its last register, by the shift that takes them there.
struct LastRegister {
  uint32_t by_left, by_right;
};
constexpr LastRegister kFp4Last = {.by_left = 0x02030203, .by_right = 0x04000400};
constexpr LastRegister kFp8Last = {.by_left = 0x080f080f, .by_right = 0x70007000};

// Adds to them what the other shift brings: from the upper bytes on, as they then lie.
constexpr uint32_t WithOthers(uint32_t word, const LastRegister& last) {
  word ^= word << 8 & last.by_right;
  for (const uint32_t byte : {0xff0000u, 0xff00u, 0xffu}) word ^= word >> 8 & last.by_left & byte;
  return word;
}

// What a code adds (xor) to its word: by register, half of the register, and code.
template <size_t kRegisters, size_t kBits>
constexpr auto Scattered(const uint8_t (&bits)[kRegisters][kBits], const LastRegister& last) {
  std::array<std::array<std::array<uint32_t, size_t{1} << kBits>, 2>, kRegisters> words{};
  for (size_t r = 0; r < kRegisters; ++r) {
    for (size_t code = 0; code < size_t{1} << kBits; ++code) {
      uint32_t low = 0;
      for (size_t i = 0; i < kBits; ++i) low |= static_cast<uint32_t>(code >> i & 1) << bits[r][i];
      words[r][0][code] = WithOthers(low, last);
      words[r][1][code] = WithOthers(std::rotl(low, 16), last);
    }
  }
  return words;
}
constexpr auto kFp4Words = Scattered(kFp4Bits, kFp4Last);
constexpr auto kFp8Words = Scattered(kFp8Bits, kFp8Last);

void AddBits(uint8_t* to, uint32_t bits) {
  uint32_t word;
  std::memcpy(&word, to, 4);
  word ^= bits;
  std::memcpy(to, &word, 4);
}

void PutWeight(WeightFormat format, uint8_t* tile, const Place& place, const uint8_t* row,
               uint32_t input) {
  switch (format) {
    case WeightFormat::kBf16:
      std::memcpy(tile + ByteOf(place.thread, place.step * 16 + place.pair * 4 + place.high * 2),
                  row + size_t{input} * 2, 2);
      return;
    case WeightFormat::kFp8:
      AddBits(tile + ByteOf(place.thread, place.step * 8 + place.pair / 2 * 4),
              kFp8Words[place.pair % 2][place.high][row[input]]);
      return;
    case WeightFormat::kFp4:
      AddBits(tile + ByteOf(place.thread, place.step * 4),
              kFp4Words[place.pair][place.high][row[input / 2] >> (input % 2 * 4) & 15]);
      return;
  }
}

void PutScales(WeightFormat format, uint8_t* scales, uint32_t output, const uint8_t* pair) {
  const uint32_t warp = output / 16, row = output % 16, lower = row / 8;
  uint8_t* to = scales + (format == WeightFormat::kFp8 ? warp : warp * 8 + row % 8) * 4;
  uint32_t word;
  std::memcpy(&word, to, 4);
  const auto at = static_cast<int>(lower * 16 + 7);
  const uint32_t both = ScaleByte(format, pair[0]) | ScaleByte(format, pair[1]) << 8;
  word = (word & ~std::rotl(uint32_t{0xffff}, at)) | std::rotl(both, at);
  std::memcpy(to, &word, 4);
}

// The factor that a kernel multiplies by is a bf16 power of two.
uint8_t LargestScale(WeightFormat format) {
  return static_cast<uint8_t>(254 - ScaleByte(format, 0));
}

}  // namespace

absl::StatusOr<PackedLinear> PackLinear(const std::string& name, WeightFormat format,
                                        uint32_t outputs, uint32_t inputs,
                                        const std::function<WeightRow(uint32_t)>& row) {
  PackedLinear packed{.format = format,
                      .outputs = outputs,
                      .inputs = inputs,
                      .output_tiles = (outputs + kTileOutputs - 1) / kTileOutputs,
                      .input_tiles = (inputs + kTileInputs - 1) / kTileInputs};
  const size_t tiles = size_t{packed.output_tiles} * packed.input_tiles;
  packed.codes.resize(tiles * TileBytes(format));
  packed.scales.resize(tiles * TileScaleBytes(format));
  for (uint32_t output = 0; output < outputs; ++output) {
    const WeightRow from = row(output);
    if (from.codes == nullptr) continue;
    for (uint32_t tile = 0; tile < packed.input_tiles; ++tile) {
      const size_t index = size_t{output / kTileOutputs} * packed.input_tiles + tile;
      uint8_t* codes = packed.codes.data() + index * TileBytes(format);
      const uint32_t end = std::min(inputs, (tile + 1) * kTileInputs);
      for (uint32_t input = tile * kTileInputs; input < end; ++input) {
        PutWeight(format, codes, PlaceOf(output % kTileOutputs, input % kTileInputs), from.codes,
                  input);
      }
      if (format == WeightFormat::kBf16) continue;
      const uint32_t group = tile * 2;
      const uint8_t pair[2] = {from.scales[group],
                               group + 1 < inputs / 32 ? from.scales[group + 1] : uint8_t{0}};
      if (std::max(pair[0], pair[1]) > LargestScale(format)) {
        return DataLoss(name + ": output " + std::to_string(output) + " has a scale of 2^" +
                        std::to_string(std::max(pair[0], pair[1]) - 127) +
                        "; the CUDA engine takes none so large");
      }
      PutScales(format, packed.scales.data() + index * TileScaleBytes(format),
                output % kTileOutputs, pair);
    }
  }
  return packed;
}

absl::StatusOr<WeightRows> WeightRows::Find(const Checkpoint& checkpoint, const std::string& name,
                                            uint32_t outputs, uint32_t inputs) {
  const Tensor* tensor = checkpoint.Find(name);
  if (tensor == nullptr) return NotFound("the checkpoint has no tensor " + name);
  WeightRows rows;
  rows.inputs_ = inputs;
  const std::string scale = name.substr(0, name.rfind('.')) + ".scale";
  switch (tensor->dtype) {
    case DType::kBf16: {
      RP_ASSIGN(const Tensor found, checkpoint.Find(name, DType::kBf16, {outputs, inputs}));
      rows.codes_ = reinterpret_cast<const uint8_t*>(found.bytes.data());
      return rows;
    }
    case DType::kF8E4m3: {
      RP_ASSIGN(const Tensor found, checkpoint.Find(name, DType::kF8E4m3, {outputs, inputs}));
      RP_ASSIGN(const Tensor scales,
                checkpoint.Find(scale, DType::kF8E8m0, {outputs / 32, inputs / 32}));
      rows.format_ = WeightFormat::kFp8;
      rows.codes_ = reinterpret_cast<const uint8_t*>(found.bytes.data());
      rows.scales_ = reinterpret_cast<const uint8_t*>(scales.bytes.data());
      return rows;
    }
    case DType::kI8: {
      RP_ASSIGN(const Tensor found, checkpoint.Find(name, DType::kI8, {outputs, inputs / 2}));
      RP_ASSIGN(const Tensor scales,
                checkpoint.Find(scale, DType::kF8E8m0, {outputs, inputs / 32}));
      rows.format_ = WeightFormat::kFp4;
      rows.codes_ = reinterpret_cast<const uint8_t*>(found.bytes.data());
      rows.scales_ = reinterpret_cast<const uint8_t*>(scales.bytes.data());
      return rows;
    }
    default:
      return DataLoss(name + " is " + TensorText(tensor->dtype, tensor->shape) +
                      "; a weight matrix is BF16, F8_E4M3 or I8");
  }
}

WeightRow WeightRows::operator()(uint32_t output, uint32_t first_input) const {
  const size_t row = output, at = first_input, scale = first_input / 32;
  switch (format_) {
    case WeightFormat::kBf16:
      return {.codes = codes_ + (row * inputs_ + at) * 2};
    case WeightFormat::kFp8:
      return {.codes = codes_ + row * inputs_ + at,
              .scales = scales_ + row / 32 * (inputs_ / 32) + scale};
    case WeightFormat::kFp4:
      return {.codes = codes_ + (row * inputs_ + at) / 2,
              .scales = scales_ + row * (inputs_ / 32) + scale};
  }
  return {};
}

}  // namespace reprise::engine::cuda
