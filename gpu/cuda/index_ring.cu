#include <algorithm>

#include "gpu/cuda/index_bytes.cuh"
#include "gpu/cuda/index_keys.cuh"
#include "gpu/cuda/index_ring.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/places.cuh"

// Scores of few rows are bound by how many instructions a key takes and by how many bytes are under
// way. So one warp has the copy engine fill a ring with codes and scales, far ahead, and warpgroups
// expand and multiply, as 8-bit integers wherever that gives the same scores.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kGroups = 4, kGroupThreads = 128;
constexpr uint32_t kScorers = kGroups * kGroupThreads, kThreads = kScorers + 32;
constexpr uint32_t kStageTiles = 2, kStageKeys = kStageTiles * kTileKeys;
constexpr uint32_t kStages = 12;  // A multiple of the groups, which take turns.
// Stages, by a lane each. racecheck takes the first of them for the writer of all.
constexpr uint32_t kFilledAtOnce = kForRacecheck ? 1 : 2;
static_assert(kStages % kGroups == 0);

struct RingShared {
  uint8_t queries[2][kIndexHeads * 128];  // Of 64 inputs each, swizzled.
  ByteQueries bytes;
  uint8_t codes[kStages][kStageKeys * kKeyCodeBytes];
  uint8_t scales[kStages][kStageKeys * kKeyScaleBytes];
  uint64_t full[kStages], empty[kStages];
  float weights[kIndexHeads];  // Halves (HalfWeight).
  bool far;                    // The queries are none for integers.
};

// The stages of keys that are a block's, of those of a row.
struct OwnStages {
  __device__ explicit OwnStages(uint32_t keys) {
    const uint32_t all = (keys + kStageKeys - 1) / kStageKeys;
    count = all > blockIdx.x ? (all - blockIdx.x - 1) / gridDim.x + 1 : 0;
  }
  __device__ static uint32_t FirstKey(uint32_t n) {
    return (blockIdx.x + n * gridDim.x) * kStageKeys;
  }
  uint32_t count;
};

// By one warp: a stage is a lane's, which has looked up its block long before its turn.
__device__ inline void FillRing(const ScoreCall& call, uint32_t row, RingShared& shared) {
  const uint32_t lane = threadIdx.x % 32;
  const EntryView& view = call.entries;
  const StepView& step = call.step;
  // One look-up less before the first keys, if there is one part.
  const DevicePart& part = step.part[step.parts == 1 ? 0 : step.part_of_row[row]];
  const OwnStages own(Visible(step, row, call.ratio));
  std::byte* const* const blocks = step.blocks + part.first_block;
  const auto block_of = [&](uint32_t n) {
    return n < own.count ? blocks[OwnStages::FirstKey(n) >> view.block_shift] : nullptr;
  };
  const std::byte* next = block_of(lane);
  for (uint32_t n = lane; n - lane < own.count; n += 32) {
    const std::byte* const block = next;
    next = block_of(n + 32);
    const uint32_t in_block = OwnStages::FirstKey(n) & ((1u << view.block_shift) - 1);
    const uint32_t slot = n % kStages;
    const uint32_t full = SharedAddress(&shared.full[slot]);
#pragma unroll 1
    for (uint32_t turn = 0; turn < 32 / kFilledAtOnce; ++turn) {
      if (lane / kFilledAtOnce == turn && n < own.count) {
        while (!PhaseIsOver(SharedAddress(&shared.empty[slot]), n / kStages % 2 ^ 1)) {
        }
        ArriveExpecting(full, sizeof(shared.codes[0]) + sizeof(shared.scales[0]));
        CopyFromGlobal(SharedAddress(shared.codes[slot]),
                       block + view.index_codes + in_block * kKeyCodeBytes, sizeof(shared.codes[0]),
                       full);
        CopyFromGlobal(SharedAddress(shared.scales[slot]),
                       block + view.index_scales + in_block * kKeyScaleBytes,
                       sizeof(shared.scales[0]), full);
      }
      __syncwarp();
    }
  }
}

