#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"

// Streams and single-pass hyper-connections (model-facts section 7).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kCopies = 4;
constexpr uint32_t kMixThreads = 128;
constexpr uint32_t kMixRows = 4;  // Of a block: they share fn.
constexpr uint32_t kCollapseThreads = 256;

__global__ void Rotations(const uint32_t* positions, uint32_t rows, const float* frequencies,
                          uint32_t pairs, float* cosines, float* sines) {
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * pairs) return;
  // Rounded to float first, as the reference does; then as exact as can be.
  const double angle = __fmul_rn(static_cast<float>(positions[i / pairs]), frequencies[i % pairs]);
  cosines[i] = static_cast<float>(cos(angle));
  sines[i] = static_cast<float>(sin(angle));
}

__global__ void Embed(StepView step, const Bf16Bits* table, const Bf16Bits* image_rows,
                      const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre) {
  const uint64_t row = blockIdx.x;
  const Bf16Bits* from = step.image[row] != 0
                             ? image_rows + uint64_t{image_index[row]} * hidden
                             : table + static_cast<uint64_t>(step.tokens[row]) * hidden;
  for (uint32_t d = threadIdx.x; d < hidden; d += blockDim.x) {
    for (uint32_t copy = 0; copy < kCopies; ++copy) {
      stream[(row * kCopies + copy) * hidden + d] = from[d];
    }
  }
  if (threadIdx.x < kCopies) pre[row * kCopies + threadIdx.x] = threadIdx.x == 0 ? 1.0f : 0.0f;
}

__global__ __launch_bounds__(kMixThreads) void Mix(StreamShape shape, uint32_t rows,
                                                   const Bf16Bits* stream, const float* fn,
                                                   float* partials) {
  const uint32_t width = kCopies * shape.hidden, piece = width / shape.chunks;
  const uint32_t begin = blockIdx.x * piece;
  const uint32_t row = blockIdx.y * kMixRows;
  float sums[kMixRows][kMixes + 1];
#pragma unroll
  for (auto& of_row : sums) {
#pragma unroll
    for (float& sum : of_row) sum = 0;
  }
  for (uint32_t i = threadIdx.x; i < piece; i += kMixThreads) {
    float value[kMixRows];
#pragma unroll
    for (uint32_t r = 0; r < kMixRows; ++r) {
      const uint64_t at = row + min(r, rows - 1 - row);
      value[r] = ToFloat(AsBf16(stream)[at * width + begin + i]);
      sums[r][kMixes] = fmaf(value[r], value[r], sums[r][kMixes]);
    }
#pragma unroll
    for (uint32_t mix = 0; mix < kMixes; ++mix) {
      const float weight = fn[uint64_t{mix} * width + begin + i];
#pragma unroll
      for (uint32_t r = 0; r < kMixRows; ++r) {
        sums[r][mix] = fmaf(weight, value[r], sums[r][mix]);
      }
    }
  }
  __shared__ float warps[kMixThreads / 32][kMixRows][kMixes + 1];
#pragma unroll
  for (uint32_t r = 0; r < kMixRows; ++r) {
#pragma unroll
    for (uint32_t mix = 0; mix <= kMixes; ++mix) {
      const float sum = WarpSum(sums[r][mix]);
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32][r][mix] = sum;
    }
  }
  __syncthreads();
  const uint32_t r = threadIdx.x / 32, mix = threadIdx.x % 32;
  if (mix > kMixes || row + r >= rows) return;
  float sum = 0;
  for (uint32_t warp = 0; warp < kMixThreads / 32; ++warp) sum += warps[warp][r][mix];
  partials[((uint64_t{row} + r) * shape.chunks + blockIdx.x) * kPartials + mix] = sum;
}

