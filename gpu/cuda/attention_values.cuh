#pragma once

#include "gpu/cuda/attention_keys.cuh"
#include "gpu/cuda/attention_scores.cuh"
#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/wgmma.cuh"

// What the warpgroups of MatrixAttention share, and the one that sums values.
namespace reprise::engine::cuda {

constexpr uint32_t kThreads = 2 * kGroup + kDecodeWarps * 32;

constexpr uint32_t kOwn = 0, kOthers = 1;  // Tiles of this block, and those of the other.
constexpr uint32_t kSentBytes = kTileBytes + sizeof(HeadSums);
struct AttentionShared {
  uint8_t p[2][kStages][kTileBytes];  // [kOwn, kOthers]
  KeyUnits units;
  HeadSums sums[2][kStages];
  uint64_t p_full[2][kStages];
  uint64_t p_empty[kStages];  // Of kOwn: added here and in the other block.
};
static_assert(sizeof(AttentionShared) <= 227 << 10);
static_assert(offsetof(AttentionShared, units) % 1024 == 0);  // As tiles of products lie.

// Sums of values, by a warpgroup for all heads and the dimensions of the block.
class ValueAdder {
 public:
  __device__ ValueAdder(const AttentionCall& call, AttentionShared& shared, uint32_t rank)
      : call_(call),
        shared_(shared),
        rank_(rank),
        peer_p_empty_(PeerAddress(SharedAddress(shared.p_empty), 1 - rank)) {}

  __device__ __forceinline__ void Run() {
    float sums[2][64];
    Forget(sums[0]);
    Forget(sums[1]);
    uint32_t slot = 0, parity = 0, row = blockIdx.x / 2;
    bool first = true;
    while (true) {
      if (first) {  // What the row's end needs comes nearer.
        TouchL1(call_.sinks + at_.head % call_.heads);
        TouchL1(Cosines(row));
        TouchL1(Sines(row));
      }
#pragma unroll 1
      for (uint32_t side = kOwn; side <= kOthers; ++side) {
        Add(side, slot, parity, first, sums);
        first = false;
        if (side == kOthers) break;
        if (Arrives(at_.lane)) {
          ArriveAt(SharedAddress(&shared_.p_empty[slot]));
          ArriveAt(SharedAddress(&shared_.units.empty[slot][rank_]));
        }
      }
      const uint32_t is = shared_.units.info[slot][kOthersUnit].is;
      __syncwarp();
      if (Arrives(at_.lane)) ArriveAtPeerRelaxed(peer_p_empty_ + slot * sizeof(uint64_t));
      if ((is & kLastOfRow) != 0) {
        Finish(row, shared_.units.keys[slot][kOthersUnit], sums);
        row += gridDim.x / 2;
        first = true;
      }
      if (Arrives(at_.lane)) ArriveAt(SharedAddress(&shared_.units.empty[slot][kOthersUnit]));
      if ((is & kLastOfAll) != 0) break;
      if (++slot == kStages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }

 private:
  // A tile's values.
  __device__ __forceinline__ void Add(uint32_t side, uint32_t slot, uint32_t parity, bool first,
                                      float (&sums)[2][64]) {
    const uint32_t full = SharedAddress(&shared_.p_full[side][slot]);
    if (side == kOwn) {
      WaitPhase(full, parity);
    } else {
      WaitReceived(full, parity);
      if (at_.thread == 0) ArriveExpecting(full, kSentBytes);
    }
    uint32_t p[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      LoadPiece(SharedAddress(shared_.p[side][slot]) + at_.PieceOffset(i), p[i]);
    }
    int32_t tops[2];
    float totals[2];
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      tops[k] = shared_.sums[side][slot].top[at_.head + 8 * k];
      totals[k] = shared_.sums[side][slot].total[at_.head + 8 * k];
    }
    const RunningTops::Change change = tops_.Take(tops, totals, first);
    if (change.higher) {
#pragma unroll
      for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= change.before[i / 2 % 2];
    }
    if (change.lower) BringToTop(p, change.factors);
    const uint32_t unit = side == kOwn ? rank_ : kOthersUnit;
    WaitPhase(SharedAddress(&shared_.units.full[slot][unit]), parity);
    Hold(sums[0]);
    Hold(sums[1]);
#pragma unroll
    for (auto& piece : p) Hold(piece);
    WgmmaFence();
    const uint64_t keys =
        SwizzledColumns(SharedAddress(shared_.units.keys[slot][unit]), kBlockBytes);
#pragma unroll
    for (uint32_t step = 0; step < kKeys / 16; ++step) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        WgmmaAcross<128>::Run(sums[half], p[step],
                              FurtherOn(keys, 2 * half * kBlockBytes + step * 16 * 128),
                              !first || step > 0 ? 1 : 0);
      }
    }
    WgmmaCommit();
    WgmmaWait<0>();
    Hold(sums[0]);
    Hold(sums[1]);
    Keep(p);
    __syncwarp();
  }

