#include <algorithm>

#include "gpu/cuda/attention_codes.cuh"
#include "gpu/cuda/attention_scores.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/matrix_attention.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/shared_room.h"
#include "gpu/cuda/wgmma.cuh"

// Sparse attention of few rows: what MatrixAttention computes, to the last bit, by a cluster of
// eight blocks for a row instead of two.
//
// A block has 64 of the dimensions. It makes the logits of one tile of keys or two, sums values of
// its dimensions over all tiles, and has room for both at once: so nothing is waited for but what
// is computed from. Warps turn codes into bf16; a warpgroup multiplies. Probabilities go from block
// to block through L2, which is faster than from shared memory to shared memory: every block wants
// those of all the others at about the same time.
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kBlocks = kDim / 64;
constexpr uint32_t kTiles = (kWindow + kSelectedMax) / kKeys;
constexpr uint32_t kOwnTiles = 2;  // At most: tiles `rank` and `rank` + 8.
constexpr uint32_t kPutters = 16;  // Warps.
constexpr uint32_t kSpreadThreads = kGroup + kPutters * 32;
// A block begins with 96 for each thread.
constexpr uint32_t kPutterRegisters = 72, kProductRegisters = 192;
static_assert(kProductRegisters * kGroup + kPutterRegisters * kPutters * 32 == 96 * kSpreadThreads);

// A tile's probabilities on their way.
struct TileRoom {
  uint8_t p[kTileBytes];
  HeadSums sums;
};
static_assert(sizeof(TileRoom) * kTiles == kAttentionRoomBytesOfRow);

struct SpreadShared {
  uint8_t values[kTiles][kBlockBytes];                  // Of all keys, the block's dimensions.
  uint8_t others[kOwnTiles][kBlocks - 1][kBlockBytes];  // Of its own tiles, the other dimensions.
  uint32_t mask[kOwnTiles][2];                          // Which of their keys there are: bits.
  uint64_t keys_full[kOwnTiles][2];                     // By half of the dimensions.
  uint64_t values_full;                                 // Of all tiles.
  uint64_t given[kOwnTiles];  // Its tile's probabilities are in `room`; `others` is read.
  uint64_t p_full[kTiles];    // A tile's are in `room`,
  uint64_t p_here[kTiles];    // and in this block's memory, where `others` was.
  __device__ TileRoom& received(uint32_t tile) { return reinterpret_cast<TileRoom*>(others)[tile]; }
};
static_assert(sizeof(TileRoom) * kTiles <= sizeof(SpreadShared::others));
static_assert(sizeof(SpreadShared) <= 227 << 10);

// Where the dimensions `block` x 64 of the block's own tile `turn` lie.
__device__ inline uint32_t KeysAt(const SpreadShared& shared, uint32_t rank, uint32_t turn,
                                  uint32_t block) {
  return SharedAddress(block == rank ? shared.values[rank + turn * kBlocks]
                                     : shared.others[turn][block < rank ? block : block - 1]);
}

// Tiles of a row that there are: an even number, as MatrixAttention takes them in pairs.
__device__ inline uint32_t TilesOf(const AttentionCall& call, uint32_t row) {
  // Entries come before -1, so a tile has some when its first place has one.
  const uint32_t at = threadIdx.x % 32 * kKeys;
  const uint32_t topk = call.selected == nullptr ? 0 : call.topk;
  const bool some = at < topk && call.selected[uint64_t{row} * topk + at] >= 0;
  return 2 + (__popc(__ballot_sync(0xffffffff, some)) + 1) / 2 * 2;
}

// A warp of those that turn codes into bf16. A lane decodes 64 dimensions of a key at a time: of
// the block's own tiles, one after the other; then, of all other tiles, the block's dimensions.
class Putter {
 public:
  __device__ Putter(const AttentionCall& call, SpreadShared& shared, uint32_t rank, uint32_t warp)
      : call_(call), shared_(shared), rank_(rank), warp_(warp), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void Run(uint32_t row) {
    const StepView& step = call_.step;
    // Loads that wait for none. The part is a guess, as in KeyDecoder.
    const uint32_t guess = min(row, step.parts - 1), index = step.part_of_row[row];
    const uint32_t topk = call_.selected == nullptr ? 0 : call_.topk;
    const int32_t* const selected = call_.selected + uint64_t{row} * topk;
    int32_t entries[kTurns];
#pragma unroll
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const Part its = PartOf(turn, LoadLane(turn));
      const uint32_t at = its.tile * kKeys + its.key - kWindow;
      entries[turn] = at < topk ? selected[at] : -1;
    }
    const auto position = static_cast<int32_t>(step.positions[row]);
    const uint32_t tiles = TilesOf(call_, row);
    DevicePart part = step.part[guess];
    if (index != guess) part = step.part[index];

