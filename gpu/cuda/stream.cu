#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"

// The stream where it begins and ends, and what is taken from it (model-facts section 7).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kCopies = 4;
constexpr uint32_t kCollapseThreads = 256;

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

__global__ void Embed(StepView step, const Bf16Bits* table, const Bf16Bits* image_rows,
                      const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre) {
  WaitForEarlier();
  LetNextBegin();
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

__global__ __launch_bounds__(kCollapseThreads) void Collapse(StreamShape shape,
                                                             const Bf16Bits* stream,
                                                             const float* pre, const float* norm,
                                                             Bf16Bits* y_out, Bf16Bits* x_out) {
  WaitForEarlier();
  LetNextBegin();
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
  for (uint32_t d = threadIdx.x; d < hidden; d += kCollapseThreads) {
    AsBf16(x_out)[row * hidden + d] = ToBf16(y[d] * scale * norm[d]);
  }
}

__global__ void Tap(uint32_t hidden, const Bf16Bits* stream, uint32_t tap, uint32_t targets,
                    Bf16Bits* out) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const Bf16* x = AsBf16(stream) + row * kCopies * hidden;
  for (uint32_t d = threadIdx.x; d < hidden; d += blockDim.x) {
    const float sum = ((ToFloat(x[d]) + ToFloat(x[hidden + d])) + ToFloat(x[2 * hidden + d])) +
                      ToFloat(x[3 * hidden + d]);
    AsBf16(out)[(row * targets + tap) * hidden + d] = ToBf16(sum * 0.25f);
  }
}

__global__ void GatherRows(const uint4* from, const uint32_t* index, uint32_t pieces, uint4* to) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < pieces; i += blockDim.x) {
    to[row * pieces + i] = from[uint64_t{index[row]} * pieces + i];
  }
}

}  // namespace

cudaError_t LaunchRotations(const RotationCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  return QueueNext(Rotations, {dim3((call.rows * call.pairs + 255) / 256, 2), 256}, stream, call);
}

cudaError_t LaunchEmbed(const StepView& step, const Bf16Bits* table, const Bf16Bits* image_rows,
                        const uint32_t* image_index, uint32_t hidden, Bf16Bits* stream, float* pre,
                        cudaStream_t cuda) {
  return QueueNext(Embed, {step.rows, 256}, cuda, step, table, image_rows, image_index, hidden,
                   stream, pre);
}

cudaError_t LaunchCollapse(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream,
                           const float* pre, const float* norm, Bf16Bits* y, Bf16Bits* x,
                           cudaStream_t cuda) {
  const uint32_t shared = (shape.hidden + 33) * sizeof(float);
  return QueueNext(Collapse, {rows, kCollapseThreads, shared}, cuda, shape, stream, pre, norm, y,
                   x);
}

cudaError_t LaunchTap(const StreamShape& shape, uint32_t rows, const Bf16Bits* stream, uint32_t tap,
                      uint32_t targets, Bf16Bits* out, cudaStream_t cuda) {
  return QueueNext(Tap, {rows, 256}, cuda, shape.hidden, stream, tap, targets, out);
}

cudaError_t LaunchGatherRows(const void* from, const uint32_t* index, uint32_t rows, uint32_t bytes,
                             void* to, cudaStream_t cuda) {
  if (rows == 0) return cudaSuccess;
  return QueueNext(GatherRows, {rows, 256}, cuda, static_cast<const uint4*>(from), index,
                   bytes / 16, static_cast<uint4*>(to));
}

}  // namespace reprise::engine::cuda
