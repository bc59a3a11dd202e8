#pragma once

#include <type_traits>

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/linear_weights.cuh"
#include "gpu/cuda/shared_room.h"

// What the kernels of products share: what a block works on, rows of x on their way, one tile
// multiplied, sums stored.
namespace reprise::engine::cuda {

constexpr uint32_t kSharedMax = 192 * 1024;  // Of a block, beside what is static.

// ---- What a block works on ---------------------------------------------------------------------

struct Work {
  uint64_t first_tile;  // Of the weights, for this block's first 64 outputs.
  uint32_t output;      // First output.
  uint32_t row, rows;   // Of y.
  uint32_t column;      // First input's column in x.
};

__device__ inline bool FindWork(const LinearCall& call, uint32_t output_tile, uint32_t row_tile,
                                uint32_t tile_rows, Work* work) {
  uint64_t tile = output_tile;
  if (call.tiles != nullptr) {
    // Perhaps before earlier launches have ended (launch.cuh). Both loads at once: what lies there
    // beyond the last tile is nothing, and not used.
    const uint4 expert = __ldcg(reinterpret_cast<const uint4*>(call.tiles + row_tile));
    if (row_tile >= __ldcg(call.tile_count)) return false;
    tile += uint64_t{expert.x} * call.matrix.output_tiles;
    work->row = expert.y;
    work->rows = expert.z;
  } else {
    work->row = row_tile * tile_rows;
    work->rows = min(tile_rows, call.rows - work->row);
  }
  work->first_tile = tile * call.matrix.input_tiles;
  work->output = output_tile * kTileOutputs;
  work->column =
      call.block_outputs == 0 ? 0 : work->output / call.block_outputs * call.block_inputs;
  return true;
}

// Whether it is known which weights a launch takes while earlier ones still run.
__device__ inline bool WeightsAreKnown(const LinearCall& call) {
  return call.tiles == nullptr || call.planned_before;
}
// Finds the work; follows earlier launches where weights are not known, or there is no work.
__device__ inline bool FollowToWork(const LinearCall& call, uint32_t output_tile, uint32_t row_tile,
                                    uint32_t tile_rows, Work* work) {
  const bool known = WeightsAreKnown(call);
  if (!known) FollowEarlier();
  const bool found = FindWork(call, output_tile, row_tile, tile_rows, work);
  if (known && !found) FollowEarlier();
  return found;
}

// Rows of x as operand B: the 16-byte pieces that one of kThreads threads copies, of every tile of
// inputs. Beyond the rows of the work, zeros.
template <int kRows, int kThreads>
class RowCopies {
 public:
  static constexpr int kPieces = kRows * 8 > kThreads ? kRows * 8 / kThreads : 1;
  static_assert(kThreads % 8 == 0);

  __device__ RowCopies(const LinearCall& call, const Work& work, uint32_t thread)
      : row_(thread / 8),
        piece_(thread % 8),
        x_(static_cast<const Bf16*>(call.x) + work.column + piece_ * 8) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t row = row_ + i * (kThreads / 8);
      real_[i] = row < work.rows;
      const uint32_t at = work.row + (real_[i] ? row : 0);
      const uint64_t source = call.gather == nullptr ? at : call.gather[at];
      from_[i] = static_cast<uint32_t>(source * call.x_stride / 8);
    }
  }
  __device__ void Queue(uint32_t input_tile, uint32_t to) const {
    const Bf16* const x = x_ + input_tile * kTileInputs;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t row = row_ + i * (kThreads / 8);
      if (kRows * 8 < kThreads && row >= kRows) return;
      CopyAsync16(to + SwizzledOffset(row, piece_), x + uint64_t{from_[i]} * 8, real_[i]);
    }
  }

 private:
  uint32_t row_, piece_;
  const Bf16* x_;
  uint32_t from_[kPieces];  // Eights of values from there.
  bool real_[kPieces];
};

