#pragma once

#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mix_layout.h"

// From the sums over a row's stream to its mixes: pre, post and comb (model-facts section 7). The
// sums lie as one partial sum of every 64 values; they are added in eight groups of neighbours,
// and then the groups, beginning with 0.
namespace reprise::engine::cuda {

constexpr uint32_t kSumGroups = 8;
// Of a partial sum's row: the mixes, then squares of the stream and of the collapsed row.
constexpr uint32_t kStreamSquares = kMixes, kRowSquares = kMixes + 1, kSums = kMixes + 2;

// Tiles of a group.
struct SumGroup {
  __device__ SumGroup(uint32_t tiles, uint32_t group)
      : begin(tiles * group / kSumGroups), end(tiles * (group + 1) / kSumGroups) {}
  uint32_t begin, end;
};

// A group's sum, of a row's partial sums: lane i takes sum i.
__device__ inline float SumOfGroup(const float* partials, uint64_t row, uint32_t tiles,
                                   uint32_t group) {
  constexpr uint32_t kTogether = 10;
  const SumGroup of(tiles, group);
  const uint32_t lane = threadIdx.x % 32;
  const float* const sums = partials + row * tiles * kMixPartials + lane;
  float sum = 0;
#pragma unroll 1
  for (uint32_t tile = of.begin; tile < of.end; tile += kTogether) {
    float values[kTogether];
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const bool real = tile + i < of.end && lane < kSums;
      values[i] = real ? __ldcg(sums + (tile + i) * kMixPartials) : 0.0f;
    }
#pragma unroll
    for (const float value : values) sum += value;
  }
  return sum;
}

// What the warp that makes a row's mixes needs of the weights: lane i of mix i.
struct MixLane {
  __device__ explicit MixLane(const MixWeights& weights) {
    const uint32_t mix = min(threadIdx.x % 32, kMixes - 1);
    scale = weights.scale[min(mix / 4, 2)];
    base = weights.base[mix];
  }
  float scale, base;
};

__device__ inline float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// By a warp, whose lane i holds sum i of a row.
__device__ inline void SplitMixes(const MixesCall& call, const MixLane& weights, uint64_t row,
                                  float sum) {
  constexpr uint32_t kAll = 0xffffffff, kFour = 4;
  const uint32_t lane = threadIdx.x % 32;
  const float eps = call.weights.eps;
  const float squares = __shfl_sync(kAll, sum, kStreamSquares);
  const float mean = squares / static_cast<float>(kFour * call.shape.hidden);
  const float rms = 1.0f / sqrtf(mean + call.shape.eps);
  const float m = __fadd_rn(__fmul_rn(__fmul_rn(sum, rms), weights.scale), weights.base);
  const float sigmoid = 1.0f / (1.0f + expf(-m));
  if (lane < kFour) call.pre[row * kFour + lane] = sigmoid + eps;
  if (lane >= kFour && lane < 2 * kFour) call.post[row * kFour + lane - kFour] = 2.0f * sigmoid;

  // Lanes 0 to 15 hold C, row-major, and the others the same again.
  const float logit = __shfl_sync(kAll, m, 2 * kFour + lane % 16);
  const auto over_row = [](float one, auto&& join) {
    const float two = join(one, __shfl_xor_sync(kAll, one, 1));
    return join(two, __shfl_xor_sync(kAll, two, 2));
  };
  const float top = over_row(logit, [](float a, float b) { return fmaxf(a, b); });
  const float power = expf(logit - top);
  const float share = power / over_row(power, [](float a, float b) { return a + b; }) + eps;
  // From here on every lane has all of C, so that sums need no other lane.
  float c[kFour][kFour];
#pragma unroll
  for (uint32_t i = 0; i < kFour * kFour; ++i) {
    c[i / kFour][i % kFour] = __shfl_sync(kAll, share, i);
  }
#pragma unroll 1
  for (uint32_t turn = 0; turn < call.weights.iterations; ++turn) {
#pragma unroll
    for (auto& of : c) {
      if (turn == 0) break;
      const float inverse = Reciprocal((of[0] + of[1]) + (of[2] + of[3]) + eps);
#pragma unroll
      for (float& value : of) value *= inverse;
    }
#pragma unroll
    for (uint32_t k = 0; k < kFour; ++k) {
      const float inverse = Reciprocal((c[0][k] + c[1][k]) + (c[2][k] + c[3][k]) + eps);
#pragma unroll
      for (auto& of : c) of[k] *= inverse;
    }
  }
  if (lane != 0) return;
#pragma unroll
  for (uint32_t a = 0; a < kFour; ++a) {
    reinterpret_cast<float4*>(call.comb)[row * kFour + a] =
        make_float4(c[a][0], c[a][1], c[a][2], c[a][3]);
  }
}

// Where the sums of a row's tiles lie when they are added up.
__device__ inline float* RowSums(const MixesCall& call, uint64_t row) {
  return call.partials + row * (call.shape.hidden / 64) * kMixPartials;
}

// Blocks that make the mixes of so many rows: a row each, or by warps where sums are added up.
__host__ __device__ constexpr uint32_t MixesBlocks(uint32_t rows) {
  return rows <= kPartialMixes ? rows : (rows + kSumGroups - 1) / kSumGroups;
}

// By the first 256 threads of one of these blocks; nobody else may be at a barrier of the block.
// Perhaps before earlier launches have ended (launch.cuh).
__device__ inline void FinishMixes(const MixesCall& call, const MixLane& weights, uint32_t block) {
  __shared__ float of_group[kSumGroups][32];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (call.rows > kPartialMixes) {
    const uint64_t row = uint64_t{block} * kSumGroups + warp;
    if (warp < kSumGroups && row < call.rows) {
      SplitMixes(call, weights, row, __ldcg(RowSums(call, row) + lane));
    }
    return;
  }
  if (warp < kSumGroups) {
    of_group[warp][lane] = SumOfGroup(call.partials, block, call.shape.hidden / 64, warp);
  }
  __syncthreads();
  if (warp > 0) return;
  float sum = 0;
#pragma unroll
  for (const auto& one : of_group) sum += one[lane];
  SplitMixes(call, weights, block, sum);
}

}  // namespace reprise::engine::cuda
