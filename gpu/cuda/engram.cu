#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/octets.cuh"

// Engram: table rows, and the gate that adds them to the stream (model-facts section 9).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kLookupThreads = 128, kGateThreads = 256;
constexpr uint32_t kCopies = 4;

// A thread takes eight values of what a token finds, four lanes a group of quantiser A.
__global__ __launch_bounds__(kLookupThreads) void Lookup(const uint64_t* table_rows, uint32_t width,
                                                         uint32_t per_token, EngramTable table,
                                                         Bf16Bits* e) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const uint32_t i = (blockIdx.y * kLookupThreads + threadIdx.x) * 8;
  if (i >= width) return;
  const uint64_t table_row = table_rows[row * per_token + i / table.dim] - table.first;
  const uint32_t d = i % table.dim;
  Octet octet = {};
  if (table_row < table.count) {
    const uint2 codes = *reinterpret_cast<const uint2*>(table.codes + table_row * table.dim + d);
    const float scale = PowerOf(table.scales[table_row * (table.dim / 32) + d / 32]);
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k) {
      const uint32_t word = k < 4 ? codes.x : codes.y;
      octet.values[k] = E4m3Value(static_cast<uint8_t>(word >> k % 4 * 8)) * scale;
    }
  }
  octet.Rounded(ScaleA(LargestOfGroup(octet.Largest()))).Store(AsBf16(e) + row * width + i);
}

__global__ void Gate(StreamShape shape, const uint8_t* image, const Bf16Bits* kv, const float* qk,
                     Bf16Bits* stream) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ float room[33];
  const uint64_t row = blockIdx.x;
  const uint32_t copy = blockIdx.y, hidden = shape.hidden;
  if (image[row] != 0) return;
  Bf16* x = reinterpret_cast<Bf16*>(stream) + (row * kCopies + copy) * hidden;
  const Bf16* keys = reinterpret_cast<const Bf16*>(kv) + row * (kCopies + 1) * hidden;
  const Bf16* key = keys + uint64_t{copy} * hidden;
  const Bf16* value = keys + uint64_t{kCopies} * hidden;
  const float* weight = qk + uint64_t{copy} * hidden;
  float dot = 0, x_squares = 0, key_squares = 0;
  for (uint32_t d = threadIdx.x; d < hidden; d += kGateThreads) {
    const float a = ToFloat(x[d]), b = ToFloat(key[d]);
    dot = fmaf(a * weight[d], b, dot);
    x_squares = fmaf(a, a, x_squares);
    key_squares = fmaf(b, b, key_squares);
  }
  dot = BlockSum(dot, room);
  x_squares = BlockSum(x_squares, room);
  key_squares = BlockSum(key_squares, room);
  const float x_scale = 1.0f / sqrtf(x_squares / static_cast<float>(hidden) + shape.eps);
  const float key_scale = 1.0f / sqrtf(key_squares / static_cast<float>(hidden) + shape.eps);
  const double scaled =
      static_cast<double>(dot) * x_scale * key_scale / sqrt(static_cast<double>(hidden));
  const double root = copysign(sqrt(fmax(fabs(scaled), 1e-6)), scaled);
  const float gate = static_cast<float>(1.0 / (1.0 + exp(scaled == 0.0 ? 0.0 : -root)));
  for (uint32_t d = threadIdx.x; d < hidden; d += kGateThreads) {
    x[d] = ToBf16(fmaf(gate, ToFloat(value[d]), ToFloat(x[d])));
  }
}

}  // namespace

cudaError_t LaunchEngramLookup(const uint64_t* table_rows, uint32_t rows, uint32_t per_token,
                               const EngramTable& table, Bf16Bits* e, cudaStream_t stream) {
  const uint32_t width = per_token * table.dim;
  const dim3 grid(rows, (width / 8 + kLookupThreads - 1) / kLookupThreads);
  return QueueNext(Lookup, {grid, kLookupThreads}, stream, table_rows, width, per_token, table, e);
}
cudaError_t LaunchEngramGate(const StreamShape& shape, uint32_t rows, const uint8_t* image,
                             const Bf16Bits* kv, const float* qk, Bf16Bits* stream,
                             cudaStream_t cuda) {
  return QueueNext(Gate, {dim3(rows, kCopies), kGateThreads}, cuda, shape, image, kv, qk, stream);
}

}  // namespace reprise::engine::cuda