// The same for kTiles tiles of inputs at a time, which lie one behind the other: as many pieces for
// every thread however few the rows. Beyond the rows of the work, zeros; or, of many rows, where
// that is quicker, what was there: a row's sums are its own.
template <int kRows, int kThreads, int kTiles>
class StageCopies {
 public:
  __device__ StageCopies(const LinearCall& call, const Work& work, uint32_t thread)
      : tile_(static_cast<int>(thread / kTilePieces)) {
#pragma unroll
    for (int i = 0; i < kSources; ++i) {
      const uint32_t row = thread % kTilePieces / 8 + i * (kThreads / 8);
      real_[i] = row < work.rows;
      const uint32_t at = work.row + (real_[i] ? row : 0);
      const uint64_t source = call.gather == nullptr ? at : call.gather[at];
      from_[i] = static_cast<const Bf16*>(call.x) + source * call.x_stride + work.column +
                 tile_ * kTileInputs + thread % 8 * 8;
    }
    to_ = tile_ * kTileBytes + SwizzledOffset(thread % kTilePieces / 8, thread % 8);
  }
  // The next tiles, of `left` that are left.
  __device__ void Queue(int left, uint32_t to) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const int source = i % kSources;
      const int tile = kSources > 1 ? i / kSources : i * (kThreads / kTilePieces);
      if ((kRows < kManyRows || real_[source]) && tile_ + tile < left) {
        CopyAsync16(to + to_ + tile * kTileBytes + source * (kThreads / 8 * 128),
                    from_[source] + tile * static_cast<int>(kTileInputs), real_[source]);
      }
    }
#pragma unroll
    for (int i = 0; i < kSources; ++i) from_[i] += kTiles * kTileInputs;
  }

 private:
  static constexpr int kTilePieces = kRows * 8;
  static constexpr int kTileBytes = kRows * 128;
  static constexpr int kPieces = kTiles * kTilePieces / kThreads;
  static constexpr int kSources = kTilePieces > kThreads ? kTilePieces / kThreads : 1;
  static_assert(kPieces > 0 && kTiles * kTilePieces % kThreads == 0);
  int tile_;  // Of the first piece.
  uint32_t to_;
  const Bf16* from_[kSources];
  bool real_[kSources];
};

// So many steps of 16 inputs. `rows`: SwizzledRows of the tile of x, from the first step on.
template <int kRows, int kSteps>
__device__ inline void MultiplySteps(float (&sums)[kRows / 2], uint32_t (&a)[kSteps][4],
                                     uint64_t rows) {
#pragma unroll
  for (auto& step : a) Hold(step);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    Wgmma<kRows>::Run(sums, a[step], FurtherOn(rows, step * 32), 1);
  }
  WgmmaCommit();
}

// The four steps of a tile for eight rows, by every warp for itself: fewer instructions, and the
// same sums to the last bit. `at`: of the tile of x.
__device__ inline void MultiplyTileByWarps(float (&sums)[4], const uint32_t (&a)[4][4],
                                           uint32_t at) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    uint32_t rows[4];
    LoadMatrices(at + SwizzledOffset(lane % 8, half * 4 + lane / 8), rows);
    Multiply16x8(sums, a[half * 2], rows[0], rows[1]);
    Multiply16x8(sums, a[half * 2 + 1], rows[2], rows[3]);
  }
}

// ---- Sums to y ---------------------------------------------------------------------------------

// Of a warpgroup, by a constant number: checkers follow no others.
__device__ inline void BarrierOfGroup(uint32_t group) {
  switch (group) {
    case 0:
      return GroupBarrier<1>(kGroupThreads);
    case 1:
      return GroupBarrier<2>(kGroupThreads);
    case 2:
      return GroupBarrier<3>(kGroupThreads);
    default:
      return GroupBarrier<4>(kGroupThreads);
  }
}

__device__ inline float Silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Where the warps of a warpgroup exchange the largest values of kColumns rows of y.
template <int kColumns>
struct LargestRoom {
  float of_warp[4][kColumns];
};

// The warpgroup's 64 outputs of kColumns rows of y, from `column` of the work on.
template <int kColumns>
__device__ inline void Store(const LinearCall& call, const Work& work, uint32_t column,
                             uint32_t first_output, float (&sums)[kColumns / 2], uint32_t group,
                             LargestRoom<kColumns>& room) {
  const uint32_t thread = threadIdx.x % kGroupThreads, warp = thread / 32, lane = thread % 32;
  const uint32_t output = first_output + warp * 16 + lane / 4;
  const bool swiglu = call.output == LinearOutput::kSwiglu;
  const auto row_of = [&](int i, int j) { return column + i * 2 + lane % 4 * 2 + j; };
  if (swiglu) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float gate = fminf(RoundBf16(sums[i + j]), call.limit);
        const float up = fminf(fmaxf(RoundBf16(sums[i + 2 + j]), -call.limit), call.limit);
        const bool weighted = call.row_weights != nullptr && row_of(i, j) < work.rows;
        const float weight = weighted ? call.row_weights[work.row + row_of(i, j)] : 1.0f;
        sums[i + j] = RoundBf16(Silu(gate) * up * weight);
        sums[i + 2 + j] = 0;
      }
    }
  }
  // A group of quantiser A is all 32 inner values of a row, or the outputs of two warps.
  if (swiglu || call.output == LinearOutput::kRounded) {
    BarrierOfGroup(group);  // What was here before was read.
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (!swiglu) {
          sums[i + j] = RoundBf16(sums[i + j]);
          sums[i + 2 + j] = RoundBf16(sums[i + 2 + j]);
        }
        float largest = fmaxf(fabsf(sums[i + j]), fabsf(sums[i + 2 + j]));
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, step));
        }
        if (lane < 4) room.of_warp[warp][i * 2 + lane * 2 + j] = largest;
      }
    }
    BarrierOfGroup(group);
