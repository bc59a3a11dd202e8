#include <algorithm>

#include "gpu/cuda/attention_keys.cuh"
#include "gpu/cuda/attention_scores.cuh"
#include "gpu/cuda/attention_values.cuh"
#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/matrix_attention.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/shared_room.h"
#include "gpu/cuda/wgmma.cuh"

// Sparse attention by the matrix units, for up to 64 heads and latents of 512. Rows of the products
// beyond the heads are zeros, and are stored nowhere.
//
// A cluster of two blocks takes rows, 128 keys at a time: a tile of 64 for each block. In a block
// two warpgroups turn codes into bf16; one, the scorer, multiplies queries and the keys of the
// block's tile, and makes probabilities, for itself and the other block; one, the adder, sums
// values of both tiles, of half of the dimensions. A row's tiles follow from its list alone, so it
// becomes the same bytes whatever runs beside it.
namespace reprise::engine::cuda {
namespace {

// Of a scorer, an adder and a decoder: all that there are.
constexpr uint32_t kScorerRegisters = 192, kAdderRegisters = 176, kDecoderRegisters = 72;
static_assert((kScorerRegisters + kAdderRegisters + 2 * kDecoderRegisters) * kGroup == 65536);

// Logits and probabilities of the block's own tiles.
class Scorer {
 public:
  __device__ Scorer(const AttentionCall& call, AttentionShared& shared, uint32_t rank)
      : call_(call),
        shared_(shared),
        rank_(rank),
        scale_(call.scale * (kKeyUnit * kLog2E)),
        peer_p_(PeerAddress(SharedAddress(shared.p[kOthers]), 1 - rank)),
        peer_sums_(PeerAddress(SharedAddress(shared.sums[kOthers]), 1 - rank)),
        peer_full_(PeerAddress(SharedAddress(shared.p_full[kOthers]), 1 - rank)) {}

  __device__ __forceinline__ void Run() {
    uint32_t row = blockIdx.x / 2;
    bool first = true, last;
    do {
      if (first) {
        query_.Load(call_, at_, row);
        if (row == blockIdx.x / 2) ClusterWait();  // Barriers are made, in the other block too.
        row += gridDim.x / 2;
      }
      float logits[32];
      const UnitInfo info = Multiply(logits);
      Attend(logits, info);
      first = (info.is & kLastOfRow) != 0;
      last = (info.is & kLastOfAll) != 0;
      Advance();
    } while (!last);
    // This block stays until the other has added all that was sent, and said so here.
    for (uint32_t i = 0; i < kStages; ++i) {
      WaitReceived(SharedAddress(&shared_.p_empty[slot_]), parity_ ^ 1);
      Advance();
    }
  }

 private:
  __device__ __forceinline__ void Advance() {
    if (++slot_ == kStages) {
      slot_ = 0;
      parity_ ^= 1;
    }
  }
  // The block's tile of a stage.
  __device__ __forceinline__ UnitInfo Multiply(float (&sums)[32]) {
    UnitInfo info;
    Forget(sums);
#pragma unroll
    for (uint32_t unit = 0; unit < 2; ++unit) {
      WaitPhase(SharedAddress(&shared_.units.full[slot_][unit]), parity_);
      if (unit == 1) info = shared_.units.info[slot_][unit];
      const uint64_t keys = SwizzledRows(SharedAddress(shared_.units.keys[slot_][unit]));
      WgmmaFence();
#pragma unroll
      for (uint32_t step = 0; step < kSteps / 2; ++step) {
        Wgmma<64>::Run(sums, query_.steps[unit * (kSteps / 2) + step],
                       FurtherOn(keys, step / 4 * kBlockBytes + step % 4 * 32),
                       unit + step > 0 ? 1 : 0);
      }
      WgmmaCommit();
    }
    WgmmaWait<0>();
    Hold(sums);
    Keep(query_.steps);
    __syncwarp();
    if (Arrives(at_.lane)) ArriveAt(SharedAddress(&shared_.units.empty[slot_][1 - rank_]));
    return info;
  }

