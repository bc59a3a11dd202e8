// Rows times a packed matrix. Part of kernels_<isa>.cc; see simd16.h and MatrixCall.
#pragma once

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/simd16.h"

namespace {

using reprise::engine::cpu::kTileOutputs;
using reprise::engine::cpu::MatrixCall;
using reprise::engine::cpu::MatrixTiles;

constexpr uint32_t kChain = 32;  // Inputs that are summed before they join the total.
// Rows of one pass over a tile, by what the registers hold, and from how many rows on it pays to
// turn a tile of bf16 pairs into floats once.
#if defined(__AVX512F__)
constexpr uint32_t kRowsMax = 6;
#else
constexpr uint32_t kRowsMax = 2;
#endif
constexpr uint32_t kRowsToExpand = 4 * kRowsMax;

struct WeightPair {
  F16 low, high;  // Outputs 0 to 15 and 16 to 31 of the tile, for one input.
};

struct Bf16Tile {
  const uint32_t* words;
  WeightPair At(uint32_t input) const {
    const U16 w = LoadU(words + input * kLanes);
    return {AsFloat(w << 16), AsFloat(w & SetU(0xffff0000))};
  }
};
struct FloatTile {
  const float* values;
  WeightPair At(uint32_t input) const {
    return {Load(values + input * kTileOutputs), Load(values + input * kTileOutputs + kLanes)};
  }
};

inline void StoreOutputs(const MatrixCall& call, uint32_t row, uint32_t tile, F16 low, F16 high) {
  if (call.round_bf16) {
    low = RoundToBf16(low);
    high = RoundToBf16(high);
  }
  const uint32_t first = tile * kTileOutputs;
  float* y = call.y + row * call.y_stride + first;
  if (first + kTileOutputs <= call.matrix.outputs) {
    Store(y, low);
    Store(y + kLanes, high);
    return;
  }
  float part[kTileOutputs];
  Store(part, low);
  Store(part + kLanes, high);
  memcpy(y, part, (call.matrix.outputs - first) * sizeof(float));
}

// kRows rows times kTiles neighbouring tiles.
template <uint32_t kRows, uint32_t kTiles, typename Tile>
void MatrixPass(const MatrixCall& call, const Tile* tiles, uint32_t first_tile,
                uint32_t first_row) {
  const float* x = call.x + first_row * call.x_stride;
  F16 total[kRows][kTiles][2];
  for (uint32_t r = 0; r < kRows; ++r) {
    for (uint32_t t = 0; t < kTiles; ++t) total[r][t][0] = total[r][t][1] = Set(0.0f);
  }
  for (uint32_t begin = 0; begin < call.matrix.inputs; begin += kChain) {
    const uint32_t left = call.matrix.inputs - begin;
    const uint32_t end = begin + (left < kChain ? left : kChain);
    F16 sum[kRows][kTiles][2];
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t t = 0; t < kTiles; ++t) sum[r][t][0] = sum[r][t][1] = Set(0.0f);
    }
    for (uint32_t i = begin; i < end; ++i) {
      WeightPair weights[kTiles];
      for (uint32_t t = 0; t < kTiles; ++t) weights[t] = tiles[t].At(i);
      for (uint32_t r = 0; r < kRows; ++r) {
        const F16 value = Set(x[r * call.x_stride + i]);
        for (uint32_t t = 0; t < kTiles; ++t) {
          sum[r][t][0] = MulAdd(value, weights[t].low, sum[r][t][0]);
          sum[r][t][1] = MulAdd(value, weights[t].high, sum[r][t][1]);
        }
      }
    }
    for (uint32_t r = 0; r < kRows; ++r) {
      for (uint32_t t = 0; t < kTiles; ++t) {
        total[r][t][0] += sum[r][t][0];
        total[r][t][1] += sum[r][t][1];
      }
    }
  }
  for (uint32_t r = 0; r < kRows; ++r) {
    for (uint32_t t = 0; t < kTiles; ++t) {
      StoreOutputs(call, first_row + r, first_tile + t, total[r][t][0], total[r][t][1]);
    }
  }
}

inline Bf16Tile TileOf(const MatrixTiles& matrix, uint32_t tile, Bf16Tile) {
  return {matrix.bf16 + size_t{tile} * matrix.inputs * kLanes};
}
inline FloatTile TileOf(const MatrixTiles& matrix, uint32_t tile, FloatTile) {
  return {matrix.fp32 + size_t{tile} * matrix.inputs * kTileOutputs};
}

// All rows over one tile, kRowsMax at a time.
template <typename Tile>
void TileRows(const MatrixCall& call, Tile tile, uint32_t number) {
  uint32_t row = 0;
  for (; row + kRowsMax <= call.rows; row += kRowsMax) {
    MatrixPass<kRowsMax, 1>(call, &tile, number, row);
  }
  switch (call.rows - row) {
    case 1:
      return MatrixPass<1, 1>(call, &tile, number, row);
#if defined(__AVX512F__)
    case 2:
      return MatrixPass<2, 1>(call, &tile, number, row);
    case 3:
      return MatrixPass<3, 1>(call, &tile, number, row);
    case 4:
      return MatrixPass<4, 1>(call, &tile, number, row);
    case 5:
      return MatrixPass<5, 1>(call, &tile, number, row);
#endif
    default:
      return;
  }
}

// Few rows: several tiles at a time, so that enough sums are in flight.
template <uint32_t kRows, uint32_t kTiles, typename Tile>
void FewRows(const MatrixCall& call) {
  uint32_t tile = call.tile_begin;
  for (; tile + kTiles <= call.tile_end; tile += kTiles) {
    Tile tiles[kTiles];
    for (uint32_t t = 0; t < kTiles; ++t) tiles[t] = TileOf(call.matrix, tile + t, Tile{});
    MatrixPass<kRows, kTiles>(call, tiles, tile, 0);
  }
  for (; tile < call.tile_end; ++tile) {
    const Tile one = TileOf(call.matrix, tile, Tile{});
    MatrixPass<kRows, 1>(call, &one, tile, 0);
  }
}

template <typename Tile>
void MatrixOf(const MatrixCall& call) {
  if (call.rows == 1) return FewRows < 1, kRowsMax == 6 ? 4 : 2, Tile > (call);
  if (call.rows == 2) return FewRows < 2, kRowsMax == 6 ? 2 : 1, Tile > (call);
  for (uint32_t tile = call.tile_begin; tile < call.tile_end; ++tile) {
    TileRows(call, TileOf(call.matrix, tile, Tile{}), tile);
  }
}

void KernelMatrix(const MatrixCall& call) {
  if (call.matrix.fp32 != nullptr) return MatrixOf<FloatTile>(call);
  if (call.rows < kRowsToExpand) return MatrixOf<Bf16Tile>(call);
  for (uint32_t tile = call.tile_begin; tile < call.tile_end; ++tile) {
    const Bf16Tile packed = TileOf(call.matrix, tile, Bf16Tile{});
    for (uint32_t i = 0; i < call.matrix.inputs; ++i) {
      const WeightPair pair = packed.At(i);
      Store(call.scratch + i * kTileOutputs, pair.low);
      Store(call.scratch + i * kTileOutputs + kLanes, pair.high);
    }
    TileRows(call, FloatTile{call.scratch}, tile);
  }
}

}  // namespace