__device__ inline float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Of one row, by the first warp: lane i holds mix i.
__device__ void SplitMixes(const StreamShape& shape, const float* partials, const MixWeights& w,
                           float* pre_next, float* post, float* comb) {
  constexpr uint32_t kAll = 0xffffffff;
  const uint32_t lane = threadIdx.x;
  float sum = 0;
  for (uint32_t chunk = 0; chunk < shape.chunks; ++chunk) {
    sum += lane <= kMixes ? partials[chunk * kPartials + lane] : 0.0f;
  }
  const float squares = __shfl_sync(kAll, sum, kMixes);
  const float rms = 1.0f / sqrtf(squares / static_cast<float>(kCopies * shape.hidden) + shape.eps);
  const uint32_t mix = min(lane, kMixes - 1);
  const uint32_t kind = mix < kCopies ? 0 : mix < 2 * kCopies ? 1 : 2;
  const float m = __fadd_rn(__fmul_rn(__fmul_rn(sum, rms), w.scale[kind]), w.base[mix]);
  if (lane < kCopies) pre_next[lane] = Sigmoid(m) + w.eps;
  if (lane >= kCopies && lane < 2 * kCopies) post[lane - kCopies] = 2.0f * Sigmoid(m);

  // Lanes 8 to 23 hold C, row-major; all lanes take part in the shuffles.
  const uint32_t i = lane >= 8 && lane < 24 ? lane - 8 : 0;
  const uint32_t row = 8 + i / 4 * 4, column = 8 + i % 4;
  float c = m;
  const auto row_value = [&](uint32_t k) { return __shfl_sync(kAll, c, row + k); };
  const auto row_sum = [&] {
    const float c0 = row_value(0), c1 = row_value(1), c2 = row_value(2), c3 = row_value(3);
    return ((c0 + c1) + c2) + c3;
  };
  const auto column_sum = [&] {
    const float c0 = __shfl_sync(kAll, c, column), c1 = __shfl_sync(kAll, c, column + 4);
    const float c2 = __shfl_sync(kAll, c, column + 8), c3 = __shfl_sync(kAll, c, column + 12);
    return ((c0 + c1) + c2) + c3;
  };
  const float c0 = row_value(0), c1 = row_value(1), c2 = row_value(2), c3 = row_value(3);
  const float top = fmaxf(fmaxf(c0, c1), fmaxf(c2, c3));
  c = expf(c - top);
  c = c / row_sum() + w.eps;
  for (uint32_t turn = 0; turn < w.iterations; ++turn) {
    if (turn > 0) c = c / (row_sum() + w.eps);
    c = c / (column_sum() + w.eps);
  }
  if (lane >= 8 && lane < 24) comb[lane - 8] = c;
}

__global__ __launch_bounds__(kCollapseThreads) void Collapse(
    StreamShape shape, const Bf16Bits* stream, const float* pre, const float* partials,
    MixWeights mix, const float* norm, Bf16Bits* y_out, Bf16Bits* x_out, Bf16Bits* x_round,
    float* pre_next, float* post, float* comb) {
  extern __shared__ float y[];  // [hidden], then room.
  const uint64_t row = blockIdx.x;
  const uint32_t hidden = shape.hidden;
  const Bf16* x = AsBf16(stream) + row * kCopies * hidden;
  const float4 weights = reinterpret_cast<const float4*>(pre)[row];
  float squares = 0;
  for (uint32_t d = threadIdx.x; d < hidden; d += kCollapseThreads) {
    float sum = ToFloat(x[d]) * weights.x;
    sum = fmaf(ToFloat(x[hidden + d]), weights.y, sum);
    sum = fmaf(ToFloat(x[2 * hidden + d]), weights.z, sum);
    sum = fmaf(ToFloat(x[3 * hidden + d]), weights.w, sum);
    const float value = RoundBf16(sum);
    y[d] = value;
    if (y_out != nullptr) AsBf16(y_out)[row * hidden + d] = ToBf16(value);
    squares = fmaf(value, value, squares);
  }
  const float mean = BlockSum(squares, y + hidden) / static_cast<float>(hidden) + shape.eps;
  const float scale = 1.0f / sqrtf(mean);
  for (uint32_t d = threadIdx.x; d < hidden; d += kCollapseThreads) {  // Warps hold groups of 32.
    const float value = RoundBf16(y[d] * scale * norm[d]);
    AsBf16(x_out)[row * hidden + d] = ToBf16(value);
    if (x_round != nullptr) {
      const uint32_t code = ScaleA(WarpMax(fabsf(value)));
      AsBf16(x_round)[row * hidden + d] = ToBf16(RoundA(value, code));
    }
  }
  if (partials != nullptr && threadIdx.x < 32) {
    SplitMixes(shape, partials + row * shape.chunks * kPartials, mix, pre_next + row * kCopies,
               post + row * kCopies, comb + row * kCopies * kCopies);
  }
}

__global__ void Update(StreamShape shape, const Bf16Bits* h, const float* post, const float* comb,
                       Bf16Bits* stream) {
  const uint64_t row = blockIdx.y;
  const uint32_t d = (blockIdx.x * blockDim.x + threadIdx.x) * 2, hidden = shape.hidden;
  if (d >= hidden) return;
  __nv_bfloat162* x =
      reinterpret_cast<__nv_bfloat162*>(AsBf16(stream) + row * kCopies * hidden + d);
  const float2 added =
      __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(AsBf16(h) + row * hidden + d));
  float2 old[kCopies];
#pragma unroll
  for (uint32_t c = 0; c < kCopies; ++c) old[c] = __bfloat1622float2(x[c * (hidden / 2)]);
