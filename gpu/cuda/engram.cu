#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"

// Engram: table rows, and the gate that adds them to the stream (model-facts section 9).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kCopies = 4;

__global__ void Lookup(const uint64_t* table_rows, uint32_t width, uint32_t per_token,
                       EngramTable table, Bf16Bits* e) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  for (uint32_t i = threadIdx.x; i < width; i += kThreads) {
    const uint64_t table_row = table_rows[row * per_token + i / table.dim] - table.first;
    const uint32_t d = i % table.dim;
    float value = 0;
    if (table_row < table.count) {
      value = E4m3Value(table.codes[table_row * table.dim + d]) *
              PowerOf(table.scales[table_row * (table.dim / 32) + d / 32]);
    }
    reinterpret_cast<Bf16*>(e)[row * width + i] =
        ToBf16(RoundA(value, ScaleA(WarpMax(fabsf(value)))));
  }
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
  for (uint32_t d = threadIdx.x; d < hidden; d += kThreads) {
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
  for (uint32_t d = threadIdx.x; d < hidden; d += kThreads) {
    x[d] = ToBf16(fmaf(gate, ToFloat(value[d]), ToFloat(x[d])));
  }
}

}  // namespace

cudaError_t LaunchEngramLookup(const uint64_t* table_rows, uint32_t rows, uint32_t per_token,
                               const EngramTable& table, Bf16Bits* e, cudaStream_t stream) {
  return QueueNext(Lookup, {rows, kThreads}, stream, table_rows, per_token * table.dim, per_token,
                   table, e);
}
cudaError_t LaunchEngramGate(const StreamShape& shape, uint32_t rows, const uint8_t* image,
                             const Bf16Bits* kv, const float* qk, Bf16Bits* stream,
                             cudaStream_t cuda) {
  return QueueNext(Gate, {dim3(rows, kCopies), kThreads}, cuda, shape, image, kv, qk, stream);
}

}  // namespace reprise::engine::cuda
