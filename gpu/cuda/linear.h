#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "gpu/cuda/linear_layout.h"

// Products with weights: y[row][output] = sum over inputs of x[row][input] w[output][input].
//
// Batch-invariant: the inputs of an output are summed in order by the matrix units in float, those
// of a matrix with few outputs in slices, and the slices' sums in order, so that a few rows still
// keep the whole chip busy. That depends on the matrix, never on the number of rows nor on the
// kernel that is chosen by it.
namespace reprise::engine::cuda {

// A packed matrix in device memory (linear_layout.h); owned elsewhere.
struct DeviceLinear {
  WeightFormat format = WeightFormat::kBf16;
  uint32_t outputs = 0, inputs = 0;
  uint32_t output_tiles = 0, input_tiles = 0;
  uint32_t slices = 1;  // Of the inputs, summed apart: 1, 2, 4 or 8 (SlicesOf).
  const void* codes = nullptr;
  const void* scales = nullptr;
};
// Experts are many; other matrices count by their outputs: blocks of 128, and as many slices as
// fill the chip with clusters of them.
constexpr uint32_t SlicesOf(uint32_t outputs, bool experts) {
  return experts || outputs > 8192 ? 1 : outputs > 5120 ? 2 : outputs > 2048 ? 4 : 8;
}

// Rows [first, first + rows) of slots that go to one expert.
struct alignas(16) ExpertTile {
  uint32_t expert = 0, first = 0, rows = 0;
};
// Rows of all tiles of an expert but the last, where `tile_rows` are LinearTileRows of its share.
// Tiles of 128 rows are as even as may be: kernels are as wide as their rows want.
#ifdef __CUDACC__
#define RP_HOST_DEVICE __host__ __device__
#else
#define RP_HOST_DEVICE
#endif
constexpr uint32_t kManyRows = 128;
RP_HOST_DEVICE constexpr uint32_t TileStep(uint32_t rows, uint32_t tile_rows) {
  if (tile_rows < kManyRows || rows == 0) return tile_rows;
  const uint32_t tiles = (rows + kManyRows - 1) / kManyRows;
  return (rows + tiles * 8 - 1) / (tiles * 8) * 8;
}

enum class LinearOutput : uint8_t {
  kBf16,
  kFloat,
  kRounded,  // bf16, then through quantiser A in groups of 32 outputs.
  // w1 and w3 lie interleaved, eight rows of each by turns; y [rows][outputs / 2] bf16 is
  // bf16(silu(min(a, limit)) x clamp(c, limit) x weight of the row), a and c rounded first, and
  // then through quantiser A.
  kSwiglu,
};

struct LinearCall {
  DeviceLinear matrix;
  LinearOutput output = LinearOutput::kBf16;
  const void* x = nullptr;  // bf16, rows aligned to 16 bytes. Readable up to whole tiles of inputs.
  uint64_t x_stride = 0;    // Values from row to row.
  void* y = nullptr;        // Aligned to 16 bytes.
  uint64_t y_stride = 0;
  uint32_t rows = 0;
  // Row of x for each row of y; null: the same. Not for a matrix with slices.
  const uint32_t* gather = nullptr;
  // Block-diagonal, of rows that are not gathered: outputs [g n, (g + 1) n) read inputs from column
  // g k on; n is a multiple of 128. 0: one block.
  uint32_t block_outputs = 0;
  uint32_t block_inputs = 0;

  // Swiglu.
  float limit = 0;
  const float* row_weights = nullptr;  // Null: all 1.

  // Experts: `matrix` is the first of so many of equal shape, end to end. Tiles of rows lie in
  // device memory, `*tile_count` of them; tiles_max bounds that, rows_of_tile_max their rows.
  const ExpertTile* tiles = nullptr;
  const uint32_t* tile_count = nullptr;
  uint32_t tiles_max = 0;
  // Tiles were written before the launch that comes right before this one: weights may be loaded
  // while that one still runs.
  bool planned_before = false;

  // A matrix of the same shape, without slices, that every row meets, in the same launch: the
  // shared expert. Its rows are neither gathered nor weighted. rows 0: none.
  struct Beside {
    DeviceLinear matrix;
    const void* x = nullptr;
    void* y = nullptr;
    uint32_t rows = 0;
  } beside;
};

// Rows of a tile that the kernels take at once, for so many rows at most: 8, 16, 32, 64 or 128.
uint32_t LinearTileRows(uint32_t rows);
// `tile_rows`: of LinearTileRows; with experts the tiles were cut so.
cudaError_t LaunchLinear(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream);
// What a block takes where tiles have 128 rows: so many tiles of 64 outputs and one slice of the
// inputs; or two tiles and all slices, one after another.
enum class DenseBlocks : uint8_t { kQuickest, kTwoTiles, kThreeTiles, kFourTiles, kAllSlices };
// The part of it that is for one matrix alone, whose rows are not gathered.
cudaError_t LaunchDenseLinear(const LinearCall& call, uint32_t tile_rows, DenseBlocks blocks,
                              cudaStream_t stream);
// By the tiles that are the quickest for one matrix.
cudaError_t LaunchLinear(const LinearCall& call, cudaStream_t stream);

}  // namespace reprise::engine::cuda
