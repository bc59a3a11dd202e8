#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/matrix_attention.h"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/shared_room.h"

// Sparse attention over the FP8 window and FP4 records in place, for any number of heads and dims:
// a block takes up to eight heads of one row through its keys, 64 at a time, as the reference does
// (model-facts section 3.6).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kHeads = 8;  // Of a block.
constexpr uint32_t kKeys = 64;  // Of a step of the online softmax.
constexpr uint32_t kDimsMax = 512;

class RowAttention {
 public:
  __device__ RowAttention(const AttentionCall& call, uint8_t* shared)
      : call_(call),
        row_(blockIdx.x),
        head_(blockIdx.y * kHeads),
        heads_(min(kHeads, call.heads - head_)),
        part_(call.step.part[call.step.part_of_row[blockIdx.x]]) {
    key_stride_ = call.dim + 2;  // Padded: rows begin in different banks.
    query_ = reinterpret_cast<float*>(shared);
    logits_ = query_ + kHeads * call.dim;
    top_ = logits_ + kHeads * kKeys;
    total_ = top_ + kHeads;
    decay_ = total_ + kHeads;
    keys_ = reinterpret_cast<Bf16*>(decay_ + kHeads);
  }

  __device__ void Run() {
    const uint32_t dim = call_.dim;
    const Bf16* q = AsBf16(call_.query) + (uint64_t{row_} * call_.heads + head_) * dim;
    const uint32_t pairs = call_.rotate_query ? call_.step.pairs : 0, begin = dim - 2 * pairs;
    const float* cosines = call_.step.cosines[call_.rotation] + uint64_t{row_} * pairs;
    const float* sines = call_.step.sines[call_.rotation] + uint64_t{row_} * pairs;
    for (uint32_t i = threadIdx.x; i < kHeads * dim; i += kThreads) {
      const uint32_t d = i % dim;
      if (i >= heads_ * dim) {
        query_[i] = 0;  // Computed with, and stored nowhere.
        continue;
      }
      if (d < begin) {
        query_[i] = ToFloat(q[i]);
        continue;
      }
      const bool even = (d - begin) % 2 == 0;
      const float a = ToFloat(q[even ? i : i - 1]), b = ToFloat(q[even ? i + 1 : i]);
      const float c = cosines[(d - begin) / 2], s = sines[(d - begin) / 2];
      query_[i] = RoundBf16(even ? a * c - b * s : a * s + b * c);
    }
    if (threadIdx.x < kHeads) {
      top_[threadIdx.x] = -1e30f;
      total_[threadIdx.x] = 0;
    }
#pragma unroll
    for (auto& of_head : sums_) {
#pragma unroll
      for (float& sum : of_head) sum = 0;
    }
    if (call_.drafts) {
      Drafts();
    } else {
      Window();
      Selection();
    }
    Finish();
  }