  // Logits to probabilities, for the adders.
  __device__ __forceinline__ void Attend(float (&logits)[32], const UnitInfo& info) {
    Probabilities its;
    its.Make(logits, info.mask, scale_, at_);
    WaitReceived(SharedAddress(&shared_.p_empty[slot_]), parity_ ^ 1);
    its.SumTotals();
    Give(its);
  }
  // To this block's adder and the other's.
  __device__ __forceinline__ void Give(const Probabilities& its) const {
    HeadSums& sums = shared_.sums[kOwn][slot_];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      StorePiece(SharedAddress(shared_.p[kOwn][slot_]) + at_.PieceOffset(i), its.p[i]);
    }
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      if (at_.quarter != 0) continue;
      sums.top[at_.head + 8 * k] = its.top[k];
      sums.total[at_.head + 8 * k] = its.total[k];
    }
    __syncwarp();
    if (Arrives(at_.lane)) ArriveAt(SharedAddress(&shared_.p_full[kOwn][slot_]));
    const uint32_t full = peer_full_ + slot_ * sizeof(uint64_t);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      StoreToPeer(peer_p_ + slot_ * kTileBytes + at_.PieceOffset(i), its.p[i], full);
    }
    if (at_.quarter != 0) return;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t to = peer_sums_ + slot_ * sizeof(HeadSums) + (at_.head + 8 * k) * 4;
      StoreToPeer(to + offsetof(HeadSums, top), static_cast<uint32_t>(its.top[k]), full);
      StoreToPeer(to + offsetof(HeadSums, total), __float_as_uint(its.total[k]), full);
    }
  }

  const ProductPlace at_;
  const AttentionCall& call_;
  AttentionShared& shared_;
  const uint32_t rank_;
  const float scale_;  // Of logits as powers of two, from sums with the keys' unit.
  const uint32_t peer_p_, peer_sums_, peer_full_;
  Queries query_;
  uint32_t slot_ = 0, parity_ = 0;  // Of the stage.
};

__device__ inline void MakeBarriers(AttentionShared& shared) {
  for (uint32_t slot = 0; slot < kStages; ++slot) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      InitBarrier(SharedAddress(&shared.units.full[slot][unit]), kDecodeWarps * kWarpArrivals);
      InitBarrier(SharedAddress(&shared.units.empty[slot][unit]), kWarps * kWarpArrivals);
    }
    InitBarrier(SharedAddress(&shared.p_full[kOwn][slot]), kWarps * kWarpArrivals);
    InitBarrier(SharedAddress(&shared.p_full[kOthers][slot]), 1);
    InitBarrier(SharedAddress(&shared.p_empty[slot]), 2 * kWarps * kWarpArrivals);
  }
  FenceBarriers();
  for (uint32_t slot = 0; slot < kStages; ++slot) {
    ArriveExpecting(SharedAddress(&shared.p_full[kOthers][slot]), kSentBytes);
  }
}

__global__ __cluster_dims__(2)
    __launch_bounds__(kThreads,
                      1) void MatrixAttention(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(1024) uint8_t raw[];
  AttentionShared& shared = *reinterpret_cast<AttentionShared*>(raw);
  const uint32_t group = threadIdx.x / kGroup;
  if (threadIdx.x == 0) MakeBarriers(shared);
  __syncwarp();
  ClusterArriveRelaxed();
  if (group == 0) {
    MoreRegisters<kScorerRegisters>();
    WaitForEarlier();
    LetNextBegin();
    Scorer(call, shared, ClusterRank()).Run();
  } else if (group == 1) {
    MoreRegisters<kAdderRegisters>();
    WaitForEarlier();
    LetNextBegin();
    ClusterWait();
    ValueAdder(call, shared, ClusterRank()).Run();
  } else {
    FewerRegisters<kDecoderRegisters>();
    WaitForEarlier();
    LetNextBegin();
    KeyDecoder(call, shared.units, ClusterRank(), threadIdx.x / 32 - 2 * kWarps).Run();
  }
}

// Clusters that run side by side. A launch has no more: each goes from row to row.
uint32_t ClustersAtOnce() {
  cudaLaunchAttribute pair = {};
  pair.id = cudaLaunchAttributeClusterDimension;
  pair.val.clusterDim = {2, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(2);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sizeof(AttentionShared);
  config.attrs = &pair;
  config.numAttrs = 1;
  int clusters = 0;
  if (cudaOccupancyMaxActiveClusters(&clusters, MatrixAttention, &config) != cudaSuccess) {
    cudaGetLastError();  // Not the launch's.
  }
  return static_cast<uint32_t>(std::max(clusters, 1));
}

}  // namespace

bool MatrixAttentionFits(const AttentionCall& call) {
  return call.heads <= kHeads && call.heads % 8 == 0 && call.dim == kDim &&
         call.windows.window == kWindow && call.step.pairs == kRotatedPairs && !call.drafts &&
         (call.selected == nullptr || call.topk <= kSelectedMax);
}

cudaError_t LaunchMatrixAttention(const AttentionCall& call, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<MatrixAttention>(sizeof(AttentionShared));
  if (ready != cudaSuccess) return ready;
  static const uint32_t clusters = ClustersAtOnce();
  return QueueNext(MatrixAttention,
                   {2 * std::min(call.step.rows, clusters), kThreads, sizeof(AttentionShared)},
                   stream, call);
}

}  // namespace reprise::engine::cuda
