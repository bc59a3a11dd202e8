#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/places.cuh"

// The compressor and the record writers (model-facts sections 4 and 5.1).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 128;

__device__ inline float RowInverseRms(const float* x, uint32_t count, float eps, float* room) {
  float squares = 0;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) squares = fmaf(x[i], x[i], squares);
  return 1.0f / sqrtf(BlockSum(squares, room) / static_cast<float>(count) + eps);
}

__global__ void Latents(StepView step, WindowView windows, const DeviceGroup* groups,
                        uint32_t ratio, const void* a, const float* g, const float* norm,
                        uint32_t dim, float eps, Bf16Bits* latents) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ float room[33];
  extern __shared__ float latent[];
  const DeviceGroup group = groups[blockIdx.x];
  if (group.part == kNoPart) return;
  const uint64_t row = group.row;
  if (ratio == 2) {
    const float* a1 = static_cast<const float*>(a) + row * dim;
    const float* g1 = g + row * dim;
    const float* a0 = a1 - dim;
    const float* g0 = g1 - dim;
    if (group.from_tail != 0) {
      a0 = TailOf(windows, step.part[group.part], group.entry * 2, dim);
      g0 = a0 + dim;
    }
    for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
      const float top = fmaxf(g0[i], g1[i]);
      const float e0 = expf(g0[i] - top), e1 = expf(g1[i] - top);
      const float sum = e0 + e1;
      latent[i] = RoundBf16(fmaf(e1 / sum, a1[i], (e0 / sum) * a0[i]));
    }
  } else {
    const Bf16* x = static_cast<const Bf16*>(a) + row * dim;
    for (uint32_t i = threadIdx.x; i < dim; i += kThreads) latent[i] = ToFloat(x[i]);
  }
  const float scale = RowInverseRms(latent, dim, eps, room);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    reinterpret_cast<Bf16*>(latents)[uint64_t{blockIdx.x} * dim + i] =
        ToBf16(latent[i] * scale * norm[i]);
  }
}

// Turns the last 2 pairs values of x in shared memory by their cosines and sines.
__device__ inline void TurnRow(float* x, uint32_t dim, const float2* turns, uint32_t pairs) {
  for (uint32_t pair = threadIdx.x; pair < pairs; pair += kThreads) {
    const float c = turns[pair].x, s = turns[pair].y;
    float* at = x + dim - 2 * pairs + 2 * pair;
    const float a = at[0], b = at[1];
    at[0] = RoundBf16(a * c - b * s);
    at[1] = RoundBf16(a * s + b * c);
  }
}

__device__ inline float GroupMax16(float x) {
  for (int step = 8; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));
  return x;
}

// Codes of a warp's 32 neighbours, two to a byte.
__device__ inline void StoreNibbles(uint32_t code, uint32_t i, uint8_t* codes) {
  const uint32_t next = __shfl_down_sync(0xffffffff, code, 1);
  if (i % 2 == 0) codes[i / 2] = static_cast<uint8_t>(code | next << 4);
}

__global__ void WriteEntries(StepView step, EntryView view, const DeviceGroup* groups,
                             uint32_t ratio, const float* frequencies, const Bf16Bits* latents,
                             uint32_t dim, const Bf16Bits* keys, const float* key_norm,
                             uint32_t index_dim, float eps) {
  WaitForEarlier();
  LetNextBegin();
  __shared__ float room[33];
  extern __shared__ float values[];  // A latent, a key, cosines and sines of the position.
  const DeviceGroup group = groups[blockIdx.x];
  if (group.part == kNoPart) return;
  const EntryPlace place = PlaceOf(step, view, step.part[group.part], group.entry);
  float* latent = values;
  float* key = values + dim;
  float2* turns = reinterpret_cast<float2*>(key + index_dim);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    latent[i] = ToFloat(AsBf16(latents)[uint64_t{blockIdx.x} * dim + i]);
  }
  for (uint32_t i = threadIdx.x; i < index_dim; i += kThreads) {
    key[i] = ToFloat(AsBf16(keys)[uint64_t{blockIdx.x} * index_dim + i]);
  }
  for (uint32_t pair = threadIdx.x; pair < step.pairs; pair += kThreads) {
    const double angle = __fmul_rn(static_cast<float>(group.entry * ratio), frequencies[pair]);
    turns[pair] = {static_cast<float>(cos(angle)), static_cast<float>(sin(angle))};
  }
  __syncthreads();
  const float scale = RowInverseRms(key, index_dim, eps, room);
  for (uint32_t i = threadIdx.x; i < index_dim; i += kThreads) {
    key[i] = RoundBf16(key[i] * scale * key_norm[i]);
  }
  __syncthreads();
  TurnRow(latent, dim, turns, step.pairs);
  TurnRow(key, index_dim, turns, step.pairs);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    const uint8_t code = ScaleB(GroupMax16(fabsf(latent[i])));
    StoreNibbles(E2m1Of(__fdiv_rn(latent[i], E4m3Value(code))), i, place.main_codes);
    if (i % 16 == 0) place.main_scales[i / 16] = code;
  }
  for (uint32_t i = threadIdx.x; i < index_dim; i += kThreads) {
    const uint32_t code = ScaleC(WarpMax(fabsf(key[i])));
    StoreNibbles(E2m1Of(__fdiv_rn(key[i], PowerOf(code))), i, place.index_codes);
    if (i % 32 == 0) place.index_scales[i / 32] = static_cast<uint8_t>(code);
  }
}

__global__ void StoreTails(StepView step, WindowView windows, const float* a, const float* g,
                           uint32_t dim) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const DevicePart& part = step.part[step.part_of_row[row]];
  const uint32_t position = step.positions[row];
  const uint32_t end = part.first + part.rows;
  if (position % 2 != 0 || position + 2 * windows.tail_rows - 1 < end ||
      position + 1 < part.write_from) {
    return;
  }
  float* tail = TailOf(windows, part, position, dim);
  for (uint32_t i = threadIdx.x; i < dim; i += kThreads) {
    tail[i] = a[row * dim + i];
    tail[dim + i] = g[row * dim + i];
  }
}

}  // namespace

cudaError_t LaunchLatents(const StepView& step, const WindowView& windows,
                          const DeviceGroup* groups, uint32_t count, uint32_t ratio, const void* a,
                          const float* g, const float* norm, uint32_t dim, float eps,
                          Bf16Bits* latents, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const uint32_t shared = dim * sizeof(float);
  return QueueNext(Latents, {count, kThreads, shared}, stream, step, windows, groups, ratio, a, g,
                   norm, dim, eps, latents);
}

cudaError_t LaunchWriteEntries(const StepView& step, const EntryView& entries,
                               const DeviceGroup* groups, uint32_t count, uint32_t ratio,
                               const float* frequencies, const Bf16Bits* latents, uint32_t dim,
                               const Bf16Bits* keys, const float* key_norm, uint32_t index_dim,
                               float eps, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const uint32_t shared = (dim + index_dim + 2 * step.pairs) * sizeof(float);
  return QueueNext(WriteEntries, {count, kThreads, shared}, stream, step, entries, groups, ratio,
                   frequencies, latents, dim, keys, key_norm, index_dim, eps);
}

cudaError_t LaunchStoreTails(const StepView& step, const WindowView& windows, const float* a,
                             const float* g, uint32_t dim, cudaStream_t stream) {
  return QueueNext(StoreTails, {step.rows, kThreads}, stream, step, windows, a, g, dim);
}

}  // namespace reprise::engine::cuda
