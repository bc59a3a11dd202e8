#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"

// What stands around the products of attention: norms, rotations, quantiser A, window rows.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256;

__global__ void RoundRows(const Bf16Bits* x, uint64_t count, Bf16Bits* y) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;  // Whole warps: count is a multiple of 32.
  const float value = ToFloat(AsBf16(x)[i]);
  AsBf16(y)[i] = ToBf16(RoundA(value, ScaleA(WarpMax(fabsf(value)))));
}

// 1 / rms of `count` values that `value(i)` gives.
template <typename Value>
__device__ inline float InverseRms(uint32_t count, float eps, float* room, Value&& value) {
  float squares = 0;
  for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
    squares = fmaf(value(i), value(i), squares);
  }
  return 1.0f / sqrtf(BlockSum(squares, room) / static_cast<float>(count) + eps);
}

__global__ void Norm(const Bf16Bits* x, uint64_t x_stride, const float* weight, uint32_t count,
                     float eps, bool round, Bf16Bits* y, uint64_t y_stride) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ float room[33];
  const Bf16* from = AsBf16(x) + blockIdx.x * x_stride;
  const float scale = InverseRms(count, eps, room, [&](uint32_t i) { return ToFloat(from[i]); });
  Bf16* to = AsBf16(y) + blockIdx.x * y_stride;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    float value = RoundBf16(ToFloat(from[i]) * scale * weight[i]);
    if (round) value = RoundA(value, ScaleA(WarpMax(fabsf(value))));
    to[i] = ToBf16(value);
  }
}

// Value i of a row whose last 2 pairs values are turned; `value` gives them before.
template <typename Value>
__device__ inline float Turned(uint32_t i, uint32_t dim, uint32_t pairs, const float* cosines,
                               const float* sines, Value&& value) {
  const uint32_t begin = dim - 2 * pairs;
  if (i < begin) return value(i);
  const uint32_t pair = (i - begin) / 2, even = i - (i - begin) % 2;
  const float a = value(even), b = value(even + 1);
  const float c = cosines[pair], s = sines[pair];
  return RoundBf16(i == even ? a * c - b * s : a * s + b * c);
}

// Where a row's window row goes, unless a later one of its part takes the place.
struct RingSlot {
  __device__ RingSlot(const StepView& step, const WindowView& windows, uint64_t row) {
    const DevicePart& part = step.part[step.part_of_row[row]];
    const uint32_t slot = step.positions[row] % windows.ring_rows;
    uint8_t* layer = reinterpret_cast<uint8_t*>(part.window + windows.layer_offset);
    real = row + windows.ring_rows >= part.row + part.rows;
    codes = layer + uint64_t{slot} * windows.code_bytes;
    scales = layer + uint64_t{windows.ring_rows} * windows.code_bytes +
             uint64_t{slot} * windows.scale_bytes;
  }
  uint8_t* codes;
  uint8_t* scales;
  bool real;
};

__global__ __launch_bounds__(kThreads) void Projected(ProjectedCall call, WindowView windows,
                                                      bool to_ring) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ float room[33];
  extern __shared__ float values[];
  const uint64_t row = blockIdx.x;
  const uint32_t dim = call.dim;
  Bf16* const low = AsBf16(call.projected) + row * (call.low + dim);
  if (blockIdx.y == 1) {
    for (uint32_t i = threadIdx.x; i < call.low; i += kThreads) values[i] = ToFloat(low[i]);
    __syncthreads();
    const float scale = InverseRms(call.low, call.eps, room, [&](uint32_t i) { return values[i]; });
    for (uint32_t i = threadIdx.x; i < call.low; i += kThreads) {
      const float value = RoundBf16(values[i] * scale * call.q_norm[i]);
      low[i] = ToBf16(RoundA(value, ScaleA(WarpMax(fabsf(value)))));
    }
    return;
  }
  const Bf16* const kv = low + call.low;
  const float scale = InverseRms(dim, call.eps, room, [&](uint32_t i) { return ToFloat(kv[i]); });
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    values[i] = RoundBf16(ToFloat(kv[i]) * scale * call.kv_norm[i]);
  }
  __syncthreads();
  const float* cosines = call.step.cosines[call.rotation] + row * call.step.pairs;
  const float* sines = call.step.sines[call.rotation] + row * call.step.pairs;
  const RingSlot ring(call.step, windows, row);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    const float value =
        Turned(i, dim, call.step.pairs, cosines, sines, [&](uint32_t k) { return values[k]; });
    const auto scale_code = static_cast<uint8_t>(ScaleA(WarpMax(fabsf(value))));
    const uint8_t code = CodeA(value, scale_code);
    call.codes[row * dim + i] = code;
    if (i % 32 == 0) call.scales[row * (dim / 32) + i / 32] = scale_code;
    if (!to_ring || !ring.real) continue;
    ring.codes[i] = code;
    if (i % 32 == 0) ring.scales[i / 32] = scale_code;
  }
}