    Place places[kTurns];
#pragma unroll
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      places[turn] = PlaceOf(PartOf(turn, LoadLane(turn)), part, position, entries[turn]);
    }
    Raw raw = Load(places[0], 0);
#pragma unroll 1
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      const Part its = PartOf(turn, lane_);
      const uint32_t mask = Mask(places[0], turn);
      places[0] = places[1];
      places[1] = places[2];
      const Raw now = Exchanged(raw, turn);
      if (turn + 1 < kTurns) raw = Load(places[0], turn + 1);
      if (its.tile >= tiles) continue;
      Put(now, its);
      Publish(its, mask);
    }
    if (Arrives(lane_)) ArriveAt(SharedAddress(&shared_.values_full));
    __syncwarp();
    ClusterWait();  // Barriers are made, in the other blocks too.
    Deliver(row, tiles);
  }

 private:
  static constexpr uint32_t kTurns = 3;

  // What this lane decodes in a turn. None: past all tiles.
  struct Part {
    uint32_t tile, key, block;
    bool own;  // The warp has eight keys of one of the block's own tiles.
  };
  __device__ uint32_t OwnTiles() const { return rank_ + kBlocks < kTiles ? 2 : 1; }
  __device__ Part PartOf(uint32_t turn, uint32_t lane) const {
    const uint32_t own = OwnTiles();
    if (turn < own) {
      return {rank_ + turn * kBlocks, warp_ % 8 * 8 + lane % 8, warp_ / 8 * 4 + lane / 8, true};
    }
    // Half of a tile, of those that are not its own.
    const uint32_t half = (turn - own) * kPutters + warp_;
    uint32_t tile = half / 2;
    tile += tile >= rank_ ? 1 : 0;
    tile += own == 2 && tile >= rank_ + kBlocks ? 1 : 0;
    return {tile, half % 2 * 32 + lane, rank_, false};
  }
  // Of an own tile a lane loads what another decodes, as in KeyDecoder.
  __device__ uint32_t LoadLane(uint32_t turn) const {
    return turn < OwnTiles() ? lane_ / 4 + lane_ % 4 * 8 : lane_;
  }
  __device__ uint32_t DecodedBy(uint32_t word, uint32_t turn) const {
    return __shfl_sync(0xffffffff, word, turn < OwnTiles() ? lane_ % 8 * 4 + lane_ / 8 : lane_);
  }

  struct Place {
    const uint8_t* codes;  // Null: there is no such key.
    const uint8_t* scales;
  };
  __device__ Place PlaceOf(const Part& its, const DevicePart& part, int32_t position,
                           int32_t entry) const {
    if (its.tile * kKeys < kWindow) {
      const WindowPlace place = PlaceInWindow(call_, part, position, its.tile * kKeys + its.key);
      return {place.codes, place.scales};
    }
    const Entry found = EntryAt(call_, part.first_block, entry);
    return {found.codes, found.codes + found.scales};
  }

  struct Raw {
    uint4 codes[4];
    uint32_t scales;
  };
  __device__ Raw Load(const Place& place, uint32_t turn) const {
    const Part its = PartOf(turn, LoadLane(turn));
    const bool real = place.codes != nullptr, window = its.tile * kKeys < kWindow;
    const uint8_t* codes = place.codes + its.block * (window ? 64 : 32);
    Raw raw;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i)
      raw.codes[i] = LoadIf(real && (i < 2 || window), codes + 16 * i);
    raw.scales = LoadWordIf(real, place.scales + (window ? its.block / 2 * 4 : its.block * 4));
    return raw;
  }
  __device__ void Put(const Raw& raw, const Part& its) const {
    const uint32_t at = (its.own ? KeysAt(shared_, rank_, its.tile / kBlocks, its.block)
                                 : SharedAddress(shared_.values[its.tile])) +
                        SwizzledOffset(its.key, 0);
    const uint4(&codes)[4] = raw.codes;
    if (its.tile * kKeys < kWindow) {
      PutWindow({{codes[0], codes[1], codes[2], codes[3]}, raw.scales >> its.block % 2 * 16}, at);
    } else {
      PutEntry({{codes[0].x, codes[0].y, codes[0].z, codes[0].w, codes[1].x, codes[1].y, codes[1].z,
                 codes[1].w},
                raw.scales},
               at);
    }
  }
  __device__ Raw Exchanged(const Raw& raw, uint32_t turn) const {
    Raw its;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint4& four = raw.codes[i];
      its.codes[i] = {DecodedBy(four.x, turn), DecodedBy(four.y, turn), DecodedBy(four.z, turn),
                      DecodedBy(four.w, turn)};
    }
    its.scales = DecodedBy(raw.scales, turn);
    return its;
  }
  // Of the warp's keys of an own tile, which there are.
  __device__ uint32_t Mask(const Place& place, uint32_t turn) const {
    return __ballot_sync(0xffffffff, DecodedBy(place.codes != nullptr ? 1 : 0, turn) != 0) & 0xff;
  }
  __device__ void Publish(const Part& its, uint32_t mask) {
    FenceForMatrixUnits();
    const uint32_t turn = its.tile / kBlocks;
    if (its.own && lane_ == 0) {
      reinterpret_cast<uint8_t*>(shared_.mask[turn])[warp_ % 8] = static_cast<uint8_t>(mask);
    }
    __syncwarp();
    if (its.own && Arrives(lane_)) ArriveAt(SharedAddress(&shared_.keys_full[turn][warp_ / 8]));
  }

  // Says to all blocks that the block's own probabilities are in the room, which takes until its
  // writes have arrived; and fetches all from there, a warp those of a tile.
  __device__ void Deliver(uint32_t row, uint32_t tiles) {
    for (uint32_t tile = rank_; tile < tiles; tile += kBlocks) {
      WaitPhase(SharedAddress(&shared_.given[tile / kBlocks]), 0);
      if (warp_ == kPutters - 1 && lane_ < kBlocks) {
        ArriveAtPeer(PeerAddress(SharedAddress(&shared_.p_full[tile]), lane_));
      }
    }
    if (warp_ >= tiles) return;
    WaitReceived(SharedAddress(&shared_.p_full[warp_]), 0);
    if (lane_ != 0) return;
    FenceForCopies();
    const uint32_t here = SharedAddress(&shared_.p_here[warp_]);
    ArriveExpecting(here, sizeof(TileRoom));
    CopyFromGlobal(SharedAddress(&shared_.received(warp_)),
                   static_cast<const TileRoom*>(call_.room) + row * kTiles + warp_,
                   sizeof(TileRoom), here);
  }

  const AttentionCall& call_;
  SpreadShared& shared_;
  const uint32_t rank_, warp_, lane_;
};