#pragma unroll
  for (uint32_t k = 0; k < kCopies; ++k) {
    const float* mixing = comb + row * kCopies * kCopies + k;
    float2 mixed = {old[0].x * mixing[0], old[0].y * mixing[0]};
#pragma unroll
    for (uint32_t a = 1; a < kCopies; ++a) {
      mixed.x = fmaf(old[a].x, mixing[a * kCopies], mixed.x);
      mixed.y = fmaf(old[a].y, mixing[a * kCopies], mixed.y);
    }
    const float weight = post[row * kCopies + k];
    x[k * (hidden / 2)] =
        __floats2bfloat162_rn(fmaf(weight, added.x, mixed.x), fmaf(weight, added.y, mixed.y));
  }
}

__global__ void Tap(uint32_t hidden, const Bf16Bits* stream, uint32_t tap, uint32_t targets,
                    Bf16Bits* out) {
  const uint64_t row = blockIdx.x;
  const Bf16* x = AsBf16(stream) + row * kCopies * hidden;
  for (uint32_t d = threadIdx.x; d < hidden; d += blockDim.x) {
    const float sum = ((ToFloat(x[d]) + ToFloat(x[hidden + d])) + ToFloat(x[2 * hidden + d])) +
                      ToFloat(x[3 * hidden + d]);
    AsBf16(out)[(row * targets + tap) * hidden + d] = ToBf16(sum * 0.25f);
  }
}

__global__ void GatherRows(const uint4* from, const uint32_t* index, uint32_t pieces, uint4* to) {
  const uint64_t row = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    to[row * pieces + i] = from[uint64_t{index[row]} * pieces + i];
  }
}

}  // namespace

cudaError_t LaunchRotations(const uint32_t* positions, uint32_t rows, const float* frequencies,
                            uint32_t pairs, float* cosines, float* sines, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  Rotations<<<(rows * pairs + 255) / 256, 256, 0, stream>>>(positions, rows, frequencies, pairs,
                                                            cosines, sines);
  return cudaGetLastError();
}

uint32_t StreamChunks(uint32_t hidden) {
  constexpr uint32_t kPieceMax = 1280;
  uint32_t chunks = (kCopies * hidden + kPieceMax - 1) / kPieceMax;
  while (kCopies * hidden % chunks != 0) ++chunks;
  return chunks;
}

cudaError_t LaunchEmbed(const StepView& step, const Bf16Bits* table, const Bf16Bits* image_rows,
                        const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre,
                        cudaStream_t cuda) {
  Embed<<<step.rows, 256, 0, cuda>>>(step, table, image_rows, image_index, hidden, stream, pre);
  return cudaGetLastError();
}

cudaError_t LaunchMix(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream,
                      const float* fn, float* partials, cudaStream_t cuda) {
  const dim3 grid(shape.chunks, (rows + kMixRows - 1) / kMixRows);
  Mix<<<grid, kMixThreads, 0, cuda>>>(shape, rows, stream, fn, partials);
  return cudaGetLastError();
}

cudaError_t LaunchCollapse(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream,
                           const float* pre, const float* partials, const MixWeights& mix,
                           const float* norm, Bf16Bits* y, Bf16Bits* x, Bf16Bits* x_round,
                           float* pre_next, float* post, float* comb, cudaStream_t cuda) {
  const size_t shared = (shape.hidden + 33) * sizeof(float);
  Collapse<<<rows, kCollapseThreads, shared, cuda>>>(shape, stream, pre, partials, mix, norm, y, x,
                                                     x_round, pre_next, post, comb);
  return cudaGetLastError();
}

cudaError_t LaunchUpdate(const StreamShape& shape, uint32_t rows, const Bf16Bits* h,
                         const float* post, const float* comb, Bf16Bits* stream,
                         cudaStream_t cuda) {
  constexpr uint32_t kThreads = 256;
  const dim3 grid((shape.hidden / 2 + kThreads - 1) / kThreads, rows);
  Update<<<grid, kThreads, 0, cuda>>>(shape, h, post, comb, stream);
  return cudaGetLastError();
}

cudaError_t LaunchTap(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream, uint32_t tap,
                      uint32_t targets, Bf16Bits* out, cudaStream_t cuda) {
  Tap<<<rows, 256, 0, cuda>>>(shape.hidden, stream, tap, targets, out);
  return cudaGetLastError();
}

cudaError_t LaunchGatherRows(const void* from, const uint32_t* index, uint32_t rows, uint32_t bytes,
                             void* to, cudaStream_t cuda) {
  if (rows == 0) return cudaSuccess;
  GatherRows<<<rows, 256, 0, cuda>>>(static_cast<const uint4*>(from), index, bytes / 16,
                                     static_cast<uint4*>(to));
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
