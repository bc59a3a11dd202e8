#include <algorithm>

#include "gpu/cuda/attention_keys.cuh"
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
// A cluster of two blocks takes rows: block r has dimensions 256 r and on, of all keys, 64 at a
// time. In a block two warpgroups turn codes into bf16 tiles; one, the scorer, multiplies queries
// and keys, adds what the other block has for its dimensions, and makes probabilities; one, the
// adder, sums values. Both blocks make the same probabilities. A row's tiles follow from its list
// alone, so it becomes the same bytes whatever runs beside it.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kSteps = kHalfDim / 16;  // Of a product with keys.
constexpr float kNone = -3e38f, kLog2E = 1.44269504f;

// Of a scorer, an adder and a decoder: all that there are.
constexpr uint32_t kScorerRegisters = 224, kAdderRegisters = 160, kDecoderRegisters = 64;
static_assert((kScorerRegisters + kAdderRegisters + 2 * kDecoderRegisters) * kGroup == 65536);

template <uint32_t kRegisters>
__device__ inline void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
__device__ inline void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
__device__ inline float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Logits and probabilities.
class Scorer {
 public:
  __device__ Scorer(const AttentionCall& call, AttentionShared& shared, uint32_t rank)
      : call_(call),
        shared_(shared),
        rank_(rank),
        scale_(call.scale * (kKeyUnit * kLog2E)),
        peer_received_(PeerAddress(SharedAddress(shared.received), 1 - rank)),
        peer_full_(PeerAddress(SharedAddress(shared.received_full), 1 - rank)) {}

  // Logits of a tile are sent while those of the tile before become probabilities, and the products
  // of the next are under way: three tiles' sums. So rows follow one another without a gap; after
  // the last tile two products come to nothing, since products under way must not depend on what
  // the code does.
  __device__ __forceinline__ void Run() {
    float a[32], b[32], c[32];
    row_ = blockIdx.x / 2;
    LoadQuery();
    ClusterWait();  // The barriers are made, here and in the other block.
    now_ = Multiply(a, 0);
    WgmmaWait<0>();
    Hold(a);
    Keep(query_);
    Send(a, 0);
    next_ = Multiply(b, now_);
    while (true) {
      if (Step(a, b, c)) break;
      if (Step(b, c, a)) break;
      if (Step(c, a, b)) break;
    }
    WgmmaWait<0>();
    Keep(query_);
  }

 private:
  // Operand A from the row's queries, in the order of the keys' dimensions.
  __device__ __forceinline__ void LoadQuery() {
    uint4 raw[kHalfDim / 64][2][2];  // [block][head][eight dimensions]
    const uint32_t dim = rank_ * kHalfDim + at_.quarter * 16;
    const Bf16Bits* from = call_.query + (uint64_t{row_} * call_.heads + at_.head) * kDim + dim;
#pragma unroll
    for (uint32_t block = 0; block < kHalfDim / 64; ++block) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
          const auto* eight =
              reinterpret_cast<const uint4*>(from + k * 8 * kDim + block * 64 + h * 8);
          raw[block][k][h] = at_.head + 8 * k < call_.heads ? __ldg(eight) : uint4{};
        }
      }
    }
    const uint32_t pairs = call_.step.pairs, begin = kDim - 2 * pairs;
#pragma unroll
    for (uint32_t block = 0; block < kHalfDim / 64; ++block) {
      if (call_.rotate_query && rank_ * kHalfDim + block * 64 + 64 > begin) {
        const float* cosines = call_.step.cosines[call_.rotation] + uint64_t{row_} * pairs;
        const float* sines = call_.step.sines[call_.rotation] + uint64_t{row_} * pairs;
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
#pragma unroll
          for (uint32_t m = 0; m < 4; ++m) {
            const uint32_t d = dim + block * 64 + h * 8 + 2 * m;
            if (d < begin) continue;
            const float c = cosines[(d - begin) / 2], s = sines[(d - begin) / 2];
#pragma unroll
            for (uint32_t k = 0; k < 2; ++k) {
              uint32_t& word = (&raw[block][k][h].x)[m];
              word = Turned(word, c, s);
            }
          }
        }
      }
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
          const uint4& eight = raw[block][k][h];
          query_[4 * block][k + 2 * h] = __byte_perm(eight.x, eight.z, 0x5410);
          query_[4 * block + 1][k + 2 * h] = __byte_perm(eight.x, eight.z, 0x7632);
          query_[4 * block + 2][k + 2 * h] = __byte_perm(eight.y, eight.w, 0x5410);
          query_[4 * block + 3][k + 2 * h] = __byte_perm(eight.y, eight.w, 0x7632);
        }
      }
    }
