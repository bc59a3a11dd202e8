#pragma once

#include "gpu/cuda/linear_tiles.cuh"

// Products with matrices of few outputs: the inputs are cut into slices, so that a few rows still
// keep the whole chip busy. The slices' sums are added in order, beginning with 0.
namespace reprise::engine::cuda {

constexpr uint32_t kSliceGroups = 4;  // Of a block; each sums a slice.
constexpr uint32_t kSliceThreads = kSliceGroups * kGroupThreads;
constexpr int kSliceStages = 4;  // Tiles of x, of a warpgroup.

struct Slice {
  __device__ Slice(uint32_t tiles, uint32_t slice, uint32_t slices)
      : begin(tiles * slice / slices), end(tiles * (slice + 1) / slices) {}
  uint32_t begin, end;  // Tiles of inputs.
};

__device__ inline uint32_t ClusterBlocks() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
  return blocks;
}
__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(rank));
  return rank;
}
__device__ inline void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Into another block of the cluster, at the place of `at` in this one.
__device__ inline void StoreRemote(uint32_t at, uint32_t rank, const float* values) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(rank));
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(values[0]),
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
// then finished by the blocks by turns.
template <WeightFormat kFormat, int kRows>
__device__ inline void MultiplySlicedFewRows(const LinearCall& call) {
  // Tiles of weights under way: half as many where two blocks share a processor.
  constexpr int kAhead = (kFormat == WeightFormat::kBf16 ? 2 : 4) / (kRows == 8 ? 2 : 1);
  constexpr uint32_t kStageBytes = kRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ LargestRoom<8> rooms[kSliceGroups];
  const uint32_t blocks = ClusterBlocks(), rank = ClusterRank();
  ClusterArrive();
  Work work;
  FindWork(call, blockIdx.x / blocks, blockIdx.y, kRows, &work);
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t index = rank * kSliceGroups + group;
  const Slice slice(call.matrix.input_tiles, index, blocks * kSliceGroups);
  const uint32_t stages = SharedAddress(shared) + group * kSliceStages * kStageBytes;
  const RowCopies<kRows, kGroupThreads> copies(call, work, thread);
  WeightParts<kFormat> parts(call, work.first_tile + slice.begin, thread);

  RawWeights<kFormat> raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (slice.begin + i < slice.end) parts.Load(i, &raw[i]);
  }
#pragma unroll
  for (int i = 0; i < kSliceStages - 1; ++i) {
    if (slice.begin + i < slice.end) copies.Queue(slice.begin + i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kRows / 2];
#pragma unroll
  for (float& sum : sums) sum = 0;
  for (uint32_t round = slice.begin; round < slice.end; round += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const uint32_t tile = round + i;
      if (tile >= slice.end) break;
      CopyWait<kSliceStages - 2>();
      FenceForMatrixUnits();
      BarrierOfGroup(group);
      const uint32_t next = tile + kSliceStages - 1;
      if (next < slice.end) {
        copies.Queue(next, stages + (next - slice.begin) % kSliceStages * kStageBytes);
      }
      CopyCommit();
      uint32_t a[4][4];
      Expand(raw[i], a);
      if (tile + kAhead < slice.end) parts.Load(i + kAhead, &raw[i]);
      const uint32_t at = stages + (tile - slice.begin) % kSliceStages * kStageBytes;
      MultiplyTile<kRows>(sums, a, SwizzledRows(at), true);
      WgmmaWait<0>();
      Keep(a);
    }
    parts.Skip(kAhead);
  }
  Hold(sums);
  CopyWait<0>();

  const uint32_t share = (kRows / 8 + blocks - 1) / blocks;
  uint8_t* const received = shared + kSliceStagesBytes<kRows>;
  ClusterWait();  // The others have begun.
#pragma unroll
  for (uint32_t eight = 0; eight < kRows / 8; ++eight) {
    const uint32_t at = (index * share + eight / blocks) * kGroupThreads + thread;
    StoreRemote(SharedAddress(received) + at * 16, eight % blocks, &sums[eight * 4]);
  }
  ClusterArrive();
  ClusterWait();
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
