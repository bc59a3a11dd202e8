#include <cooperative_groups.h>

#include <cstddef>
#include <cub/block/block_scan.cuh>

#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/sampling.h"

// A cluster of blocks takes a row, each an equal part of its tokens, whose logits it keeps in
// shared memory. What the blocks find they read from one another. Sums are of integers, by atomics
// in any order.
namespace reprise::engine::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr uint32_t kBlocks = 8;  // Of a row.
constexpr uint32_t kThreads = 512;
constexpr uint32_t kAtOnce = 8;                             // Logits that a thread loads together.
constexpr uint32_t kTokensMax = kChooseVocabMax / kBlocks;  // Of a block.
constexpr uint32_t kBinBits = 11, kBins = 1 << kBinBits;
constexpr uint32_t kBinsOfThread = kBins / kThreads;
constexpr uint32_t kOwnBins = kBins / kBlocks;  // That a block sums for all.
constexpr uint32_t kAllLanes = 0xffffffff;

// Order as the numbers do; -0 is 0.
__device__ inline uint32_t OrderOf(float value) {
  const uint32_t bits = __float_as_uint(value + 0.0f);
  return bits >> 31 != 0 ? ~bits : bits | 1u << 31;
}
__device__ inline uint64_t OrderOf(double value) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(value + 0.0));
  return bits >> 63 != 0 ? ~bits : bits | uint64_t{1} << 63;
}
__device__ inline float ValueOf(uint32_t order) {
  return __uint_as_float(order >> 31 != 0 ? order & ~(1u << 31) : ~order);
}

// kNobody is worse than any token. The better one has the larger order; of equals the lower token.
struct Best {
  uint64_t order;
  uint32_t token;

  __device__ void Take(const Best& other) {
    if (other.order < order || (other.order == order && other.token >= token)) return;
    *this = other;
  }
  __device__ void TakeOfWarp() {
    for (uint32_t lanes = 16; lanes > 0; lanes /= 2) {
      Take({__shfl_xor_sync(kAllLanes, order, lanes), __shfl_xor_sync(kAllLanes, token, lanes)});
    }
  }
};
__device__ constexpr Best kNobody = {0, 0xffffffff};

// Where a nucleus ends among the bins: in bin `digit`, that has `sum`, of which `left` is needed.
struct Found {
  uint32_t digit;
  uint64_t left, sum;
};

using Scan = cub::BlockScan<uint64_t, kThreads>;

struct ChooseShared {
  uint32_t low[kBins], high[kBins];  // Halves of the bins, of this block's tokens.
  uint64_t sums[kOwnBins];           // Of all blocks', of this block's share of the bins.
  Best of_warps[kThreads / 32];
  Best of_block[2];  // Of logits, and of ranks: others may still read one while the other is made.
  Found found;
  uint32_t floor;  // As OrderOf: about the largest rank so far.
  Scan::TempStorage scan;
  float logits[1];  // Of this block's tokens, up to kTokensMax.
};
constexpr uint32_t SharedBytes(uint32_t tokens) {
  return static_cast<uint32_t>(offsetof(ChooseShared, logits) + tokens * sizeof(float));
}
static_assert(SharedBytes(kTokensMax) <= 227 << 10);

__host__ __device__ constexpr uint32_t TokensOfBlock(uint32_t vocab) {
  return (vocab + kBlocks - 1) / kBlocks;
}

class RowOfTokens {
 public:
  __device__ RowOfTokens(const ChooseCall& call, ChooseShared& shared)
      : call_(call), shared_(shared), cluster_(cg::this_cluster()), row_(blockIdx.x / kBlocks) {
    first_ = min(cluster_.block_rank() * TokensOfBlock(call.vocab), call.vocab);
    count_ = min(TokensOfBlock(call.vocab), call.vocab - first_);
    for (uint32_t bin = threadIdx.x; bin < kBins; bin += kThreads) {
      shared.low[bin] = shared.high[bin] = 0;
    }
    shared.floor = 0;
  }

  __device__ void Run() {
    const TokenDraw how = call_.draws[row_];
    Best best = OfCluster(Load(), 0);
    if (!how.greedy()) {
      top_ = ValueOf(static_cast<uint32_t>(best.order));
      sharpness_ = how.sharpness;
      // Its rank is what others must reach.
      if (threadIdx.x == 0) {
        Reach(draw::Rank(0, draw::NoiseOf(how.noise, best.token)));
      }
      const draw::NucleusEnd end = how.top_p < 1 ? Nucleus(how.top_p) : draw::NucleusEnd();
      __syncthreads();
      best = OfCluster(Ranked(how.noise, end), 1);
    }
    if (cluster_.block_rank() == 0 && threadIdx.x == 0) {
      call_.tokens[row_] = best.token < call_.vocab ? best.token : 0;
    }
    cluster_.sync();  // Nobody leaves while others read what it found.
  }