 private:
  __device__ void DecodeWindowRow(uint32_t slot, const uint8_t* codes, const uint8_t* scales) {
    for (uint32_t d = threadIdx.x % 32 * 4; d < call_.dim; d += 128) {
      const uint32_t four = *reinterpret_cast<const uint32_t*>(codes + d);
      const float scale = PowerOf(scales[d / 32]);
      Bf16* to = keys_ + slot * key_stride_ + d;
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        to[i] = ToBf16(E4m3Value(static_cast<uint8_t>(four >> (8 * i))) * scale);
      }
    }
  }
  __device__ void DecodeOwnRow(uint32_t slot, uint32_t row) {
    DecodeWindowRow(slot, call_.kv_codes + uint64_t{row} * call_.dim,
                    call_.kv_scales + uint64_t{row} * (call_.dim / 32));
  }
  __device__ void DecodePosition(uint32_t slot, uint32_t position) {
    if (position >= part_.first) return DecodeOwnRow(slot, part_.row + position - part_.first);
    const WindowPlace place = RingPlace(call_.windows, part_, position);
    DecodeWindowRow(slot, place.codes, place.scales);
  }

  // The list of a row has `window` places for positions ascending to its own; those before the text
  // or before the replay's start are empty.
  __device__ void Window() {
    const int64_t position = call_.step.positions[row_];
    const int64_t lowest = part_.windows_from;
    for (uint32_t block = 0; block < call_.windows.window; block += kKeys) {
      const int64_t begin = position - call_.windows.window + 1 + block;
      const int64_t from = max(begin, lowest), end = min(begin + kKeys, position + 1);
      const uint32_t count = end > from ? static_cast<uint32_t>(end - from) : 0;
      for (uint32_t i = threadIdx.x / 32; i < count; i += kThreads / 32) {
        DecodePosition(i, static_cast<uint32_t>(from) + i);
      }
      Attend(count);
    }
  }
  __device__ void Selection() {
    if (call_.selected == nullptr) return;
    const int32_t* selected = call_.selected + uint64_t{row_} * call_.topk;
    for (uint32_t block = 0; block < call_.topk; block += kKeys) {
      const uint32_t end = min(kKeys, call_.topk - block);
      uint32_t count = 0;
      for (uint32_t i = 0; i < end; ++i) count += selected[block + i] >= 0 ? 1 : 0;
      for (uint32_t i = threadIdx.x / 32; i < count; i += kThreads / 32) {
        const EntryPlace place =
            PlaceOf(call_.step, call_.entries, part_, static_cast<uint32_t>(selected[block + i]));
        for (uint32_t d = threadIdx.x % 32 * 4; d < call_.dim; d += 128) {
          const uint32_t codes = *reinterpret_cast<const uint16_t*>(place.main_codes + d / 2);
          const float scale = E4m3Value(place.main_scales[d / 16]);
          Bf16* to = keys_ + i * key_stride_ + d;
#pragma unroll
          for (uint32_t k = 0; k < 4; ++k) to[k] = ToBf16(E2m1Value(codes >> (4 * k) & 15) * scale);
        }
      }
      Attend(count);
      if (count < end) return;
    }
  }
  __device__ void Drafts() {
    const uint32_t window = call_.windows.window;
    const uint32_t from = max(part_.windows_from, part_.first - min(part_.first, window));
    const uint32_t past = part_.first - from, all = past + part_.rows;
    for (uint32_t block = 0; block < all; block += kKeys) {
      const uint32_t count = min(kKeys, all - block);
      for (uint32_t i = threadIdx.x / 32; i < count; i += kThreads / 32) {
        const uint32_t key = block + i;
        if (key < past) {
          DecodePosition(i, from + key);
        } else {
          DecodeOwnRow(i, part_.row + key - past);
        }
      }
      Attend(count);
    }
  }

  // One step of the online softmax over keys_[0, count).
  __device__ void Attend(uint32_t count) {
    if (count == 0) return;
    __syncthreads();
    const uint32_t dim = call_.dim, key = threadIdx.x % kKeys, head = threadIdx.x / kKeys * 4;
    float dots[4] = {};
    if (key < count) {
      const Bf16* k = keys_ + key * key_stride_;
      for (uint32_t d = 0; d < dim; d += 2) {
        const float2 pair = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(k + d));
#pragma unroll
        for (uint32_t h = 0; h < 4; ++h) {
          const float* q = query_ + (head + h) * dim + d;
          dots[h] = fmaf(q[1], pair.y, fmaf(q[0], pair.x, dots[h]));
        }
      }
    }
