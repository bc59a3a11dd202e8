#include "gpu/cpu/packed_matrix.h"

#include <algorithm>
#include <cmath>

#include "gpu/formats/number_formats.h"
#include "gpu/formats/quantisers.h"

namespace reprise::engine::cpu {
namespace {

const uint8_t* Bytes8(const Tensor& tensor) {
  return reinterpret_cast<const uint8_t*>(tensor.bytes.data());
}

float Bf16At(const Tensor& tensor, size_t index) {
  return FromBf16(LoadLe<uint16_t>(tensor.bytes.data() + 2 * index));
}

// "layers.0.attn.wkv.weight" has its scales in "layers.0.attn.wkv.scale".
std::string ScaleName(const std::string& weight) {
  return weight.substr(0, weight.size() - std::string("weight").size()) + "scale";
}

float ScaleAt(const Tensor& scales, size_t index) {
  const uint8_t code = Bytes8(scales)[index];
  return code == 255 ? std::nanf("") : FromUe8m0(code);  // Refused with the weight it makes NaN.
}

absl::Status NotFinite(const std::string& name) {
  return DataLoss("tensor " + name +
                  " holds a value or a scale that is not a finite number; the file is damaged or "
                  "was not exported rightly");
}

}  // namespace

absl::Status PackedMatrix::Pack(const std::string& name, bool as_float, const ReadRow& read_row) {
  const size_t tile_values = size_t{inputs_} * kTileOutputs;
  std::vector<float> row(inputs_);
  (as_float ? fp32_.resize(tile_count() * tile_values)
            : bf16_.resize(tile_count() * tile_values / 2));
  for (uint32_t output = 0; output < outputs_; ++output) {
    read_row(output, row.data());
    const uint32_t lane = output % kTileOutputs;
    const size_t tile = output / kTileOutputs * tile_values;
    for (uint32_t i = 0; i < inputs_; ++i) {
      if (!std::isfinite(row[i])) return NotFinite(name);
      if (as_float) {
        fp32_[tile + size_t{i} * kTileOutputs + lane] = row[i];
        continue;
      }
      uint32_t& word = bf16_[tile / 2 + size_t{i} * kTileOutputs / 2 + lane % 16];
      word |= uint32_t{ToBf16(row[i])} << (lane < 16 ? 0 : 16);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PackedMatrix> PackedMatrix::Load(const Checkpoint& checkpoint,
                                                const std::string& name, uint32_t outputs,
                                                uint32_t inputs) {
  return LoadRows(checkpoint, name, outputs, 0, outputs, inputs);
}

absl::StatusOr<PackedMatrix> PackedMatrix::LoadRows(const Checkpoint& checkpoint,
                                                    const std::string& name, uint32_t all_outputs,
                                                    uint32_t first, uint32_t outputs,
                                                    uint32_t inputs) {
  const Tensor* found = checkpoint.Find(name);
  if (found == nullptr) return NotFound("tensor " + name + " is missing from the checkpoint");
  const DType dtype = found->dtype;
  const uint64_t stored_inputs = dtype == DType::kI8 ? inputs / 2 : inputs;
  RP_ASSIGN(const Tensor weight, checkpoint.Find(name, dtype, {all_outputs, stored_inputs}));
  PackedMatrix matrix;
  matrix.inputs_ = inputs;
  matrix.outputs_ = outputs;
  switch (dtype) {
    case DType::kF32:
      RP_TRY(matrix.Pack(name, true, [&](uint32_t row, float* values) {
        for (uint32_t i = 0; i < inputs; ++i) {
          values[i] = LoadLe<float>(weight.bytes.data() + 4 * (size_t{first + row} * inputs + i));
        }
      }));
      return matrix;
    case DType::kBf16:
      RP_TRY(matrix.Pack(name, false, [&](uint32_t row, float* values) {
        for (uint32_t i = 0; i < inputs; ++i) {
          values[i] = Bf16At(weight, size_t{first + row} * inputs + i);
        }
      }));
      return matrix;
    case DType::kF8E4m3: {
      RP_ASSIGN(const Tensor scale,
                checkpoint.Find(ScaleName(name), DType::kF8E8m0, {all_outputs / 32, inputs / 32}));
      RP_TRY(matrix.Pack(name, false, [&](uint32_t row, float* values) {
        const uint8_t* codes = Bytes8(weight) + size_t{first + row} * inputs;
        for (uint32_t i = 0; i < inputs; ++i) {
          const size_t block = size_t{(first + row) / 32} * (inputs / 32) + i / 32;
          values[i] = FromE4m3(codes[i]) * ScaleAt(scale, block);
        }
      }));
      return matrix;
    }
    case DType::kI8: {
      RP_ASSIGN(const Tensor scale,
                checkpoint.Find(ScaleName(name), DType::kF8E8m0, {all_outputs, inputs / 32}));
      RP_TRY(matrix.Pack(name, false, [&](uint32_t row, float* values) {
        const uint8_t* codes = Bytes8(weight) + size_t{first + row} * inputs / 2;
        for (uint32_t i = 0; i < inputs; ++i) {
          const uint8_t code = i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4;
          values[i] = FromE2m1(code) * ScaleAt(scale, size_t{first + row} * (inputs / 32) + i / 32);
        }
      }));
      return matrix;
    }
    case DType::kF8E8m0:
      break;
  }
  return InvalidArgument("tensor " + name + " has type " + std::string(DTypeName(dtype)) +
                         ", which no weight has");
}

absl::StatusOr<std::vector<float>> LoadFloats(const Checkpoint& checkpoint, const std::string& name,
                                              DType dtype, const std::vector<uint64_t>& shape) {
  RP_ASSIGN(const Tensor tensor, checkpoint.Find(name, dtype, shape));
  const size_t count = tensor.bytes.size() / DTypeBytes(dtype);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] =
        dtype == DType::kBf16 ? Bf16At(tensor, i) : LoadLe<float>(tensor.bytes.data() + 4 * i);
    if (!std::isfinite(values[i])) return NotFinite(name);
  }
  return values;
}

}  // namespace reprise::engine::cpu