  // Division by the total, rounding, and the inverse rotation. Rows go out through `room`, 32 KiB.
  __device__ __forceinline__ void Finish(uint32_t row, uint8_t* room,
                                         const float (&sums)[2][64]) const {
    float inverse[2];
    tops_.Inverses(call_, at_, inverse);
    GroupBarrier<2>(kGroup);  // All warps' products have read the room.
    // Of every 128 bytes of a row, pieces lie turned by the row: so stores meet in no bank.
    const uint32_t to =
        SharedAddress(room) + at_.head * kRowBytes + ((at_.quarter * 2 ^ at_.lane / 4) << 4);
    float4 c[2], s[2];
#pragma unroll
    for (uint32_t block = 0; block < kHalfDim / 64; ++block) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
#pragma unroll
        for (uint32_t k = 0; k < 2; ++k) {
          uint32_t eight[4];
          EightOutputs(sums[block / 2] + block % 2 * 32, h, k, inverse[k], eight);
          if (block == kHalfDim / 64 - 1 && rank_ == 1) TurnBack(eight, c[h], s[h]);
          StorePiece((to ^ h << 4) + k * 8 * kRowBytes + block * 128, eight);
        }
      }
      if (block == 2) {  // There are registers again.
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) c[h] = Cosines(row)[h], s[h] = Sines(row)[h];
      }
    }
    __syncwarp();  // A warp's rows are its own.
    Bf16Bits* out = call_.out + (uint64_t{row} * call_.heads + at_.warp * 16) * kDim +
                    rank_ * kHalfDim + at_.lane * 8;
    const uint32_t from = SharedAddress(room) + at_.warp * 16 * kRowBytes + at_.lane * 16;
#pragma unroll 4
    for (uint32_t i = 0; i < 16; ++i) {
      uint32_t eight[4];
      LoadPiece((from ^ i % 8 << 4) + i * kRowBytes, eight);
      if (at_.warp * 16 + i >= call_.heads) break;
      *reinterpret_cast<uint4*>(out + i * kDim) =
          make_uint4(eight[0], eight[1], eight[2], eight[3]);
    }
    __syncwarp();
  }

  // This thread's, eight of them.
  __device__ const float4* Cosines(uint32_t row) const {
    return TurnsAt(call_.step.cosines[call_.rotation], row);
  }
  __device__ const float4* Sines(uint32_t row) const {
    return TurnsAt(call_.step.sines[call_.rotation], row);
  }
  __device__ const float4* TurnsAt(const float* all, uint32_t row) const {
    return reinterpret_cast<const float4*>(all + uint64_t{row} * kRotatedPairs) + 2 * at_.quarter;
  }

  static constexpr uint32_t kRowBytes = kHalfDim * sizeof(Bf16Bits);

  const ProductPlace at_;
  const AttentionCall& call_;
  AttentionShared& shared_;
  const uint32_t rank_;
  const uint32_t peer_p_empty_;
  RunningTops tops_;
};

}  // namespace reprise::engine::cuda