#pragma unroll
    for (auto& step : query_) Hold(step);
    __syncwarp();
  }

  // Starts the products with the tile after one that is `before`, and gives what that tile is.
  __device__ __forceinline__ uint32_t Multiply(float (&sums)[32], uint32_t before) {
    uint32_t is = kNoTile | kLastOfAll;
    if ((before & kLastOfAll) == 0) {
      if ((before & kLastOfRow) != 0) {
        row_ += gridDim.x / 2;
        LoadQuery();
      }
      WaitPhase(SharedAddress(&shared_.tiles.full[ahead_.buffer]), ahead_.parity);
      is = shared_.tiles.info[ahead_.buffer].is;
    }
    const uint64_t keys = SwizzledRows(SharedAddress(shared_.tiles.keys[ahead_.buffer]));
    Forget(sums);
    WgmmaFence();
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
      Wgmma<64>::Run(sums, query_[step], keys + (step / 4 * kBlockBytes + step % 4 * 32) / 16,
                     step > 0 ? 1 : 0);
    }
    WgmmaCommit();
    ahead_.Next();
    return is;
  }
  // Sums to the other block, as one copy. Those that lay in the slot before have arrived: the other
  // block has sent its own of the next tile since.
  __device__ __forceinline__ void Send(float (&sums)[32], uint32_t slot) {
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
      shared_.sent[slot][i][at_.thread] =
          make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    }
    FenceForMatrixUnits();  // And for copies.
    GroupBarrier<1>(kGroup);
    if (at_.thread == 0) {
      CopyToPeer(peer_received_ + slot * kLogitBytes, SharedAddress(shared_.sent[slot]),
                 kLogitBytes, peer_full_ + slot * sizeof(uint64_t));
    }
  }

  // True: that was all. The other block writes into a slot again only when it has this block's
  // logits of the next tile, which are sent after those in the slot were read.
  __device__ __forceinline__ bool Step(float (&now)[32], float (&next)[32], float (&third)[32]) {
    const uint32_t slot = tile_ % 2, parity = tile_ / 2 % 2;
    WgmmaWait<0>();
    Hold(next);
    Keep(query_);
    WaitReceived(SharedAddress(&shared_.received_full[slot]), parity);
    if (at_.thread == 0) {
      ArriveExpecting(SharedAddress(&shared_.received_full[slot]), kLogitBytes);
    }
    float logits[32];
#pragma unroll
    for (uint32_t i = 0; i < kKeys / 8; ++i) {
      const float4 other = shared_.received[slot][i][at_.thread];
      logits[4 * i] = now[4 * i] + other.x;
      logits[4 * i + 1] = now[4 * i + 1] + other.y;
      logits[4 * i + 2] = now[4 * i + 2] + other.z;
      logits[4 * i + 3] = now[4 * i + 3] + other.w;
    }
    Hold(logits);
    if ((next_ & kNoTile) == 0) Send(next, 1 - slot);
    const uint32_t third_is = Multiply(third, next_);
    Attend(logits, slot, parity);
    const bool done = (now_ & kLastOfAll) != 0;
    now_ = next_;
    next_ = third_is;
    ++tile_;
    current_.Next();
    return done;
  }

  // Logits to probabilities, for the adder.
  __device__ __forceinline__ void Attend(float (&logits)[32], uint32_t slot, uint32_t parity) {
    const auto mask = *reinterpret_cast<const uint2*>(shared_.tiles.info[current_.buffer].mask);
    if ((mask.x & mask.y) != 0xffffffff) {
      const uint32_t own[2] = {mask.x >> (2 * at_.quarter), mask.y >> (2 * at_.quarter)};
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const uint32_t bit = i / 4 % 4 * 8 + i % 2;
        if ((own[i / 16] >> bit & 1) == 0) logits[i] = kNone;
      }
    }
    if (first_) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        top_[k] = -1e30f;
        total_[k] = 0;
      }
    }
    first_ = (now_ & kLastOfRow) != 0;
    float largest[2] = {kNone, kNone};
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      largest[0] = fmaxf(largest[0], fmaxf(logits[i], logits[i + 1]));
      largest[1] = fmaxf(largest[1], fmaxf(logits[i + 2], logits[i + 3]));
    }
    float decay[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 1));
      largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 2));
      const float top = fmaxf(top_[k], largest[k] * scale_);
      decay[k] = Exp2(top_[k] - top);
      top_[k] = top;
      total_[k] *= decay[k];
    }
    float added[2] = {0, 0};
    uint32_t p[16];
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int k = i / 2 % 2;
      const float x = Exp2(fmaf(logits[i], scale_, -top_[k]));
      const float y = Exp2(fmaf(logits[i + 1], scale_, -top_[k]));
      added[k] += x + y;
      p[i / 2] = PairBits(x, y);
    }
