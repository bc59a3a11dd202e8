#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"
#include "gpu/cpu/kernels.h"

namespace reprise::engine::cpu {

// A weight matrix in the kernels' order (MatrixTiles). FP8 and FP4 weights times their power-of-two
// scales are bf16 values exactly, so nothing is lost by keeping them as bf16.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // The tensor `name` [outputs, inputs]: BF16, F32, F8_E4M3 with one UE8M0 scale per 32 x 32 block
  // in "<stem>.scale", or I8 with one per 32 inputs; what it is decides. Refuses values that are
  // not finite, by name.
  static absl::StatusOr<PackedMatrix> Load(const Checkpoint& checkpoint, const std::string& name,
                                           uint32_t outputs, uint32_t inputs);
  // Rows [first, first + outputs) of a tensor that has `all_outputs`.
  static absl::StatusOr<PackedMatrix> LoadRows(const Checkpoint& checkpoint,
                                               const std::string& name, uint32_t all_outputs,
                                               uint32_t first, uint32_t outputs, uint32_t inputs);

  MatrixTiles tiles() const {
    return {.bf16 = bf16_.empty() ? nullptr : bf16_.data(),
            .fp32 = fp32_.empty() ? nullptr : fp32_.data(),
            .inputs = inputs_,
            .outputs = outputs_};
  }
  uint32_t inputs() const { return inputs_; }
  uint32_t outputs() const { return outputs_; }
  uint32_t tile_count() const { return (outputs_ + kTileOutputs - 1) / kTileOutputs; }
  uint64_t bytes() const { return bf16_.size() * 4 + fp32_.size() * 4; }

 private:
  // Values of row `row` into a buffer of `inputs_` floats.
  using ReadRow = std::function<void(uint32_t row, float* values)>;
  absl::Status Pack(const std::string& name, bool as_float, const ReadRow& read_row);

  uint32_t inputs_ = 0;
  uint32_t outputs_ = 0;
  std::vector<uint32_t> bf16_;
  std::vector<float> fp32_;
};

// A BF16 or F32 tensor of any shape as floats; refuses values that are not finite, by name.
absl::StatusOr<std::vector<float>> LoadFloats(const Checkpoint& checkpoint, const std::string& name,
                                              DType dtype, const std::vector<uint64_t>& shape);

}  // namespace reprise::engine::cpu
