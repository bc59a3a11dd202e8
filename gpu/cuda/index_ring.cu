#include <algorithm>

#include "gpu/cuda/index_keys.cuh"
#include "gpu/cuda/index_ring.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/places.cuh"

// Scores of few rows are bound by how many instructions a key takes and by how many bytes are under
// way. So one warp has the copy engine fill a ring with codes and scales, far ahead, and warpgroups
// expand and multiply: each two tiles at a time, the second expanded under the products of the
// first.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kGroups = 3, kGroupThreads = 128;
constexpr uint32_t kScorers = kGroups * kGroupThreads, kThreads = kScorers + 32;
constexpr uint32_t kStageTiles = 2, kStageKeys = kStageTiles * kTileKeys;
constexpr uint32_t kStages = 12;       // A multiple of the groups, which take turns.
// Stages, by a lane each. racecheck takes the first of them for the writer of all.
constexpr uint32_t kFilledAtOnce = kForRacecheck ? 1 : 2;
static_assert(kStages % kGroups == 0);

struct RingShared {
  uint8_t queries[2][kIndexHeads * 128];  // Of 64 inputs each, swizzled.
  uint8_t codes[kStages][kStageKeys * kKeyCodeBytes];
  uint8_t scales[kStages][kStageKeys * kKeyScaleBytes];
  uint64_t full[kStages], empty[kStages];
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

// By the warpgroups.
__device__ inline void LoadQueries(const ScoreCall& call, uint32_t row, RingShared& shared) {
  constexpr uint32_t kPieces = kIndexHeads * kIndexDim * 2 / 16;  // 16 bytes each.
  constexpr uint32_t kEach = (kPieces + kScorers - 1) / kScorers;
  uint4 values[kEach];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t piece = min(i * kScorers + threadIdx.x, kPieces - 1);
    values[i] =
        __ldg(reinterpret_cast<const uint4*>(call.queries) + uint64_t{row} * kPieces + piece);
  }
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t piece = i * kScorers + threadIdx.x;
    if (piece < kPieces)
      StoreQueries(shared.queries[0], sizeof(shared.queries[0]), piece, values[i]);
  }
}

__device__ inline RawKeys LoadKeys(const RingShared& shared, uint32_t slot, uint32_t first_key) {
  const uint32_t quarter = threadIdx.x % 4;
  RawKeys raw;
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i) {
    const uint32_t key = first_key + 8 * i;
    raw.codes[i] = *reinterpret_cast<const uint4*>(shared.codes[slot] + key * kKeyCodeBytes +
                                                   quarter * sizeof(uint4));
    raw.scales[i] = shared.scales[slot][key * kKeyScaleBytes + quarter];
  }
  return raw;
}

// sums = A times the queries, a group of products of its own.
__device__ inline void Multiply(uint32_t (&a)[8][4], uint64_t queries,
                                float (&sums)[kIndexHeads / 2]) {
#pragma unroll
  for (auto& step : a) Hold(step);
  WgmmaFence();
#pragma unroll
  for (uint32_t step = 0; step < 8; ++step) {
    const uint32_t at = step / 4 * sizeof(RingShared::queries[0]) + step % 4 * 32;
    Wgmma<kIndexHeads>::Run(sums, a[step], queries + at / 16, step > 0 ? 1 : 0);
  }
  WgmmaCommit();
}

// By a warpgroup: one stage in three. A thread has parts of four keys' scores, and gets the whole
// one of one of them.
__device__ inline void ScoreStages(const ScoreCall& call, uint32_t row, RingShared& shared) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x % kGroupThreads / 32;
  const uint32_t group = threadIdx.x / kGroupThreads;
  float weights[8];
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t head = i / 2 * 8 + lane % 4 * 2 + i % 2;
    weights[i] = HalfWeight(AsBf16(call.weights)[uint64_t{row} * kIndexHeads + head], call.factor);
  }
  const uint32_t count = Visible(call.step, row, call.ratio);
  LoadQueries(call, row, shared);
  FenceForMatrixUnits();
  GroupBarrier<1>(kScorers);
  uint64_t queries = SwizzledRows(SharedAddress(shared.queries));
  InRegister(queries);
  const uint32_t first_key = warp * 16 + lane / 4;  // Of a tile; the other is eight further on.
  const uint32_t stored_key = first_key + lane % 2 * 8 + lane % 4 / 2 * kTileKeys;
  float* const scores = call.scores + (row - call.row) * call.stride + stored_key;
  const uint32_t apart = kGroups * gridDim.x * kStageKeys;
  uint32_t slot = group, parity = 0;
  for (uint32_t key = OwnStages::FirstKey(group); key < count; key += apart) {
    WaitPhase(SharedAddress(&shared.full[slot]), parity);
    uint32_t a[kStageTiles][8][4];
    // Values of their own, which cost nothing: else the compiler takes both tiles' for the same.
    float sums[kStageTiles][kIndexHeads / 2] = {};
    const RawKeys raw[kStageTiles] = {LoadKeys(shared, slot, first_key),
                                      LoadKeys(shared, slot, first_key + kTileKeys)};
    ExpandTile(raw[0], a[0]);
    Multiply(a[0], queries, sums[0]);
    ExpandTile(raw[1], a[1]);
    __syncwarp();
    if (Arrives(lane)) ArriveAt(SharedAddress(&shared.empty[slot]));
    Multiply(a[1], queries, sums[1]);
    WgmmaWait<1>();
    Keep(a[0]);
    Hold(sums[0]);
    const float first =
        SumOfHalf(ScoreOf(sums[0], 0, 0, weights), ScoreOf(sums[0], 0, 1, weights), lane, 1);
    WgmmaWait<0>();
    Keep(a[1]);
    Hold(sums[1]);
    const float second =
        SumOfHalf(ScoreOf(sums[1], 0, 0, weights), ScoreOf(sums[1], 0, 1, weights), lane, 1);
    const float whole = SumOfHalf(first, second, lane, 2);
    if (key + stored_key < count) scores[key] = whole + 0.0f;
    slot += kGroups;
    if (slot >= kStages) slot -= kStages, parity ^= 1;
  }
}

__global__ __launch_bounds__(kThreads, 1) void RingScores(ScoreCall call) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  RingShared& shared = *reinterpret_cast<RingShared*>(bytes);
  if (threadIdx.x == 0) {
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