// By the warpgroups: as bf16 and as integers. A thread has 16 bytes.
__device__ inline void LoadQueries(const ScoreCall& call, uint32_t row, RingShared& shared) {
  constexpr uint32_t kOfHead = kIndexDim * 2 / 16;
  static_assert(kIndexHeads * kOfHead == kScorers);
  const uint32_t piece = threadIdx.x, head = piece / kOfHead;
  const uint4 values =
      __ldg(reinterpret_cast<const uint4*>(call.queries) + uint64_t{row} * kScorers + piece);
  const Bf16 weight = AsBf16(call.weights)[uint64_t{row} * kIndexHeads + head];
  StoreQueries(shared.queries[0], sizeof(shared.queries[0]), piece, values);
  if (!StoreIntegers(shared.bytes, piece, values, ToFloat(weight) * call.factor)) shared.far = true;
  if (piece % kOfHead == 0) shared.weights[head] = HalfWeight(weight, call.factor);
}

// 32 values of a key of a stage, whose scale they share.
__device__ inline uint4 CodesOf(const RingShared& shared, uint32_t slot, uint32_t key) {
  return reinterpret_cast<const uint4*>(shared.codes[slot] + key * kKeyCodeBytes)[threadIdx.x % 4];
}
// A stage's bytes were read by this warp.
__device__ inline void Release(RingShared& shared, uint32_t slot, uint32_t lane) {
  __syncwarp();
  if (Arrives(lane)) ArriveAt(SharedAddress(&shared.empty[slot]));
}

// A stage's scores by products of integers.
__device__ __forceinline__ float ScoreIntegers(RingShared& shared, uint32_t slot,
                                               uint32_t first_key, const KeyScales& scales,
                                               const OwnHeads& heads, uint32_t lane) {
  const uint32_t above = OwnQuarters(scales.above, lane);
  float of_tile[kStageTiles];
#pragma unroll
  for (uint32_t tile = 0; tile < kStageTiles; ++tile) {
    const uint32_t key = first_key + tile * kTileKeys;
    const uint4 codes[2] = {CodesOf(shared, slot, key), CodesOf(shared, slot, key + 8)};
    uint32_t a[4][4], sums[kIndexHeads / 2];
    ExpandIntegers(codes, above >> (16 * tile), a);
    if (tile + 1 == kStageTiles) Release(shared, slot, lane);
#pragma unroll
    for (uint32_t i = 0; i < kIndexHeads / 2; ++i) sums[i] = heads.starts[i / 4 * 2 + i % 2];
#pragma unroll
    for (auto& step : a) Hold(step);
    Hold(sums);
    WgmmaFence();
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      WgmmaBytes<kIndexHeads>::Run(sums, a[step], heads.rows + step * 32 / 16, 1);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    Keep(a);
    Hold(sums);
    of_tile[tile] =
        SumOfHalf(ScoreOf(sums, 0, heads.weights), ScoreOf(sums, 1, heads.weights), lane, 1);
  }
  return SumOfHalf(of_tile[0], of_tile[1], lane, 2) * scales.Unit();
}

// The same by products of bf16, where scales lie too far apart for integers.
__device__ __forceinline__ float ScoreFar(RingShared& shared, uint32_t slot, uint32_t first_key,
                                          uint32_t lane) {
  const uint64_t queries = SwizzledRows(SharedAddress(shared.queries));
  float weights[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    weights[i] = shared.weights[i / 2 * 8 + lane % 4 * 2 + i % 2];
  }
  float of_tile[kStageTiles];
#pragma unroll
  for (uint32_t tile = 0; tile < kStageTiles; ++tile) {
    RawKeys raw;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t key = first_key + tile * kTileKeys + 8 * i;
      raw.codes[i] = CodesOf(shared, slot, key);
      raw.scales[i] = shared.scales[slot][key * kKeyScaleBytes + lane % 4];
    }
    uint32_t a[8][4];
    float sums[kIndexHeads / 2];
    ExpandTile(raw, a);
    Forget(sums);
#pragma unroll
    for (auto& step : a) Hold(step);
    WgmmaFence();
#pragma unroll
    for (uint32_t step = 0; step < 8; ++step) {
      const uint32_t at = step / 4 * sizeof(RingShared::queries[0]) + step % 4 * 32;
      Wgmma<kIndexHeads>::Run(sums, a[step], queries + at / 16, step > 0 ? 1 : 0);
    }
    WgmmaCommit();
    WgmmaWait<0>();
    Keep(a);
    Hold(sums);
    of_tile[tile] = SumOfHalf(ScoreOf(sums, 0, 0, weights), ScoreOf(sums, 0, 1, weights), lane, 1);
  }
  Release(shared, slot, lane);
  return SumOfHalf(of_tile[0], of_tile[1], lane, 2);
}

