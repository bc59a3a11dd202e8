#include "gpu/cuda/linear_tiles.cuh"
#include "protocol/base/bytes.h"

// Products with matrices of few outputs: the inputs are cut into slices, so that a few rows still
// keep the whole chip busy. The slices' sums are added in order, beginning with 0.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kGroups = 4;  // Of a block; each sums a slice.
constexpr int kStages = 4;       // Tiles of x, of a warpgroup.

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
constexpr uint32_t kStagesBytes = kGroups* kStages* kRows * 128;
// What a block receives: of every slice, its share of the eights of rows, four values a thread.
template <int kRows>
uint32_t SharedBytes(uint32_t slices) {
  const auto share = static_cast<uint32_t>(DivideUp(kRows / 8, slices / kGroups));
  return kStagesBytes<kRows> + slices * share * kGroupThreads * 16;
}

// A cluster takes 64 outputs, every warpgroup of it a slice of their inputs. The eights of rows are
// then finished by the blocks by turns.
template <WeightFormat kFormat, int kRows>
__global__ __launch_bounds__(kGroups* kGroupThreads,
                             kRows == 8 ? 2 : 1) void SlicedFewRows(LinearCall call) {
  // Tiles of weights under way: half as many where two blocks share a processor.
  constexpr int kAhead = (kFormat == WeightFormat::kBf16 ? 2 : 4) / (kRows == 8 ? 2 : 1);
  constexpr uint32_t kStageBytes = kRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ LargestRoom<8> rooms[kGroups];
  const uint32_t blocks = ClusterBlocks(), rank = ClusterRank();
  ClusterArrive();
  Work work;
  FindWork(call, blockIdx.x / blocks, kRows, &work);
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  const uint32_t index = rank * kGroups + group;
  const Slice slice(call.matrix.input_tiles, index, blocks * kGroups);
  const uint32_t stages = SharedAddress(shared) + group * kStages * kStageBytes;
  const RowCopies<kRows, kGroupThreads> copies(call, work, thread);
  WeightParts<kFormat> parts(call, work.first_tile + slice.begin, thread);

  RawWeights<kFormat> raw[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (slice.begin + i < slice.end) parts.Load(i, &raw[i]);
  }
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
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
      CopyWait<kStages - 2>();
      FenceForMatrixUnits();
      BarrierOfGroup(group);
      const uint32_t next = tile + kStages - 1;
      if (next < slice.end) {
        copies.Queue(next, stages + (next - slice.begin) % kStages * kStageBytes);
      }
      CopyCommit();
      uint32_t a[4][4];
      Expand(raw[i], a);
      if (tile + kAhead < slice.end) parts.Load(i + kAhead, &raw[i]);
      const uint32_t at = stages + (tile - slice.begin) % kStages * kStageBytes;
      MultiplyTile<kRows>(sums, a, SwizzledRows(at), true);
      WgmmaWait<0>();
      Keep(a);
    }
    parts.Skip(kAhead);
  }
  Hold(sums);
  CopyWait<0>();

  const uint32_t share = (kRows / 8 + blocks - 1) / blocks;
  uint8_t* const received = shared + kStagesBytes<kRows>;
  ClusterWait();  // The others have begun.
