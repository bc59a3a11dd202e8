#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mixes.cuh"
#include "gpu/cuda/octets.cuh"

// What stands around the products of attention: norms, rotations, quantiser A, window rows.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256;

// A thread takes eight values; whole groups of quantiser A: count is a multiple of 32.
__global__ __launch_bounds__(kThreads) void RoundRows(const Bf16Bits* x, uint64_t count,
                                                      Bf16Bits* y) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t i = (uint64_t{blockIdx.x} * kThreads + threadIdx.x) * 8;
  if (i >= count) return;
  const Octet octet = Octet::At(AsBf16(x) + i);
  octet.Rounded(ScaleA(LargestOfGroup(octet.Largest()))).Store(AsBf16(y) + i);
}

__global__ __launch_bounds__(kThreads) void Norm(const Bf16Bits* x, uint64_t x_stride,
                                                 const float* weight, uint32_t count, float eps,
                                                 bool round, Bf16Bits* y, uint64_t y_stride) {
  constexpr uint32_t kHeld = 3;
  __shared__ float room[kThreads / 32];
  const RowOfOctets<kThreads, kHeld, float> weights(weight, count);
  WaitForEarlier();
  LetNextBegin();
  const Bf16* const from = AsBf16(x) + blockIdx.x * x_stride;
  const RowOfOctets<kThreads, kHeld> row(from, count);
  const float scale = InverseRms<kThreads>(from, count, eps, room);
  Bf16* const to = AsBf16(y) + blockIdx.x * y_stride;
  row.ForEach(weights, [&](uint32_t d, const Octet& octet, const Octet& of_weights) {
    Octet normed = octet.Normed(scale, of_weights);
    if (round) normed = normed.Rounded(ScaleA(LargestOfGroup(normed.Largest())));
    normed.Store(to + d);
  });
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

// Blocks of one kind after the other: of mixes, whose sums are known before the launch before ends;
// of every row's window row; of their queries' low-rank parts, if there are any.
__global__ __launch_bounds__(kThreads) void Projected(const __grid_constant__ ProjectedCall call,
                                                      const __grid_constant__ WindowView windows,
                                                      bool to_ring) {
  __shared__ float room[kThreads / 32];
  const uint32_t rows = call.step.rows, dim = call.dim, mixes = MixesBlocks(call.mixes.rows);
  if (blockIdx.x < mixes) {
    FinishMixes(call.mixes, MixLane(call.mixes.weights), blockIdx.x);
    return FollowEarlier();
  }
  const uint32_t kind = (blockIdx.x - mixes) / rows;
  const uint64_t row = (blockIdx.x - mixes) % rows;
  const uint32_t count = kind == 0 ? dim : call.low;
  const RowOfOctets<kThreads, 1, float> weights(kind == 0 ? call.kv_norm : call.q_norm, count);
  WaitForEarlier();
  LetNextBegin();
  Bf16* const low = AsBf16(call.projected) + row * (call.low + dim);
  const Bf16* const from = kind == 0 ? low + call.low : low;
  const RowOfOctets<kThreads, 1> values(from, count);
  if (kind == 1) {
    const float scale = InverseRms<kThreads>(from, count, call.eps, room);
    values.ForEach(weights, [&](uint32_t d, const Octet& octet, const Octet& of_weights) {
      const Octet normed = octet.Normed(scale, of_weights);
      normed.Rounded(ScaleA(LargestOfGroup(normed.Largest()))).Store(low + d);
    });
    return;
  }
  const float* cosines = call.step.cosines[call.rotation] + row * call.step.pairs;
  const float* sines = call.step.sines[call.rotation] + row * call.step.pairs;
  const RingSlot ring(call.step, windows, row);
  const float scale = InverseRms<kThreads>(from, count, call.eps, room);
  values.ForEach(weights, [&](uint32_t d, const Octet& octet, const Octet& of_weights) {
    const Octet turned =
        octet.Normed(scale, of_weights).Turned(d, dim, call.step.pairs, cosines, sines);
    const uint32_t scale_code = ScaleA(LargestOfGroup(turned.Largest()));
    uint32_t codes[2] = {};
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
      codes[i / 4] |= uint32_t{CodeA(turned.values[i], scale_code)} << i % 4 * 8;
    }
    const uint2 eight = {codes[0], codes[1]};
    const auto store = [&](uint8_t* to, uint8_t* scales) {
      *reinterpret_cast<uint2*>(to + d) = eight;
      if (d % 32 == 0) scales[d / 32] = static_cast<uint8_t>(scale_code);
    };
    store(call.codes + row * dim, call.scales + row * (dim / 32));
    if (to_ring && ring.real) store(ring.codes, ring.scales);
  });
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
  const auto blocks = static_cast<uint32_t>((count / 8 + kThreads - 1) / kThreads);
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
  const uint32_t grid =
      call.step.rows * (call.q_norm == nullptr ? 1 : 2) + MixesBlocks(call.mixes.rows);
  const bool to_ring = call.ring != nullptr;
  return QueueNext(Projected, {grid, kThreads}, stream, call,
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