// The warpgroup that multiplies.
class RowProducts {
 public:
  __device__ RowProducts(const AttentionCall& call, SpreadShared& shared, uint32_t rank)
      : call_(call), shared_(shared), rank_(rank) {}

  __device__ __forceinline__ void Run(uint32_t row) {
    room_ = static_cast<TileRoom*>(call_.room) + row * kTiles;
    TouchL1(call_.sinks + at_.head % call_.heads);
    const uint32_t tiles = TilesOf(call_, row);
    {
      Queries queries;
      queries.Load(call_, at_, row);
      ClusterWait();  // Barriers are made, in the other blocks too.
#pragma unroll 1
      for (uint32_t tile = rank_; tile < tiles; tile += kBlocks) {
        Probabilities its;
        Score(queries, tile / kBlocks, its);
        Give(its, tile);
      }
    }
    float sums[32];
    Sum(tiles, sums);
    Finish(row, sums);
  }

 private:
  __device__ __forceinline__ void Score(const Queries& queries, uint32_t turn, Probabilities& its) {
    float logits[32];
    Forget(logits);
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      WaitPhase(SharedAddress(&shared_.keys_full[turn][half]), 0);
      uint64_t keys[kBlocks / 2];
#pragma unroll
      for (uint32_t i = 0; i < kBlocks / 2; ++i) {
        keys[i] = SwizzledRows(KeysAt(shared_, rank_, turn, half * (kBlocks / 2) + i));
      }
      WgmmaFence();
#pragma unroll
      for (uint32_t step = 0; step < kSteps / 2; ++step) {
        Wgmma<64>::Run(logits, queries.steps[half * (kSteps / 2) + step],
                       FurtherOn(keys[step / 4], step % 4 * 32), half + step > 0);
      }
      WgmmaCommit();
    }
    WgmmaWait<0>();
    Hold(logits);
    Keep(queries.steps);
    const uint32_t mask[2] = {shared_.mask[turn][0], shared_.mask[turn][1]};
    its.Make(logits, mask, call_.scale * (kKeyUnit * kLog2E), at_);
    its.SumTotals();
  }
  // Into the room.
  __device__ __forceinline__ void Give(const Probabilities& its, uint32_t tile) const {
    TileRoom& room = room_[tile];
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      *reinterpret_cast<uint4*>(room.p + at_.PieceOffset(i)) =
          make_uint4(its.p[i][0], its.p[i][1], its.p[i][2], its.p[i][3]);
    }
    if (at_.quarter == 0) {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        room.sums.top[at_.head + 8 * k] = its.top[k];
        room.sums.total[at_.head + 8 * k] = its.total[k];
      }
    }
    __syncwarp();
    if (Arrives(at_.lane)) ArriveAt(SharedAddress(&shared_.given[tile / kBlocks]));
  }

  // Over all tiles. Each pair of them in the order in which MatrixAttention adds it: first the tile
  // of the block that has these dimensions. A tile's probabilities are fetched while the one before
  // is multiplied.
  __device__ __forceinline__ void Sum(uint32_t tiles, float (&sums)[32]) {
    const uint32_t swap = rank_ >= kBlocks / 2 ? 1 : 0;
    Forget(sums);
    Probabilities one, two;
    RunningTops::Change change = Take(swap, true, one);
    WaitPhase(SharedAddress(&shared_.values_full), 0);
#pragma unroll 1
    for (uint32_t tile = 0; tile < tiles; tile += 2) {
      Add(tile ^ swap, tile == 0, one, sums);
      change = Take((tile + 1) ^ swap, false, two);
      Added(one, change, sums);
      Add((tile + 1) ^ swap, false, two, sums);
      change.higher = false;
      if (tile + 2 < tiles) change = Take((tile + 2) ^ swap, false, one);
      Added(two, change, sums);
    }
  }
  // A tile's probabilities, relative to the tops with it.
  __device__ __forceinline__ RunningTops::Change Take(uint32_t tile, bool first,
                                                      Probabilities& its) {
    WaitPhase(SharedAddress(&shared_.p_here[tile]), 0);
    const TileRoom& room = shared_.received(tile);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      LoadPiece(SharedAddress(room.p) + at_.PieceOffset(i), its.p[i]);
    }
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      its.top[k] = room.sums.top[at_.head + 8 * k];
      its.total[k] = room.sums.total[at_.head + 8 * k];
    }
    const RunningTops::Change change = tops_.Take(its.top, its.total, first);
    if (change.lower) BringToTop(its.p, change.factors);
    return change;
  }
  __device__ __forceinline__ void Add(uint32_t tile, bool first, Probabilities& its,
                                      float (&sums)[32]) const {
    Hold(sums);
#pragma unroll
    for (auto& piece : its.p) Hold(piece);
    WgmmaFence();
    const uint64_t values = SwizzledColumns(SharedAddress(shared_.values[tile]), kBlockBytes);
#pragma unroll
    for (uint32_t step = 0; step < kKeys / 16; ++step) {
      WgmmaAcross<64>::Run(sums, its.p[step], FurtherOn(values, step * 16 * 128),
                           !first || step > 0 ? 1 : 0);
    }
    WgmmaCommit();
  }
  // The product is there. `next`: what the tops of the next tile change.
  __device__ __forceinline__ void Added(const Probabilities& its, const RunningTops::Change& next,
                                        float (&sums)[32]) const {
    WgmmaWait<0>();
    Hold(sums);
    Keep(its.p);
    if (!next.higher) return;
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] *= next.before[i / 2 % 2];
  }

  // Division by the total, rounding, and the inverse rotation.
  __device__ __forceinline__ void Finish(uint32_t row, const float (&sums)[32]) const {
    float inverse[2];
    tops_.Inverses(call_, at_, inverse);
    const uint64_t turns = uint64_t{row} * kRotatedPairs + 8 * at_.quarter;
    const auto* cosines =
        reinterpret_cast<const float4*>(call_.step.cosines[call_.rotation] + turns);
    const auto* sines = reinterpret_cast<const float4*>(call_.step.sines[call_.rotation] + turns);
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t head = at_.head + 8 * k;
      if (head >= call_.heads) continue;
      Bf16Bits* const out =
          call_.out + (uint64_t{row} * call_.heads + head) * kDim + rank_ * 64 + at_.quarter * 16;
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        uint32_t eight[4];
        EightOutputs(sums, h, k, inverse[k], eight);
        if (rank_ == kBlocks - 1) TurnBack(eight, cosines[h], sines[h]);
        reinterpret_cast<uint4*>(out)[h] = make_uint4(eight[0], eight[1], eight[2], eight[3]);
      }
    }
  }

  const ProductPlace at_;
  const AttentionCall& call_;
  SpreadShared& shared_;
  const uint32_t rank_;
  TileRoom* room_;
  RunningTops tops_;
};