#pragma unroll
    for (int i = 0; i < kColumns / 2; i += 4) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint32_t at = i * 2 + lane % 4 * 2 + j;
        float largest = fmaxf(room.of_warp[warp][at], room.of_warp[warp ^ 1][at]);
        if (swiglu) {
          largest = fmaxf(largest, fmaxf(room.of_warp[warp ^ 2][at], room.of_warp[warp ^ 3][at]));
        }
        const uint32_t code = ScaleA(largest);
        sums[i + j] = RoundA(sums[i + j], code);
        if (!swiglu) sums[i + 2 + j] = RoundA(sums[i + 2 + j], code);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kColumns / 2; i += 4) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (row_of(i, j) >= work.rows) continue;
      const uint64_t begin = (uint64_t{work.row} + row_of(i, j)) * call.y_stride;
      if (swiglu) {
        const uint32_t inner = first_output / 2 + warp * 8 + lane / 4;
        if (2 * inner < call.matrix.outputs) {
          static_cast<Bf16*>(call.y)[begin + inner] = ToBf16(sums[i + j]);
        }
        continue;
      }
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if (output + 8 * k >= call.matrix.outputs) continue;
        const uint64_t at = begin + output + 8 * k;
        if (call.output == LinearOutput::kFloat) {
          static_cast<float*>(call.y)[at] = sums[i + 2 * k + j];
        } else {
          static_cast<Bf16*>(call.y)[at] = ToBf16(sums[i + 2 * k + j]);
        }
      }
    }
  }
}

// The same through shared memory, where rows of bf16 values lie so that several threads store a row
// together: StageSums, a barrier, StoreRows. Not for floats.
constexpr uint32_t kStagedRow = 64 + 8;  // Values; so much apart, rows lie in all banks.
constexpr uint32_t kStagedRowBytes = kStagedRow * 2;

template <int kColumns>
__device__ inline void StageSums(const float (&sums)[kColumns / 2], Bf16* staged) {
  constexpr int kEights = kColumns / 8;
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  // Of the matrices of 8 rows and 8 outputs a lane gives the address of a row: by turns of the
  // warp's first and last outputs.
  const uint32_t row = lane / 16 % kEights * 8 + lane % 8, output = warp * 16 + lane / 8 % 2 * 8;
  const uint32_t to = SharedAddress(staged + row * kStagedRow + output);
#pragma unroll
  for (int eight = 0; eight < kEights; eight += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4 && eight * 4 + 2 * i < kColumns / 2; ++i) {
      pairs[i] = PairBits(sums[eight * 4 + 2 * i], sums[eight * 4 + 2 * i + 1]);
    }
    const uint32_t at = to + eight * 8 * kStagedRowBytes;
    if constexpr (kEights > 1) {
      StoreMatrices(at, pairs);
    } else {
      StoreTwoMatrices(at, pairs[0], pairs[1]);
    }
  }
}

struct Eight {
  __device__ explicit Eight(const uint4& bits) : pairs{bits.x, bits.y, bits.z, bits.w} {}
  __device__ float operator[](int i) const {
    return __uint_as_float(i % 2 == 0 ? pairs[i / 2] << 16 : pairs[i / 2] & 0xffff0000u);
  }
  uint32_t pairs[4];
};
__device__ inline uint4 PackEight(const float (&values)[8]) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = PairBits(values[2 * i], values[2 * i + 1]);
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
// Eight neighbours through quantiser A, with those of the three threads beside.
__device__ inline uint4 RoundEight(const float (&values)[8]) {
  float largest = 0, rounded[8];
#pragma unroll
  for (const float value : values) largest = fmaxf(largest, fabsf(value));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffff, largest, 2));
  const uint32_t code = ScaleA(largest);