 private:
  // Keeps the logits, and finds the largest of this thread's. A thread keeps what it reads later.
  __device__ Best Load() const {
    const float* logits = call_.logits + row_ * call_.stride + first_;
    const float* corrections = call_.corrections == nullptr
                                   ? nullptr
                                   : call_.corrections + row_ * uint64_t{call_.vocab} + first_;
    uint32_t order = 0, token = 0xffffffff;
    for (uint32_t at = threadIdx.x; at < count_; at += kAtOnce * kThreads) {
      float values[kAtOnce], more[kAtOnce];
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        const bool own = at + i * kThreads < count_;
        values[i] = own ? logits[at + i * kThreads] : 0;
        more[i] = own && corrections != nullptr ? corrections[at + i * kThreads] : 0;
      }
#pragma unroll
      for (uint32_t i = 0; i < kAtOnce; ++i) {
        if (at + i * kThreads >= count_) break;
        const float value = corrections == nullptr ? values[i] : values[i] + more[i];
        shared_.logits[at + i * kThreads] = value;
        if (OrderOf(value) <= order) continue;
        order = OrderOf(value);
        token = first_ + at + i * kThreads;
      }
    }
    return {order, token};
  }

  // body(token, x) for this thread's.
  template <typename Body>
  __device__ void ForTokens(const Body& body) const {
#pragma unroll 4
    for (uint32_t at = threadIdx.x; at < count_; at += kThreads) {
      body(first_ + at, (shared_.logits[at] - top_) * sharpness_);
    }
  }

  // Each place is used once.
  __device__ Best OfCluster(Best best, uint32_t place) {
    best.TakeOfWarp();
    if (threadIdx.x % 32 == 0) shared_.of_warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
      best = threadIdx.x < kThreads / 32 ? shared_.of_warps[threadIdx.x] : kNobody;
      best.TakeOfWarp();
      if (threadIdx.x == 0) shared_.of_block[place] = best;
    }
    cluster_.sync();
    best = *cluster_.map_shared_rank(&shared_.of_block[place], threadIdx.x % kBlocks);
    best.TakeOfWarp();
    return best;
  }

  // ---- The nucleus: the upper and the lower half of its last token's distance -------------------

  __device__ draw::NucleusEnd Nucleus(double top_p) {
    ForTokens([&](uint32_t, float x) {
      const uint32_t distance = draw::Distance(x);
      if (distance != draw::kFar) Add(distance >> kBinBits, draw::Weight(distance));
    });
    const uint64_t total = SumBins();
    if (total == 0) return {};  // Not of numbers.
    const Found upper = Find(draw::NucleusNeed(top_p, total));
    ForTokens([&](uint32_t, float x) {
      const uint32_t distance = draw::Distance(x);
      if (distance >> kBinBits != upper.digit) return;
      Add(distance & (kBins - 1), draw::Weight(distance));
    });
    SumBins();
    const Found lower = Find(upper.left);
    // Tokens as far have the same weight: how many of them are needed, of how many.
    const uint32_t distance = upper.digit << kBinBits | lower.digit;
    const uint64_t weight = draw::Weight(distance);
    const uint64_t needed = (lower.left + weight - 1) / weight;
    if (needed == lower.sum / weight) return {distance, 0xffffffff};
    return {distance, LastAsFar(distance, needed)};
  }

  // The token, among those of a distance, up to which `needed` are kept.
  __device__ uint32_t LastAsFar(uint32_t distance, uint64_t needed) {
    ForTokens([&](uint32_t token, float x) {
      if (draw::Distance(x) == distance) Add(token >> kBinBits, 1);
    });
    SumBins();
    const Found upper = Find(needed);
    ForTokens([&](uint32_t token, float x) {
      if (draw::Distance(x) != distance || token >> kBinBits != upper.digit) return;
      Add(token & (kBins - 1), 1);
    });
    SumBins();
    return upper.digit << kBinBits | Find(upper.left).digit;
  }

  // In halves: shared memory adds 32 bits at once.
  __device__ void Add(uint32_t bin, uint64_t weight) {
    const auto low = static_cast<uint32_t>(weight);
    auto high = static_cast<uint32_t>(weight >> 32);
    if (atomicAdd(&shared_.low[bin], low) + low < low) ++high;
    if (high != 0) atomicAdd(&shared_.high[bin], high);
  }

  // Over all blocks. A thread then has some bins' sums, that of those before, and the total.
  __device__ uint64_t SumBins() {
    cluster_.sync();
    for (uint32_t bin = threadIdx.x; bin < kOwnBins; bin += kThreads) {
      uint64_t sum = 0;
#pragma unroll
      for (uint32_t block = 0; block < kBlocks; ++block) {
        const uint32_t at = cluster_.block_rank() * kOwnBins + bin;
        sum += cluster_.map_shared_rank(shared_.low, block)[at];
        sum += uint64_t{cluster_.map_shared_rank(shared_.high, block)[at]} << 32;
      }
      shared_.sums[bin] = sum;
    }
    cluster_.sync();
    const uint32_t bin = kBinsOfThread * threadIdx.x;
    const uint64_t* sums = cluster_.map_shared_rank(shared_.sums, bin / kOwnBins);
    uint64_t own = 0, total = 0;
#pragma unroll
    for (uint32_t i = 0; i < kBinsOfThread; ++i) {
      sums_[i] = sums[bin % kOwnBins + i];
      own += sums_[i];
      shared_.low[bin + i] = shared_.high[bin + i] = 0;
    }
    Scan(shared_.scan).ExclusiveSum(own, before_, total);
    return total;
  }
  // REQUIRES: need is at least 1, and at most the total.
  __device__ Found Find(uint64_t need) {
    uint64_t before = before_;
#pragma unroll
    for (uint32_t i = 0; i < kBinsOfThread; ++i) {
      if (before < need && need <= before + sums_[i]) {
        shared_.found = {kBinsOfThread * threadIdx.x + i, need - before, sums_[i]};
      }
      before += sums_[i];
    }
    __syncthreads();
    return shared_.found;
  }

  // ---- The ranks --------------------------------------------------------------------------------

  __device__ void Reach(double rank) {
    atomicMax(&shared_.floor, OrderOf(static_cast<float>(rank)));
  }

  // The best of this thread's tokens. Few are ranked: those whose bound is not below a rank that
  // this block has found.
  __device__ Best Ranked(uint64_t noise, const draw::NucleusEnd& end) {
    Best best = kNobody;
    const volatile uint32_t& floor = shared_.floor;
    ForTokens([&](uint32_t token, float x) {
      if (end.distance != draw::kFar && !end.Keeps(draw::Distance(x), token)) return;
      const uint64_t bits = draw::NoiseOf(noise, token);
      const auto ones = static_cast<uint32_t>(__clzll(static_cast<long long>(~bits)));
      if (draw::RankBound(x, ones) < ValueOf(floor)) return;
      const double rank = draw::Rank(x, bits);
      best.Take({OrderOf(rank), token});
      Reach(rank);
    });
    return best;
  }

  const ChooseCall& call_;
  ChooseShared& shared_;
  const cg::cluster_group cluster_;
  const uint64_t row_;
  uint32_t first_, count_;  // Tokens of this block.
  float top_ = 0, sharpness_ = 0;
  uint64_t sums_[kBinsOfThread] = {}, before_ = 0;
};