#pragma unroll
  for (uint32_t eight = 0; eight < kRows / 8; ++eight) {
    const uint32_t at = (index * share + eight / blocks) * kGroupThreads + thread;
    StoreRemote(SharedAddress(received) + at * 16, eight % blocks, &sums[eight * 4]);
  }
  ClusterArrive();
  ClusterWait();
  for (uint32_t turn = group; turn < share; turn += kGroups) {
    const uint32_t eight = turn * blocks + rank;
    if (eight >= kRows / 8) break;
    float total[4] = {};
    for (uint32_t s = 0; s < blocks * kGroups; ++s) {
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

// Two warpgroups over the same 128 rows; each takes 64 outputs.
constexpr uint32_t kManyShared = kStages * kManyRows * 128;

template <WeightFormat kFormat>
__global__ __launch_bounds__(kManyGroups* kGroupThreads, 1) void SlicedManyRows(LinearCall call) {
  constexpr uint32_t kStageBytes = kManyRows * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ LargestRoom<kManyRows> rooms[kManyGroups];
  const uint32_t group = threadIdx.x / kGroupThreads, thread = threadIdx.x % kGroupThreads;
  Work work;
  FindWork(call, blockIdx.x * kManyGroups, kManyRows, &work);
  const uint32_t tiles = call.matrix.input_tiles;
  const bool real = blockIdx.x * kManyGroups + group < call.matrix.output_tiles;
  WeightParts<kFormat> parts(call, work.first_tile + (real ? uint64_t{group} * tiles : 0), thread);
  const uint32_t stages = SharedAddress(shared);
  const RowCopies<kManyRows, kManyGroups * kGroupThreads> copies(call, work, threadIdx.x);

  RawWeights<kFormat> raw;
  parts.Load(0, &raw);
  for (uint32_t i = 1; i < min(kManyPrefetch, tiles); ++i) parts.Prefetch(i);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (i < tiles) copies.Queue(i, stages + i * kStageBytes);
    CopyCommit();
  }
  float sums[kManyRows / 2], total[kManyRows / 2];
#pragma unroll
  for (int i = 0; i < kManyRows / 2; ++i) sums[i] = total[i] = 0;
  // While one tile of inputs is multiplied, the codes of the next are expanded.
  uint32_t a[2][4][4] = {};
  uint32_t tile = 0;
  const auto multiply = [&](uint32_t(&of_tile)[4][4], bool add) {
    CopyWait<1>();
    FenceForMatrixUnits();
    __syncthreads();
    if (tile + 2 < tiles) {
      copies.Queue(tile + 2, stages + (tile + 2) % kStages * kStageBytes);
    }
    CopyCommit();
    Expand(raw, of_tile);
    if (tile + kManyPrefetch < tiles) parts.Prefetch(kManyPrefetch);
    const uint32_t at = stages + tile % kStages * kStageBytes;
    MultiplyTile<kManyRows>(sums, of_tile, SwizzledRows(at), add);
    if (tile + 1 < tiles) parts.Load(1, &raw);
    parts.Skip(1);
    ++tile;
  };
  for (uint32_t index = 0; index < call.matrix.slices; ++index) {
    const Slice slice(tiles, index, call.matrix.slices);
    if (slice.begin == slice.end) continue;
    while (tile + 2 <= slice.end) {
      multiply(a[0], tile > slice.begin);
      WgmmaWait<1>();
      Keep(a[1]);
      multiply(a[1], true);
      WgmmaWait<1>();
      Keep(a[0]);
    }
    WgmmaWait<0>();
    Keep(a[1]);
    if (tile < slice.end) {
      multiply(a[0], tile > slice.begin);
      WgmmaWait<0>();
      Keep(a[0]);
    }
    Hold(sums);
#pragma unroll
    for (int i = 0; i < kManyRows / 2; ++i) total[i] += sums[i];
  }
  if (!real) return;
  Store<kManyRows>(call, work, 0, work.output + group * kTileOutputs, total, group, rooms[group]);
}

template <WeightFormat kFormat, int kRows>
cudaError_t LaunchFew(const LinearCall& call, dim3 grid, cudaStream_t stream) {
  const uint32_t cluster = call.matrix.slices / kGroups;
  grid.x *= cluster;
  return Queue<SlicedFewRows<kFormat, kRows>>(
      call, grid, kGroups * kGroupThreads, SharedBytes<kRows>(call.matrix.slices), cluster, stream);
}

template <WeightFormat kFormat>
cudaError_t Launch(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  dim3 grid(call.matrix.output_tiles, static_cast<uint32_t>(DivideUp(call.rows, tile_rows)));
  switch (tile_rows) {
    case 8:
      return LaunchFew<kFormat, 8>(call, grid, stream);
    case 16:
      return LaunchFew<kFormat, 16>(call, grid, stream);
    case 32:
      return LaunchFew<kFormat, 32>(call, grid, stream);
    case 64:
      return LaunchFew<kFormat, 64>(call, grid, stream);
    case kManyRows:
      grid.x = (grid.x + kManyGroups - 1) / kManyGroups;
      return Queue<SlicedManyRows<kFormat>>(call, grid, kManyGroups * kGroupThreads, kManyShared, 1,
                                            stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

uint32_t LinearTileRows(const DeviceLinear& matrix, uint32_t rows) {
  const uint32_t tile = LinearTileRows(rows);
  if (tile < kManyRows || matrix.slices == 1) return tile;
  // Few outputs make few blocks. One of 64 rows takes about a third of the time of one of 128 rows
  // and 128 outputs, shared by the blocks of a cluster.
  constexpr uint32_t kMultiprocessors = 132, kFewRowsOfTile = 64;
  const auto waves = [](uint64_t blocks) { return DivideUp(blocks, kMultiprocessors); };
  const uint32_t cluster = matrix.slices / kGroups;
  const uint64_t few =
      waves(uint64_t{matrix.output_tiles} * cluster * DivideUp(rows, kFewRowsOfTile));
  const uint64_t many = waves(DivideUp(matrix.output_tiles, kManyGroups) * DivideUp(rows, tile));
  return few < 3 * many * cluster ? kFewRowsOfTile : tile;
}

cudaError_t LaunchSlicedLinear(const LinearCall& call, uint32_t tile_rows, cudaStream_t stream) {
  switch (call.matrix.format) {
    case WeightFormat::kBf16:
      return Launch<WeightFormat::kBf16>(call, tile_rows, stream);
    case WeightFormat::kFp8:
      return Launch<WeightFormat::kFp8>(call, tile_rows, stream);
    case WeightFormat::kFp4:
      return Launch<WeightFormat::kFp4>(call, tile_rows, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace reprise::engine::cuda