__device__ inline void MakeSpreadBarriers(SpreadShared& shared) {
  const uint32_t i = threadIdx.x;
  if (i < kTiles) {
    InitBarrier(SharedAddress(&shared.p_full[i]), 1);
    InitBarrier(SharedAddress(&shared.p_here[i]), 1);
    if (i < kOwnTiles) {
      InitBarrier(SharedAddress(&shared.keys_full[i][0]), kPutters / 2 * kWarpArrivals);
      InitBarrier(SharedAddress(&shared.keys_full[i][1]), kPutters / 2 * kWarpArrivals);
      InitBarrier(SharedAddress(&shared.given[i]), kWarps * kWarpArrivals);
    }
    if (i == 0) InitBarrier(SharedAddress(&shared.values_full), kPutters * kWarpArrivals);
    FenceBarriers();
  }
  __syncthreads();
}

__global__ __cluster_dims__(kBlocks)
    __launch_bounds__(kSpreadThreads,
                      1) void SpreadAttention(const __grid_constant__ AttentionCall call) {
  extern __shared__ __align__(1024) uint8_t raw[];
  SpreadShared& shared = *reinterpret_cast<SpreadShared*>(raw);
  const uint32_t row = blockIdx.x / kBlocks, group = threadIdx.x / kGroup;
  MakeSpreadBarriers(shared);
  ClusterArriveRelaxed();
  if (group == 0) {
    MoreRegisters<kProductRegisters>();
    WaitForEarlier();
    LetNextBegin();
    RowProducts(call, shared, ClusterRank()).Run(row);
  } else {
    FewerRegisters<kPutterRegisters>();
    WaitForEarlier();
    LetNextBegin();
    Putter(call, shared, ClusterRank(), threadIdx.x / 32 - kWarps).Run(row);
  }
}

