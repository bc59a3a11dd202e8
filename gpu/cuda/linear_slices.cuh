#pragma once

#include "gpu/cuda/linear_tiles.cuh"
#include "gpu/cuda/mbarrier.cuh"

// Products with matrices of few outputs: the inputs are cut into slices, so that a few rows still
// keep the whole chip busy. The slices' sums are added in order, beginning with 0.
namespace reprise::engine::cuda {

constexpr uint32_t kSliceGroups = 4;  // Of a block; each sums a slice.
constexpr int kSliceStages = 4;       // Tiles of x, of a warpgroup.

struct Slice {
  __device__ Slice(uint32_t tiles, uint32_t slice, uint32_t slices)
      : begin(tiles * slice / slices), end(tiles * (slice + 1) / slices) {}
  uint32_t begin, end;  // Tiles of inputs.
};

// Into another block of the cluster, whose memory lies at `at` for this one.
__device__ inline void StoreRemote(uint32_t at, const float* values) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}

template <int kRows>
constexpr uint32_t kSliceStagesBytes = kSliceGroups* kSliceStages* kRows * 128;
// What a block receives: of every slice, its share of the eights of rows, four values a thread.
template <int kRows>
uint32_t SliceSharedBytes(uint32_t slices) {
  const uint32_t blocks = slices / kSliceGroups, share = (kRows / 8 + blocks - 1) / blocks;
  return kSliceStagesBytes<kRows> + slices * share * kGroupThreads * 16;
}

// A cluster takes 64 outputs, every warpgroup of it a slice of their inputs. The eights of rows are
// then finished by the blocks by turns. Follows earlier launches (launch.cuh).
template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplySlicedFewRows(const LinearCall& call) {
  // Products under way while the next tile is expanded: none where two blocks share a processor, or
  // where weights are taken as they were loaded, because the next ones may come into registers that
  // a product still reads.
  constexpr bool kTakenAsLoaded = kFormat == WeightFormat::kBf16;
  constexpr int kUnderWay = kRows == 8 || kTakenAsLoaded ? 0 : 1;
  constexpr int kAhead = kRows == 8 && kTakenAsLoaded ? 1 : 2;  // Tiles of weights.
  constexpr uint32_t kStageBytes = kRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ LargestRoom<8> rooms[kSliceGroups];
  const uint32_t blocks = ClusterBlocks(), rank = ClusterRank();
  if (blocks > 1) ClusterArrive();
  Work work;
  FindWork(call, blockIdx.x / blocks, blockIdx.y, kRows, &work);
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t index = rank * kSliceGroups + group;
  const Slice slice(call.matrix.input_tiles, index, blocks * kSliceGroups);
  const uint32_t stages = SharedAddress(shared) + group * kSliceStages * kStageBytes;
  WeightParts<kFormat> parts(call, work.first_tile + slice.begin, thread);

  RawWeights<kFormat> raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (slice.begin + i < slice.end) parts.Load(i, &raw[i]);
  }
  if (thread == 0 && slice.begin < slice.end) parts.PrefetchAll(0, slice.end - slice.begin);
  FollowEarlier();
  const RowCopies<kRows, kGroupThreads> copies(call, work, thread);
  // At a barrier the product before the last may be under way: its stage is not queued over yet.
  constexpr int kQueued = kSliceStages - 1 - kUnderWay;
#pragma unroll
  for (int i = 0; i < kQueued; ++i) {
    if (slice.begin + i < slice.end) copies.Queue(slice.begin + i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  uint32_t a[kUnderWay + 1][4][4] = {};
  uint32_t tile = slice.begin;
  const auto multiply = [&](RawWeights<kFormat>& codes, uint32_t(&of_tile)[4][4]) {
    CopyWait<kQueued - 1>();
    FenceForMatrixUnits();
    BarrierOfGroup(group);
    const uint32_t next = tile + kQueued;
    if (next < slice.end) {
      copies.Queue(next, stages + (next - slice.begin) % kSliceStages * kStageBytes);
    }
    CopyCommit();
    Expand(codes, of_tile);
    const uint32_t at = stages + (tile - slice.begin) % kSliceStages * kStageBytes;
    MultiplySteps<kRows>(sums, of_tile, SwizzledRows(at));
    if constexpr (kUnderWay == 0) {
      WgmmaWait<0>();
      Keep(of_tile);
    }
    if (tile + kAhead < slice.end) parts.Load(kAhead, &codes);
    parts.Skip(1);
    ++tile;
  };
  while (tile + 2 <= slice.end) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiply(raw[i % kAhead], a[i % (kUnderWay + 1)]);
      WgmmaWait<kUnderWay>();
      Keep(a[(i + kUnderWay) % (kUnderWay + 1)]);
    }
  }
  WgmmaWait<0>();
  Keep(a[kUnderWay]);
  if (tile < slice.end) {
    multiply(raw[0], a[0]);
    WgmmaWait<0>();
    Keep(a[0]);
  }
  Hold(sums);
  CopyWait<0>();

  const uint32_t share = (kRows / 8 + blocks - 1) / blocks;
  uint8_t* const received = shared + kSliceStagesBytes<kRows>;
  if (blocks > 1) ClusterWait();  // The others have begun.
#pragma unroll
  for (uint32_t eight = 0; eight < kRows / 8; ++eight) {
    const uint32_t at = (index * share + eight / blocks) * kGroupThreads + thread;
    StoreRemote(PeerAddress(SharedAddress(received) + at * 16, eight % blocks), &sums[eight * 4]);
  }
  if (blocks > 1) {
    ClusterArrive();
    ClusterWait();
  } else {
    __syncthreads();
  }
  for (uint32_t turn = group; turn < share; turn += kSliceGroups) {
    const uint32_t eight = turn * blocks + rank;
    if (eight >= kRows / 8) break;
    float total[4] = {};
    for (uint32_t s = 0; s < blocks * kSliceGroups; ++s) {
      const float4 one =
          reinterpret_cast<const float4*>(received)[(s * share + turn) * kGroupThreads + thread];
      total[0] += one.x;
      total[1] += one.y;
      total[2] += one.z;
      total[3] += one.w;
    }
    Store<8>(call, work, eight * 8, work.output, total, group, rooms[group]);
  }
}

}  // namespace reprise::engine::cuda
