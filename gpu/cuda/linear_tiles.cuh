#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/linear.h"
#include "gpu/cuda/wgmma.cuh"

// What the kernels of products share: weights from codes, rows of x on their way, one tile
// multiplied, sums stored.
namespace reprise::engine::cuda {

constexpr uint32_t kGroupThreads = 128;      // A warpgroup.
constexpr uint32_t kSharedMax = 200 * 1024;  // Of a block, beside what is static.
constexpr int kManyRows = 128;               // Of a tile that two warpgroups share.
constexpr int kManyGroups = 2;

// ---- Weights from codes ------------------------------------------------------------------------

// A thread's part of a tile as it is loaded: codes, and the scales of its two rows.
template <WeightFormat kFormat>
struct RawWeights {
  static constexpr uint32_t kBytes = TileBytes(kFormat);
  static constexpr int kPieces = kBytes / (kGroupThreads * 16);
  uint4 codes[kPieces];
  uint32_t scales;

  __device__ void Load(const LinearCall& call, uint64_t tile, uint32_t thread) {
    const uint4* from =
        static_cast<const uint4*>(call.matrix.codes) + tile * (kBytes / 16) + thread;
#pragma unroll
    for (int i = 0; i < kPieces; ++i) codes[i] = __ldg(from + i * kGroupThreads);
    if constexpr (kFormat != WeightFormat::kBf16) {
      constexpr uint32_t kScaleWords = kFormat == WeightFormat::kFp8 ? 4 : 32;
      const uint32_t word =
          kFormat == WeightFormat::kFp8 ? thread / 32 : thread / 32 * 8 + thread % 32 / 4;
      scales = __ldg(static_cast<const uint32_t*>(call.matrix.scales) + tile * kScaleWords + word);
    }
  }
};

// Both halves: 2^(scale - 127) x 2^bias, as bf16.
__device__ inline __nv_bfloat162 FactorOf(uint32_t scale, uint32_t bias) {
  const uint32_t half = (scale + bias) << 7;
  const uint32_t both = half | half << 16;
  return *reinterpret_cast<const __nv_bfloat162*>(&both);
}
__device__ inline uint32_t Scaled(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Codes as bf16 with the smallest exponents: E4M3 times 2^-120, E2M1 times 2^-126.
__device__ inline uint32_t SpreadE4m3(uint32_t bytes) {  // Bytes 1 and 3 hold codes.
  return (bytes & 0x80008000) | (bytes >> 4 & 0x07f007f0);
}
__device__ inline uint32_t SpreadE2m1(uint32_t nibbles) {  // The top nibble of each half.
  return (nibbles & 0x80008000) | (nibbles >> 6 & 0x01c001c0);
}

// Operand A of the four steps of a tile.
template <WeightFormat kFormat>
__device__ inline void Expand(const RawWeights<kFormat>& raw, uint32_t (&a)[4][4]) {
  if constexpr (kFormat == WeightFormat::kBf16) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      a[step][0] = raw.codes[step].x;
      a[step][1] = raw.codes[step].y;
      a[step][2] = raw.codes[step].z;
      a[step][3] = raw.codes[step].w;
    }
  } else {
    constexpr uint32_t kBias = kFormat == WeightFormat::kFp8 ? 120 : 126;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const __nv_bfloat162 upper = FactorOf(raw.scales >> (8 * half) & 255, kBias);
      const __nv_bfloat162 lower = FactorOf(raw.scales >> (16 + 8 * half) & 255, kBias);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int step = 2 * half + i;
        if constexpr (kFormat == WeightFormat::kFp8) {
          const uint4 codes = raw.codes[half];
          const uint32_t low = i == 0 ? codes.x : codes.z, high = i == 0 ? codes.y : codes.w;
          a[step][0] = Scaled(SpreadE4m3(__byte_perm(low, 0, 0x1404)), upper);
          a[step][1] = Scaled(SpreadE4m3(__byte_perm(low, 0, 0x3424)), lower);
          a[step][2] = Scaled(SpreadE4m3(__byte_perm(high, 0, 0x1404)), upper);
          a[step][3] = Scaled(SpreadE4m3(__byte_perm(high, 0, 0x3424)), lower);
        } else {
          const uint4 codes = raw.codes[0];
          const uint32_t word = step == 0   ? codes.x
                                : step == 1 ? codes.y
                                : step == 2 ? codes.z
                                            : codes.w;
          a[step][0] = Scaled(SpreadE2m1(word), upper);
          a[step][1] = Scaled(SpreadE2m1(word << 4), lower);
          a[step][2] = Scaled(SpreadE2m1(word << 8), upper);
          a[step][3] = Scaled(SpreadE2m1(word << 12), lower);
        }
      }
    }
  }
}

