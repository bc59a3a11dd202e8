#pragma once

#include "gpu/cuda/attention_keys.cuh"
#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/wgmma.cuh"

// What the warpgroups of MatrixAttention share, and the one that sums values.
namespace reprise::engine::cuda {

constexpr uint32_t kGroup = 128;  // Threads of a warpgroup.
constexpr uint32_t kThreads = 2 * kGroup + kDecodeWarps * 32;
constexpr uint32_t kWarps = kGroup / 32;
constexpr uint32_t kLogitBytes = kHeads * kKeys * sizeof(float);

struct AttentionShared {
  float4 received[2][kKeys / 8][kGroup];  // The other block's sums, thread by thread.
  float4 sent[2][kKeys / 8][kGroup];      // This block's, on their way there.
  uint8_t p[2][kBlockBytes];              // [heads][keys], bf16.
  KeyTiles tiles;
  float decay[2][kHeads];  // What the sums before a tile are multiplied by.
  float inverse[kHeads];   // Of a row's total.
  uint64_t received_full[2], p_full[2], p_empty[2], inverse_empty;
};
static_assert(sizeof(AttentionShared) <= 227 << 10);

// What a product does not add to: nothing of it need be kept.
template <int kCount>
__device__ inline void Forget(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "=f"(values[i]));
}
__device__ inline uint32_t PairBits(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
// Both values of a word, turned.
__device__ inline uint32_t Turned(uint32_t word, float c, float s) {
  const float2 x = __bfloat1622float2(AsPair(word));
  return PairBits(x.x * c - x.y * s, x.x * s + x.y * c);
}

// What a thread of a product holds: rows (heads) `head` and `head` + 8, columns 8 i + 2 quarter and
// the next; of dimensions, the 16 at 16 x quarter of every 64.
struct ProductPlace {
  __device__ ProductPlace()
      : thread(threadIdx.x % kGroup),
        lane(thread % 32),
        warp(thread / 32),
        head(warp * 16 + lane / 4),
        quarter(lane % 4) {}
  uint32_t thread, lane, warp, head, quarter;
};

// Sums of values, by a warpgroup for all heads and the dimensions of the block.
class ValueAdder {
 public:
  __device__ ValueAdder(const AttentionCall& call, AttentionShared& shared, uint32_t rank)
      : call_(call), shared_(shared), rank_(rank) {}

  __device__ __forceinline__ void Run() {
    float sums[2][64];
    Forget(sums[0]);
    Forget(sums[1]);
    TileTurn turn;
    uint32_t tile = 0;
    for (uint32_t row = blockIdx.x / 2; row < call_.step.rows; row += gridDim.x / 2) {
      bool last = false;
      for (bool first = true; !last; first = false) {
        const uint32_t slot = tile % 2;
        WaitPhase(SharedAddress(&shared_.p_full[slot]), tile / 2 % 2);
        last = (shared_.tiles.info[turn.buffer].is & kLastOfRow) != 0;
        if (!first) Decay(shared_.decay[slot], sums);
        Hold(sums[0]);
        Hold(sums[1]);
        WgmmaFence();
        const uint64_t p = SwizzledRows(SharedAddress(shared_.p[slot]));
        const uint64_t keys =
            SwizzledColumns(SharedAddress(shared_.tiles.keys[turn.buffer]), kBlockBytes);
#pragma unroll
        for (uint32_t step = 0; step < kKeys / 16; ++step) {
#pragma unroll
          for (uint32_t half = 0; half < 2; ++half) {
            WgmmaShared<128, true>::Run(sums[half], p + step * 32 / 16,
                                        keys + (2 * half * kBlockBytes + step * 16 * 128) / 16,
                                        !first || step > 0 ? 1 : 0);
          }
        }
        WgmmaCommit();
        WgmmaWait<0>();
        Hold(sums[0]);
        Hold(sums[1]);
        __syncwarp();
        if (at_.lane == 0) {
          ArriveAt(SharedAddress(&shared_.p_empty[slot]));
          ArriveAt(SharedAddress(&shared_.tiles.empty[turn.buffer]));
        }
        turn.Next();
        ++tile;
      }
      Finish(row, sums);
    }
  }

 private:
  __device__ __forceinline__ void Decay(const float* decay, float (&sums)[2][64]) const {
    const float factors[2] = {decay[at_.head], decay[at_.head + 8]};
    if (!__any_sync(0xffffffff, factors[0] != 1 || factors[1] != 1)) return;
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= factors[i / 2 % 2];
  }

  // Division by the total, rounding, and the inverse rotation.
  __device__ __forceinline__ void Finish(uint32_t row, const float (&sums)[2][64]) const {
    const float inverse[2] = {shared_.inverse[at_.head], shared_.inverse[at_.head + 8]};
    __syncwarp();
    if (at_.lane == 0) ArriveAt(SharedAddress(&shared_.inverse_empty));
    const uint32_t pairs = call_.step.pairs, begin = kDim - 2 * pairs;
    const float* cosines = call_.step.cosines[call_.rotation] + uint64_t{row} * pairs;
    const float* sines = call_.step.sines[call_.rotation] + uint64_t{row} * pairs;
    const uint32_t dim = rank_ * kHalfDim + at_.quarter * 16;
    Bf16Bits* out = call_.out + (uint64_t{row} * call_.heads + at_.head) * kDim + dim;
#pragma unroll
    for (uint32_t block = 0; block < kHalfDim / 64; ++block) {
      const bool turned = rank_ * kHalfDim + block * 64 + 64 > begin;
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        uint4 eight[2];
#pragma unroll
        for (uint32_t m = 0; m < 4; ++m) {
          // Dimension d of eight is in step d % 4 as value d / 4.
          const uint32_t at = block % 2 * 32 + 2 * m % 4 * 8 + h * 4 + m / 2;
#pragma unroll
          for (uint32_t k = 0; k < 2; ++k) {
            (&eight[k].x)[m] = PairBits(sums[block / 2][at + 2 * k] * inverse[k],
                                        sums[block / 2][at + 8 + 2 * k] * inverse[k]);
          }
          const uint32_t d = dim + block * 64 + h * 8 + 2 * m;
          if (!turned || d < begin) continue;
          const float c = cosines[(d - begin) / 2], s = -sines[(d - begin) / 2];
#pragma unroll
          for (uint32_t k = 0; k < 2; ++k) (&eight[k].x)[m] = Turned((&eight[k].x)[m], c, s);
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          if (at_.head + 8 * k >= call_.heads) continue;
          *reinterpret_cast<uint4*>(out + k * 8 * kDim + block * 64 + h * 8) = eight[k];
        }
      }
    }
  }

  const ProductPlace at_;
  const AttentionCall& call_;
  AttentionShared& shared_;
  const uint32_t rank_;
};

}  // namespace reprise::engine::cuda