#pragma unroll
    for (int k = 0; k < 2; ++k) total_[k] += added[k];  // Of this thread's keys.

    WaitPhase(SharedAddress(&shared_.p_empty[slot]), parity ^ 1);
    // Eight rows by eight keys four times: matrix m is for rows 8 (m % 2), keys 8 (m / 2).
    const uint32_t row = at_.warp * 16 + at_.lane / 8 % 2 * 8 + at_.lane % 8;
    const uint32_t to = SharedAddress(shared_.p[slot]) + SwizzledOffset(row, at_.lane / 16);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      asm volatile(
          "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to ^ i / 2 << 4),
          "r"(p[i]), "r"(p[i + 1]), "r"(p[i + 2]), "r"(p[i + 3])
          : "memory");
    }
    if (at_.quarter == 0) {
      shared_.decay[slot][at_.head] = decay[0];
      shared_.decay[slot][at_.head + 8] = decay[1];
    }
    if (first_) {  // The next one is.
      WaitPhase(SharedAddress(&shared_.inverse_empty), rows_done_ % 2 ^ 1);
      ++rows_done_;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float total = total_[k];
        total += __shfl_xor_sync(0xffffffff, total, 1);
        total += __shfl_xor_sync(0xffffffff, total, 2);
        const uint32_t head = at_.head + 8 * k;
        if (head < call_.heads) total += Exp2(fmaf(call_.sinks[head], kLog2E, -top_[k]));
        if (at_.quarter == 0) shared_.inverse[head] = kKeyUnit / total;
      }
    }
    FenceForMatrixUnits();
    __syncwarp();
    if (at_.lane == 0) ArriveAt(SharedAddress(&shared_.p_full[slot]));
  }

  const ProductPlace at_;
  const AttentionCall& call_;
  AttentionShared& shared_;
  const uint32_t rank_;
  const float scale_;  // Of logits as powers of two, from sums with the keys' unit.
  const uint32_t peer_received_, peer_full_;
  uint32_t query_[kSteps][4];
  float top_[2], total_[2];
  TileTurn current_, ahead_;
  uint32_t tile_ = 0, rows_done_ = 0;  // Since the start.
  bool first_ = true;                  // Of its row.
  uint32_t now_ = 0, next_ = 0;        // What the tiles under way are.
  uint32_t row_ = 0;                   // Whose queries there are.
};

__device__ inline void MakeBarriers(AttentionShared& shared) {
  for (uint32_t i = 0; i < kTiles; ++i) {
    InitBarrier(SharedAddress(&shared.tiles.full[i]), kDecodeWarps);
    InitBarrier(SharedAddress(&shared.tiles.empty[i]), kWarps);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    InitBarrier(SharedAddress(&shared.received_full[i]), 1);
    InitBarrier(SharedAddress(&shared.p_full[i]), kWarps);
    InitBarrier(SharedAddress(&shared.p_empty[i]), kWarps);
  }
  InitBarrier(SharedAddress(&shared.inverse_empty), kWarps);
  FenceBarriers();
  for (uint32_t i = 0; i < 2; ++i) {
    ArriveExpecting(SharedAddress(&shared.received_full[i]), kLogitBytes);
  }
}

__global__ __cluster_dims__(2)
    __launch_bounds__(kThreads,
                      1) void MatrixAttention(const __grid_constant__ AttentionCall call) {
  WaitForEarlier();
  LetNextBegin();
  extern __shared__ __align__(1024) uint8_t raw[];
  AttentionShared& shared = *reinterpret_cast<AttentionShared*>(raw);
  const uint32_t rank = ClusterRank(), group = threadIdx.x / kGroup;
  if (threadIdx.x == 0) MakeBarriers(shared);
  __syncwarp();
  ClusterArrive();
  if (group == 0) {
    MoreRegisters<kScorerRegisters>();
    Scorer(call, shared, rank).Run();
  } else if (group == 1) {
    MoreRegisters<kAdderRegisters>();
    ClusterWait();
    ValueAdder(call, shared, rank).Run();
  } else {
    FewerRegisters<kDecoderRegisters>();
    KeyDecoder decoder(call, shared.tiles, rank, threadIdx.x / 32 - 2 * kWarps);
    bool waited = false;
    for (uint32_t row = blockIdx.x / 2; row < call.step.rows; row += gridDim.x / 2) {
      // Decoders are ahead: the scorer will find the row's queries in the L2.
      const uint32_t thread = threadIdx.x - 2 * kGroup, head = thread / 4;
      if (head < call.heads) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(call.query +
                                                      (uint64_t{row} * call.heads + head) * kDim +
                                                      rank * kHalfDim + thread % 4 * 64));
      }
      decoder.Row(row, row + gridDim.x / 2 >= call.step.rows, [&] {
        if (!waited) ClusterWait();
        waited = true;
      });
    }
  }
  // Neither leaves while the other may still send.
  ClusterArrive();
  ClusterWait();
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
         call.windows.window % kKeys == 0 && !call.drafts;
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