// ---- What a block works on ---------------------------------------------------------------------

struct Work {
  uint64_t first_tile;  // Of the weights, for this block's first 64 outputs.
  uint32_t output;      // First output.
  uint32_t row, rows;   // Of y.
  uint32_t column;      // First input's column in x.
};

__device__ inline bool FindWork(const LinearCall& call, uint32_t output_tile, uint32_t tile_rows,
                                Work* work) {
  uint64_t tile = output_tile;
  if (call.tiles != nullptr) {
    if (blockIdx.y >= *call.tile_count) return false;
    const ExpertTile expert = call.tiles[blockIdx.y];
    tile += uint64_t{expert.expert} * call.matrix.output_tiles;
    work->row = expert.first;
    work->rows = expert.rows;
  } else {
    work->row = blockIdx.y * tile_rows;
    work->rows = min(tile_rows, call.rows - work->row);
  }
  work->first_tile = tile * call.matrix.input_tiles;
  work->output = output_tile * kTileOutputs;
  work->column =
      call.block_outputs == 0 ? 0 : work->output / call.block_outputs * call.block_inputs;
  return true;
}

// Rows of x as operand B: the 16-byte pieces that one of kThreads threads copies, of every tile of
// inputs. Beyond the rows of the work, zeros.
template <int kRows, int kThreads>
class RowCopies {
 public:
  static constexpr int kPieces = kRows * 8 > kThreads ? kRows * 8 / kThreads : 1;
  static_assert(kThreads % 8 == 0);

  __device__ RowCopies(const LinearCall& call, const Work& work, uint32_t thread)
      : row_(thread / 8), piece_(thread % 8) {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t row = row_ + i * (kThreads / 8);
      real_[i] = row < work.rows;
      const uint32_t at = work.row + (real_[i] ? row : 0);
      const uint64_t source = call.gather == nullptr ? at : call.gather[at];
      from_[i] =
          static_cast<const Bf16*>(call.x) + source * call.x_stride + work.column + piece_ * 8;
    }
  }
  __device__ void Queue(uint32_t input_tile, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      const uint32_t row = row_ + i * (kThreads / 8);
      if (kRows * 8 < kThreads && row >= kRows) return;
      CopyAsync16(to + SwizzledOffset(row, piece_), from_[i] + input_tile * kTileInputs, real_[i]);
    }
  }

 private:
  uint32_t row_, piece_;
  const Bf16* from_[kPieces];
  bool real_[kPieces];
};

template <int kRows>
__device__ inline void MultiplyTile(float (&sums)[kRows / 2], uint32_t (&a)[4][4], uint32_t b,
                                    bool add) {
#pragma unroll
  for (auto& step : a) Hold(step);
  WgmmaFence();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    Wgmma<kRows>::Run(sums, a[step], SwizzledRows(b + step * 32), add || step > 0 ? 1 : 0);
  }
  WgmmaCommit();
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
        const float silu = gate / (1.0f + expf(-gate));
        const bool weighted = call.row_weights != nullptr && row_of(i, j) < work.rows;
        const float weight = weighted ? call.row_weights[work.row + row_of(i, j)] : 1.0f;
        sums[i + j] = RoundBf16(silu * up * weight);
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

// ---- Launching ---------------------------------------------------------------------------------

// Queues `kernel` with so much shared memory, which it is allowed once, in clusters along x.
template <auto kKernel>
cudaError_t Queue(const LinearCall& call, dim3 grid, uint32_t threads, uint32_t shared,
                  uint32_t cluster, cudaStream_t stream) {
  static const cudaError_t ready =
      cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax);
  if (ready != cudaSuccess) return ready;
  cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension, .val = {}};
  attribute.val.clusterDim = {.x = cluster, .y = 1, .z = 1};
  const cudaLaunchConfig_t config = {.gridDim = grid,
                                     .blockDim = dim3(threads),
                                     .dynamicSmemBytes = shared,
                                     .stream = stream,
                                     .attrs = &attribute,
                                     .numAttrs = cluster > 1 ? 1u : 0u};
  return cudaLaunchKernelEx(&config, kKernel, call);
}

}  // namespace reprise::engine::cuda
