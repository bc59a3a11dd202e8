#pragma once

#include "gpu/cuda/kernels.h"

// Where entries and window rows lie, as device code.
namespace reprise::engine::cuda {

// Global entries that a row sees.
__device__ inline uint32_t Visible(const StepView& step, uint32_t row, uint32_t ratio) {
  return (step.positions[row] + 1) / ratio;
}

struct EntryPlace {
  uint8_t* main_codes;
  uint8_t* main_scales;
  uint8_t* index_codes;
  uint8_t* index_scales;
};
__device__ inline EntryPlace PlaceOf(const StepView& step, const EntryView& view,
                                     const DevicePart& part, uint32_t entry) {
  uint8_t* payload =
      reinterpret_cast<uint8_t*>(step.blocks[part.first_block + (entry >> view.block_shift)]);
  const uint32_t row = entry & ((1u << view.block_shift) - 1);
  return {payload + view.main_codes + row * view.main_code_bytes,
          payload + view.main_scales + row * view.main_scale_bytes,
          payload + view.index_codes + row * view.index_code_bytes,
          payload + view.index_scales + row * view.index_scale_bytes};
}

struct WindowPlace {
  const uint8_t* codes;
  const uint8_t* scales;
};
__device__ inline WindowPlace RingPlace(const WindowView& view, const DevicePart& part,
                                        uint32_t position) {
  const uint8_t* layer = reinterpret_cast<const uint8_t*>(part.window + view.layer_offset);
  const uint32_t slot = position % view.ring_rows;
  return {layer + uint64_t{slot} * view.code_bytes,
          layer + uint64_t{view.ring_rows} * view.code_bytes + uint64_t{slot} * view.scale_bytes};
}

// (a, g) of an even position.
__device__ inline float* TailOf(const WindowView& view, const DevicePart& part, uint32_t position,
                                uint32_t dim) {
  return reinterpret_cast<float*>(part.window + view.tail_offset) +
         uint64_t{position / 2 % view.tail_rows} * 2 * dim;
}

}  // namespace reprise::engine::cuda