__global__ void RotateHeads(StepView step, int rotation, Bf16Bits* q, uint32_t heads,
                            uint32_t dim) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const uint32_t pairs = step.pairs;
  for (uint32_t i = threadIdx.x; i < heads * pairs; i += blockDim.x) {
    const uint32_t head = i / pairs, pair = i % pairs;
    Bf16* x = AsBf16(q) + (row * heads + head) * dim + dim - 2 * pairs + 2 * pair;
    const float a = ToFloat(x[0]), b = ToFloat(x[1]);
    const float c = step.cosines[rotation][row * pairs + pair];
    const float s = step.sines[rotation][row * pairs + pair];
    x[0] = ToBf16(a * c - b * s);
    x[1] = ToBf16(a * s + b * c);
  }
}

__global__ void WriteWindows(StepView step, WindowView windows, const uint8_t* codes,
                             const uint8_t* scales) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const RingSlot ring(step, windows, row);
  if (!ring.real) return;
  for (uint32_t i = threadIdx.x; i < windows.code_bytes; i += blockDim.x) {
    ring.codes[i] = codes[row * windows.code_bytes + i];
  }
  for (uint32_t i = threadIdx.x; i < windows.scale_bytes; i += blockDim.x) {
    ring.scales[i] = scales[row * windows.scale_bytes + i];
  }
}

}  // namespace

cudaError_t LaunchRoundA(const Bf16Bits* x, uint64_t count, Bf16Bits* y, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<uint32_t>((count + kThreads - 1) / kThreads);
  return QueueNext(RoundRows, {blocks, kThreads}, stream, x, count, y);
}

cudaError_t LaunchNorm(const Bf16Bits* x, uint64_t x_stride, const float* weight, uint32_t count,
                       uint32_t rows, float eps, bool round, Bf16Bits* y, uint64_t y_stride,
                       cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  return QueueNext(Norm, {rows, kThreads}, stream, x, x_stride, weight, count, eps, round, y,
                   y_stride);
}

cudaError_t LaunchProjected(const ProjectedCall& call, cudaStream_t stream) {
  const dim3 grid(call.step.rows, call.q_norm == nullptr ? 1 : 2);
  const bool to_ring = call.ring != nullptr;
  const uint32_t shared = max(call.low, call.dim) * sizeof(float);
  return QueueNext(Projected, {grid, kThreads, shared}, stream, call,
                   to_ring ? *call.ring : WindowView{.ring_rows = 1}, to_ring);
}

cudaError_t LaunchRotateHeads(const StepView& step, int rotation, Bf16Bits* q, uint32_t heads,
                              uint32_t dim, cudaStream_t stream) {
  return QueueNext(RotateHeads, {step.rows, kThreads}, stream, step, rotation, q, heads, dim);
}

cudaError_t LaunchWriteWindows(const StepView& step, const WindowView& windows,
                               const uint8_t* codes, const uint8_t* scales, cudaStream_t stream) {
  return QueueNext(WriteWindows, {step.rows, 128}, stream, step, windows, codes, scales);
}

}  // namespace reprise::engine::cuda