// By a warpgroup: one stage in four. A thread has parts of four keys' scores, and gets the whole
// one of one of them.
__device__ inline void ScoreStages(const ScoreCall& call, uint32_t row, RingShared& shared) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
  const uint32_t group = threadIdx.x / kGroupThreads;
  const uint32_t count = Visible(call.step, row, call.ratio);
  LoadQueries(call, row, shared);
  FenceForMatrixUnits();
  GroupBarrier<1>(kScorers);
  const OwnHeads heads(shared.bytes, lane);
  const bool far_queries = shared.far;
  const uint32_t first_key = warp * 16 + lane / 4;  // Of a tile; the other is eight further on.
  const uint32_t stored_key = first_key + lane % 2 * 8 + lane % 4 / 2 * kTileKeys;
  float* const scores = call.scores + (row - call.row) * call.stride + stored_key;
  const uint32_t apart = kGroups * gridDim.x * kStageKeys;
  uint32_t slot = group, parity = 0;
  for (uint32_t key = OwnStages::FirstKey(group); key < count; key += apart) {
    WaitPhase(SharedAddress(&shared.full[slot]), parity);
    const KeyScales scales(reinterpret_cast<const uint32_t*>(shared.scales[slot])[stored_key]);
    // All of a warpgroup, as the matrix units want it.
    const bool far = AnyAtBarrier(2 + group, kGroupThreads, far_queries || scales.Far());
    const float score = far ? ScoreFar(shared, slot, first_key, lane)
                            : ScoreIntegers(shared, slot, first_key, scales, heads, lane);
    if (key + stored_key < count) scores[key] = score + 0.0f;
    slot += kGroups;
    if (slot >= kStages) slot -= kStages, parity ^= 1;
  }
}

__global__ __launch_bounds__(kThreads, 1) void RingScores(ScoreCall call) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  RingShared& shared = *reinterpret_cast<RingShared*>(bytes);
  if (threadIdx.x == 0) {
    shared.far = false;
    for (uint32_t i = 0; i < kStages; ++i) {
      InitBarrier(SharedAddress(&shared.full[i]), 1);
      InitBarrier(SharedAddress(&shared.empty[i]), kGroupThreads / 32 * kWarpArrivals);
    }
    FenceBarriers();
  }
  __syncthreads();
  WaitForEarlier();
  LetNextBegin();
  const uint32_t row = call.row + blockIdx.y;
  if (threadIdx.x < kScorers) {
    ScoreStages(call, row, shared);
  } else {
    FillRing(call, row, shared);
  }
}

// A block has a multiprocessor to itself, and rows have equally many.
constexpr uint32_t kMultiprocessors = 132, kBusy = 120;  // Those that are to have one at least.
uint32_t BlocksOfRow(uint32_t rows) { return kMultiprocessors / rows; }

}  // namespace

bool RingTakes(const ScoreCall& call, uint32_t entries_max) {
  const EntryView& view = call.entries;
  const bool lie_so = 1u << view.block_shift >= kStageKeys &&
                      view.index_code_bytes == kKeyCodeBytes &&
                      view.index_scale_bytes == kKeyScaleBytes && view.index_codes % 16 == 0 &&
                      view.index_scales % 16 == 0;
  const bool a_stage_each =
      uint64_t{call.rows} * entries_max >= uint64_t{kMultiprocessors} * kGroups * kStageKeys;
  return lie_so && a_stage_each && BlocksOfRow(call.rows) * call.rows >= kBusy;
}

cudaError_t LaunchRingScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<RingScores>(sizeof(RingShared));
  if (ready != cudaSuccess) return ready;
  const uint32_t stages = (entries_max + kStageKeys - 1) / kStageKeys;
  const dim3 grid(std::min(stages, BlocksOfRow(call.rows)), call.rows);
  return QueueNext(RingScores, {grid, kThreads, sizeof(RingShared)}, stream, call);
}

}  // namespace reprise::engine::cuda