__global__ void __launch_bounds__(kThreads) Choose(const __grid_constant__ ChooseCall call) {
  extern __shared__ __align__(16) std::byte room[];
  RowOfTokens row(call, *reinterpret_cast<ChooseShared*>(room));
  WaitForEarlier();
  LetNextBegin();
  row.Run();
}

__global__ void DraftInputs(const __grid_constant__ DraftInputsCall call) {
  WaitForEarlier();
  LetNextBegin();
  const uint32_t k = blockIdx.x / call.requests, r = blockIdx.x % call.requests;
  const Bf16Bits* y = call.y + (uint64_t{r} * call.drafts + k) * call.hidden;
  const uint32_t previous = k == 0 ? call.first[r] : call.tokens[blockIdx.x - call.requests];
  const Bf16Bits* embed = call.embed + uint64_t{previous} * call.rank;
  Bf16Bits* to = call.inputs + uint64_t{blockIdx.x} * call.width;
  for (uint32_t i = threadIdx.x; i < call.hidden / 8; i += blockDim.x) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(y)[i];
  }
  for (uint32_t i = threadIdx.x; i < call.rank; i += blockDim.x) to[call.hidden + i] = embed[i];
}

}  // namespace

cudaError_t LaunchChoose(const ChooseCall& call, cudaStream_t stream) {
  if (call.rows == 0) return cudaSuccess;
  const cudaError_t ready = AllowShared<Choose>(SharedBytes(kTokensMax));
  if (ready != cudaSuccess) return ready;
  return QueueNext(Choose,
                   {.grid = call.rows * kBlocks,
                    .threads = kThreads,
                    .shared = SharedBytes(TokensOfBlock(call.vocab)),
                    .cluster = kBlocks},
                   stream, call);
}

cudaError_t LaunchDraftInputs(const DraftInputsCall& call, cudaStream_t stream) {
  if (call.requests * call.drafts == 0) return cudaSuccess;
  return QueueNext(DraftInputs, {.grid = call.requests * call.drafts, .threads = 256}, stream,
                   call);
}

}  // namespace reprise::engine::cuda