// Rows that a launch takes: so many clusters run side by side.
uint32_t SpreadRowsAtOnce() {
  cudaLaunchAttribute eight = {};
  eight.id = cudaLaunchAttributeClusterDimension;
  eight.val.clusterDim = {kBlocks, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(kBlocks);
  config.blockDim = dim3(kSpreadThreads);
  config.dynamicSmemBytes = sizeof(SpreadShared);
  config.attrs = &eight;
  config.numAttrs = 1;
  int clusters = 0;
  if (AllowShared<SpreadAttention>(sizeof(SpreadShared)) != cudaSuccess ||
      cudaOccupancyMaxActiveClusters(&clusters, SpreadAttention, &config) != cudaSuccess) {
    cudaGetLastError();  // Not the launch's.
  }
  return std::min(static_cast<uint32_t>(std::max(clusters, 0)), kSpreadRowsMax);
}

}  // namespace

bool SpreadAttentionFits(const AttentionCall& call) {
  static const uint32_t rows = SpreadRowsAtOnce();
  return call.room != nullptr && call.step.rows <= rows;
}

cudaError_t LaunchSpreadAttention(const AttentionCall& call, cudaStream_t stream) {
  const cudaError_t ready = AllowShared<SpreadAttention>(sizeof(SpreadShared));
  if (ready != cudaSuccess) return ready;
  return QueueNext(SpreadAttention,
                   {kBlocks * call.step.rows, kSpreadThreads, sizeof(SpreadShared)}, stream, call);
}

}  // namespace reprise::engine::cuda