#pragma unroll
  for (int i = 0; i < 8; ++i) rounded[i] = RoundA(values[i], code);
  return PackEight(rounded);
}

// Of `rows` staged rows those before `real` to rows from `row` on of y, by all threads of a
// warpgroup. Code that runs once comes from HBM, and is kept short.
__device__ inline void StoreRows(const LinearCall& call, uint64_t row, uint32_t real, uint32_t rows,
                                 uint32_t first_output, const Bf16* staged) {
  const bool swiglu = call.output == LinearOutput::kSwiglu;
  const uint32_t thread = threadIdx.x % kGroupThreads;
  const uint32_t threads = swiglu ? 4 : 8;  // Of a row.
  const uint32_t step = kGroupThreads / threads;
  const uint32_t outputs = swiglu ? call.matrix.outputs / 2 : call.matrix.outputs;
  const uint32_t at = thread % threads, first = (swiglu ? first_output / 2 : first_output) + at * 8;
  const bool whole = first + 8 <= outputs && call.y_stride % 8 == 0;
  const auto from = [&](uint32_t r) {
    return reinterpret_cast<const uint4*>(staged + r * kStagedRow) + (swiglu ? 2 * at : at);
  };
  const auto to = [&](uint32_t r) {
    return static_cast<Bf16*>(call.y) + (row + r) * call.y_stride + first;
  };
  if (whole && call.output == LinearOutput::kBf16) {
#pragma unroll 4
    for (uint32_t r = thread / threads; r < min(rows, real); r += step) {
      *reinterpret_cast<uint4*>(to(r)) = *from(r);
    }
    return;
  }
#pragma unroll 1
  for (uint32_t r = thread / threads; r < rows; r += step) {
    uint4 bits = *from(r);
    if (call.output != LinearOutput::kBf16) {
      float values[8];
      const Eight a(bits);
#pragma unroll
      for (int i = 0; i < 8; ++i) values[i] = a[i];
      if (swiglu) {
        const Eight c(from(r)[1]);
        const bool weighted = call.row_weights != nullptr && r < real;
        const float weight = weighted ? call.row_weights[row + r] : 1.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float gate = fminf(a[i], call.limit);
          const float up = fminf(fmaxf(c[i], -call.limit), call.limit);
          values[i] = RoundBf16(Silu(gate) * up * weight);
        }
      }
      bits = RoundEight(values);
    }
    if (r >= real) continue;
    if (whole) {
      *reinterpret_cast<uint4*>(to(r)) = bits;
    } else {
      const Eight values(bits);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (first + i < outputs) to(r)[i] = ToBf16(values[i]);
      }
    }
  }
}

// Float sums of an eight of rows, from `column` of the work on.
__device__ inline void StoreFloats(const LinearCall& call, const Work& work, uint32_t column,
                                   uint32_t first_output, const float (&sums)[4]) {
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  const uint32_t output = first_output + warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t row = column + lane % 4 * 2 + i % 2, at = output + i / 2 * 8;
    if (row < work.rows && at < call.matrix.outputs) {
      static_cast<float*>(call.y)[(uint64_t{work.row} + row) * call.y_stride + at] = sums[i];
    }
  }
}

// ---- Launching ---------------------------------------------------------------------------------

// launch(format), for the format as a constant.
template <typename Launch>
cudaError_t ByFormat(WeightFormat format, Launch&& launch) {
  switch (format) {
    case WeightFormat::kBf16:
      return launch(std::integral_constant<WeightFormat, WeightFormat::kBf16>());
    case WeightFormat::kFp8:
      return launch(std::integral_constant<WeightFormat, WeightFormat::kFp8>());
    case WeightFormat::kFp4:
      return launch(std::integral_constant<WeightFormat, WeightFormat::kFp4>());
  }
  return cudaErrorInvalidValue;
}

// Queues `kernel` with so much shared memory, in clusters along x.
template <auto kKernel, typename... Arguments>
cudaError_t Queue(dim3 grid, uint32_t threads, uint32_t shared, uint32_t cluster,
                  cudaStream_t stream, const Arguments&... arguments) {
  const cudaError_t ready = AllowShared<kKernel>(kSharedMax);
  if (ready != cudaSuccess) return ready;
  return QueueNext(kKernel, {grid, threads, shared, cluster}, stream, arguments...);
}

}  // namespace reprise::engine::cuda