#pragma unroll
    for (uint32_t h = 0; h < 4; ++h) {
      logits_[(head + h) * kKeys + key] = key < count ? dots[h] * call_.scale : -3e38f;
    }
    __syncthreads();
    for (uint32_t h = threadIdx.x / 32; h < kHeads; h += kThreads / 32) Softmax(h);
    __syncthreads();
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
#pragma unroll
      for (float& sum : sums_[h]) sum *= decay_[h];
    }
    for (uint32_t k = 0; k < count; ++k) {
      const Bf16* value = keys_ + k * key_stride_;
#pragma unroll
      for (uint32_t i = 0; i < kDimsMax / kThreads; ++i) {
        const uint32_t d = i * kThreads + threadIdx.x;
        const float v = d < dim ? ToFloat(value[d]) : 0.0f;
#pragma unroll
        for (uint32_t h = 0; h < kHeads; ++h) {
          sums_[h][i] = fmaf(logits_[h * kKeys + k], v, sums_[h][i]);
        }
      }
    }
    __syncthreads();
  }

  // Logits to probabilities, rounded to bf16, in place.
  __device__ void Softmax(uint32_t h) {
    float* logits = logits_ + h * kKeys;
    const uint32_t lane = threadIdx.x % 32;
    const float a = logits[lane], b = logits[lane + 32];
    const float old_top = top_[h];
    const float top = fmaxf(old_top, WarpMax(fmaxf(a, b)));
    const float p = expf(a - top), q = expf(b - top);
    const float sum = WarpSum(p + q);
    logits[lane] = RoundBf16(p);
    logits[lane + 32] = RoundBf16(q);
    __syncwarp();
    if (lane == 0) {
      const float decay = expf(old_top - top);
      total_[h] = total_[h] * decay + sum;
      top_[h] = top;
      decay_[h] = decay;
    }
  }

  // Division by the denominator with the sink, rounding, and the inverse rotation.
  __device__ void Finish() {
    const uint32_t dim = call_.dim, pairs = call_.step.pairs, begin = dim - 2 * pairs;
    float* rows = query_;  // No longer needed.
    __syncthreads();
#pragma unroll
    for (uint32_t h = 0; h < kHeads; ++h) {
      if (h >= heads_) break;
      const float total = total_[h] + expf(call_.sinks[head_ + h] - top_[h]);
#pragma unroll
      for (uint32_t i = 0; i < kDimsMax / kThreads; ++i) {
        const uint32_t d = i * kThreads + threadIdx.x;
        if (d < dim) rows[h * dim + d] = RoundBf16(sums_[h][i] / total);
      }
    }
    __syncthreads();
    const float* cosines = call_.step.cosines[call_.rotation] + uint64_t{row_} * pairs;
    const float* sines = call_.step.sines[call_.rotation] + uint64_t{row_} * pairs;
    Bf16* out = reinterpret_cast<Bf16*>(call_.out) + (uint64_t{row_} * call_.heads + head_) * dim;
    for (uint32_t i = threadIdx.x; i < heads_ * dim; i += kThreads) {
      const uint32_t d = i % dim;
      float value = rows[i];
      if (d >= begin) {
        const uint32_t pair = (d - begin) / 2;
        const bool even = (d - begin) % 2 == 0;
        const float a = rows[even ? i : i - 1], b = rows[even ? i + 1 : i];
        const float c = cosines[pair], s = -sines[pair];
        value = even ? a * c - b * s : a * s + b * c;
      }
      out[i] = ToBf16(value);
    }
  }

  const AttentionCall& call_;
  const uint32_t row_, head_, heads_;
  const DevicePart& part_;
  uint32_t key_stride_;
  float* query_;   // [kHeads][dim]
  float* logits_;  // [kHeads][kKeys]
  float *top_, *total_, *decay_;
  Bf16* keys_;  // [kKeys][key_stride]
  float sums_[kHeads][kDimsMax / kThreads];
};

__global__ __launch_bounds__(kThreads) void Attention(AttentionCall call) {
  WaitForEarlier();
  LetNextBegin();
  extern __shared__ __align__(16) uint8_t shared[];
  RowAttention(call, shared).Run();
}

}  // namespace

cudaError_t LaunchAttention(const AttentionCall& call, cudaStream_t stream) {
  if (!MatrixAttentionFits(call)) return LaunchSimpleAttention(call, stream);
  if (SpreadAttentionFits(call)) return LaunchSpreadAttention(call, stream);
  return LaunchMatrixAttention(call, stream);
}

cudaError_t LaunchSimpleAttention(const AttentionCall& call, cudaStream_t stream) {
  if (call.dim > kDimsMax) return cudaErrorInvalidValue;
  const uint32_t shared = (kHeads * call.dim + kHeads * kKeys + 3 * kHeads) * sizeof(float) +
                          kKeys * (call.dim + 2) * sizeof(Bf16);
  const cudaError_t ready = AllowShared<Attention>(128 << 10);
  if (ready != cudaSuccess) return ready;
  const dim3 grid(call.step.rows, (call.heads + kHeads - 1) / kHeads);
  return QueueNext(Attention, {grid, kThreads, shared}, stream, call);
}

}  // namespace reprise::engine::cuda
