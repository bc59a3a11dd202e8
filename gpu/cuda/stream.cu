#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/octets.cuh"

// The stream where it begins and ends, and what is taken from it (model-facts section 7).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kCopies = 4;
constexpr uint32_t kPieceThreads = 128, kCollapseThreads = 640;
constexpr uint32_t kSumThreads = 256;  // Of a collapse: they add up its squares.

__global__ void Rotations(RotationCall call) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x, kind = blockIdx.y;
  if (i >= call.rows * call.pairs) return;
  // Rounded to float first, as the reference does; then as exact as can be.
  const double angle = __fmul_rn(static_cast<float>(call.positions[i / call.pairs]),
                                 call.frequencies[kind][i % call.pairs]);
  call.cosines[kind][i] = static_cast<float>(cos(angle));
  call.sines[kind][i] = static_cast<float>(sin(angle));
}

// A thread takes eight values of a row.
__global__ __launch_bounds__(kPieceThreads) void Embed(StepView step, const Bf16Bits* table,
                                                       const Bf16Bits* image_rows,
                                                       const uint32_t* image_index, uint32_t hidden,
                                                       Bf16Bits* stream, float* pre) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const uint32_t piece = blockIdx.y * kPieceThreads + threadIdx.x, pieces = hidden / 8;
  if (piece < kCopies) pre[row * kCopies + piece] = piece == 0 ? 1.0f : 0.0f;
  if (piece >= pieces) return;
  const Bf16Bits* from = step.image[row] != 0
                             ? image_rows + uint64_t{image_index[row]} * hidden
                             : table + static_cast<uint64_t>(step.tokens[row]) * hidden;
  const uint4 eight = reinterpret_cast<const uint4*>(from)[piece];
#pragma unroll
  for (uint32_t copy = 0; copy < kCopies; ++copy) {
    reinterpret_cast<uint4*>(stream)[(row * kCopies + copy) * pieces + piece] = eight;
  }
}

__global__ __launch_bounds__(kCollapseThreads) void Collapse(StreamShape shape,
                                                             const Bf16Bits* stream,
                                                             const float* pre, const float* norm,
                                                             Bf16Bits* y, Bf16Bits* x) {
  extern __shared__ float values[];  // [hidden]: the collapse.
  __shared__ float room[kSumThreads / 32];
  const uint64_t row = blockIdx.x;
  const uint32_t hidden = shape.hidden, first = threadIdx.x * 8, step = kCollapseThreads * 8;
  // What a thread finds first stays in registers, as its weights of the norm do.
  Octet weights = {}, held = {};
  if (first < hidden) weights = Octet::At(norm + first);
  WaitForEarlier();
  LetNextBegin();
  const Bf16* const copies = AsBf16(stream) + row * kCopies * hidden;
  const float4 mix = reinterpret_cast<const float4*>(pre)[row];
  const auto collapsed = [&](uint32_t d) {
    const Octet a = Octet::At(copies + d), b = Octet::At(copies + hidden + d);
    const Octet c = Octet::At(copies + 2 * hidden + d), e = Octet::At(copies + 3 * hidden + d);
    Octet sum;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float one = a.values[i] * mix.x;
      one = fmaf(b.values[i], mix.y, one);
      one = fmaf(c.values[i], mix.z, one);
      sum.values[i] = RoundBf16(fmaf(e.values[i], mix.w, one));
    }
    return sum;
  };
  const auto keep = [&](uint32_t d, const Octet& octet) {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[d + i] = octet.values[i];
  };
  if (first < hidden) {
    held = collapsed(first);
    keep(first, held);
  }
  for (uint32_t d = first + step; d < hidden; d += step) keep(d, collapsed(d));
  __syncthreads();
  float squares = 0;
#pragma unroll 10
  for (uint32_t d = threadIdx.x; d < hidden && threadIdx.x < kSumThreads; d += kSumThreads) {
    squares = fmaf(values[d], values[d], squares);
  }
  const float mean =
      BlockSumOnce<kSumThreads>(squares, room) / static_cast<float>(hidden) + shape.eps;
  const float scale = 1.0f / sqrtf(mean);
  const auto store = [&](uint32_t d, const Octet& octet, const Octet& of_norm) {
    if (y != nullptr) octet.Store(AsBf16(y) + row * hidden + d);
    octet.Normed(scale, of_norm).Store(AsBf16(x) + row * hidden + d);
  };
  if (first < hidden) store(first, held, weights);
  for (uint32_t d = first + step; d < hidden; d += step) {
    store(d, collapsed(d), Octet::At(norm + d));
  }
}

__global__ __launch_bounds__(kPieceThreads) void Tap(uint32_t hidden, const Bf16Bits* stream,
                                                     uint32_t tap, uint32_t targets,
                                                     Bf16Bits* out) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const uint32_t d = (blockIdx.y * kPieceThreads + threadIdx.x) * 8;
  if (d >= hidden) return;
  const Bf16* const copies = AsBf16(stream) + row * kCopies * hidden + d;
  const Octet a = Octet::At(copies), b = Octet::At(copies + hidden);
  const Octet c = Octet::At(copies + 2 * hidden), e = Octet::At(copies + 3 * hidden);
  Octet mean;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    mean.values[i] = (((a.values[i] + b.values[i]) + c.values[i]) + e.values[i]) * 0.25f;
  }
  mean.Store(AsBf16(out) + (row * targets + tap) * hidden + d);
}

__global__ void GatherRows(const uint4* from, const uint32_t* index, uint32_t pieces, uint4* to) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    to[row * pieces + i] = from[uint64_t{index[row]} * pieces + i];
  }
}

// Blocks for rows of so many values, eight a thread.
dim3 Pieces(uint32_t rows, uint32_t values) {
  return {rows, (values / 8 + kPieceThreads - 1) / kPieceThreads};
}

}  // namespace

cudaError_t LaunchRotations(const RotationCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  return QueueNext(Rotations, {dim3((call.rows * call.pairs + 255) / 256, 2), 256}, stream, call);
}

cudaError_t LaunchEmbed(const StepView& step, const Bf16Bits* table, const Bf16Bits* image_rows,
                        const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre,
                        cudaStream_t cuda) {
  return QueueNext(Embed, {Pieces(step.rows, hidden), kPieceThreads}, cuda, step, table, image_rows,
                   image_index, hidden, stream, pre);
}

cudaError_t LaunchCollapse(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream,
                           const float* pre, const float* norm, Bf16Bits* y, Bf16Bits* x,
                           cudaStream_t cuda) {
  const uint32_t shared = shape.hidden * sizeof(float);
  return QueueNext(Collapse, {rows, kCollapseThreads, shared}, cuda, shape, stream, pre, norm, y,
                   x);
}

cudaError_t LaunchTap(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream, uint32_t tap,
                      uint32_t targets, Bf16Bits* out, cudaStream_t cuda) {
  return QueueNext(Tap, {Pieces(rows, shape.hidden), kPieceThreads}, cuda, shape.hidden, stream,
                   tap, targets, out);
}

cudaError_t LaunchGatherRows(const void* from, const uint32_t* index, uint32_t rows, uint32_t bytes,
                             void* to, cudaStream_t cuda) {
  if (rows == 0) return cudaSuccess;
  return QueueNext(GatherRows, {rows, 256}, cuda, static_cast<const uint4*>(from), index,
                   bytes / 16, static_cast<uint4*>(to));
}

}  // namespace reprise::engine::cuda
