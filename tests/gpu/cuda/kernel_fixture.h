#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear.h"
#include "tests/gpu/cuda/device_fixture.h"
#include "tests/gpu/cuda/kernel_reference.h"

// Random data for kernels and for their references, and what counts as the same.
namespace reprise::engine::cuda::test {

using reference::Floats;
using reference::FloatSpan;
using Bits = std::vector<uint16_t>;  // bf16.

// About normal in shape: most values are small beside the largest, as in a model.
Bits RandomBits(size_t count, float scale, uint64_t seed);
Floats RandomFloats(size_t count, float middle, float scale, uint64_t seed);
Floats FromBits(const Bits& bits);
Bits ToBits(FloatSpan values);

template <typename T>
std::span<const T> RowOf(const std::vector<T>& values, size_t row, size_t count) {
  return std::span<const T>(values).subspan(row * count, count);
}

// Waits, so that a kernel that fails does so where it was launched.
void Launched(cudaError_t error);

// Counts values that are the reference's, and those that may differ because a sum in float lies on
// the other side of a rounding boundary than the same in double. Of all, 99.9 % must be the same.
class Agreement {
 public:
  explicit Agreement(std::string what) : what_(std::move(what)) {}

  // Not the same: within `steps` of bf16, or within `slack`, which is for sums that cancel.
  void AddBf16(uint16_t got, float want, float slack, int steps = 1);
  void AddBf16(std::span<const uint16_t> got, FloatSpan want, float slack, int steps = 1);

  enum class Quantiser { kA, kB, kC };
  // Not the same: a code that is one step away, or a value that is within a bf16 step of its
  // group's largest: a rotation may have cancelled what stood before it.
  void AddCodes(Quantiser quantiser, const uint8_t* codes, const uint8_t* scales,
                const reference::Codes& want);

  void Expect() const;

 private:
  void Add(bool same, bool near, const std::string& got_and_want);

  std::string what_, first_far_;
  size_t all_ = 0, near_ = 0, far_ = 0;
};

// ---- Rows of several sequences -----------------------------------------------------------------

struct PartOfStep {
  uint32_t first = 0, rows = 1, windows_from = 0, write_from = 0;
};
// Calls of 1, 3, 17, 65, 130 and 300 rows.
const std::vector<std::vector<PartOfStep>>& AwkwardSteps();

// Such a call with random windows and payloads: on the device, and the same for the host.
class RandomStep {
 public:
  struct Memory {
    uint64_t window_bytes = 16;   // Of a part.
    uint32_t blocks = 1;          // Of a part.
    uint64_t payload_bytes = 16;  // Of a block.
  };
  RandomStep(const std::vector<PartOfStep>& list, uint32_t pair_count, const Memory& memory,
             uint64_t seed);

  const StepView& view() const { return view_; }
  uint32_t rows() const { return view_.rows; }
  reference::Rotation rotation(int kind, uint32_t row) const;
  uint8_t* window(uint32_t part) { return &windows[part * memory_.window_bytes]; }
  uint8_t* payload(uint32_t part, uint32_t block);
  // What the device has of them now.
  std::vector<uint8_t> DeviceWindows() const { return device_windows_.Get(); }
  std::vector<uint8_t> DevicePayloads() const { return device_payloads_.Get(); }

  std::vector<DevicePart> parts;
  std::vector<uint32_t> part_of_row, positions;
  std::vector<int32_t> tokens;
  std::vector<uint8_t> image;
  Floats cosines[2], sines[2];
  std::vector<uint8_t> windows, payloads;

 private:
  StepView view_;
  Memory memory_;
  std::vector<uint32_t> place_of_block_;  // Blocks lie in no order.
  OnDevice<uint8_t> device_windows_, device_payloads_;
  OnDevice<DevicePart> device_parts_;
  OnDevice<uint32_t> device_part_of_row_, device_positions_;
  OnDevice<int32_t> device_tokens_;
  OnDevice<uint8_t> device_image_;
  OnDevice<std::byte*> device_blocks_;
  std::vector<OnDevice<float>> device_turns_;
};

// ---- Routes ------------------------------------------------------------------------------------

// All that a route writes, where all experts are this rank's.
struct RouteOutputs {
  RouteOutputs(uint32_t row_count, uint32_t expert_count, uint32_t chosen_count,
               uint32_t rows_of_tile)
      : rows(row_count),
        experts(expert_count),
        chosen(chosen_count),
        tile_rows(rows_of_tile),
        logits(size_t{rows} * experts),
        weight_of(rows * chosen),
        slot_weights(rows * chosen),
        expert_of(rows * chosen),
        slot_of(rows * chosen),
        row_of(rows * chosen),
        tile_count(1),
        tickets(std::vector<uint32_t>(1, 0)),
        tiles(rows * chosen / tile_rows + std::min(experts, rows * chosen)) {}
  // Biases, image rows and scaling are still to be given.
  RouteCall Call() const {
    return {.rows = rows,
            .experts = experts,
            .chosen = chosen,
            .logits = logits.data(),
            .own = experts,
            .tile_rows = tile_rows,
            .ticket = tickets.data(),
            .expert_of = expert_of.data(),
            .weight_of = weight_of.data(),
            .slot_of = slot_of.data(),
            .row_of = row_of.data(),
            .slot_weights = slot_weights.data(),
            .tiles = tiles.data(),
            .tile_count = tile_count.data()};
  }
  uint32_t rows, experts, chosen, tile_rows;
  OnDevice<float> logits, weight_of, slot_weights;
  OnDevice<uint32_t> expert_of, slot_of, row_of, tile_count, tickets;
  OnDevice<ExpertTile> tiles;
};

}  // namespace reprise::engine::cuda::test
