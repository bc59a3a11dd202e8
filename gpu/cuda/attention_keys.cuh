#pragma once

#include "gpu/cuda/attention_codes.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/wgmma.cuh"

// Keys for MatrixAttention: found, fetched, and turned from codes into bf16.
//
// A row's keys come in stages of 128: a tile of 64 for each block of its cluster. The first stage
// is the window, older half first; then come selected entries. A unit is 64 keys by 256 dimensions,
// as four blocks of 64 x 64, and a block of the cluster needs three units of a stage: its own
// tile's lower and upper dimensions, and its own dimensions of the other's tile.
namespace reprise::engine::cuda {

constexpr uint32_t kHalfDim = kDim / 2;
constexpr uint32_t kUnitBytes = kHalfDim / 64 * kBlockBytes;  // 32 KiB.
constexpr uint32_t kDecodeWarps = 8, kKeysOfWarp = kKeys / kDecodeWarps;
constexpr uint32_t kStages = 2;  // In bf16; `AttentionShared` has room for no more.
constexpr uint32_t kUnits = 3, kOthersUnit = 2;

constexpr uint32_t kLastOfRow = 1, kLastOfAll = 2;
struct __align__(16) UnitInfo {
  uint32_t mask[2];  // Which keys there are: bits.
  uint32_t is;       // kLastOfRow, kLastOfAll: of its stage.
};
struct KeyUnits {
  uint8_t keys[kStages][kUnits][kUnitBytes];
  UnitInfo info[kStages][kUnits];
  uint64_t full[kStages][kUnits], empty[kStages][kUnits];
};

// A warp's part of the work: eight keys of every unit. A lane decodes 64 dimensions of one: lane
// 8 b + k block b of key k, so that eight lanes store to all banks. It loads what lane 4 k + b
// decodes, so that they read two keys and not eight: the cache takes as many turns.
class KeyDecoder {
 public:
  __device__ KeyDecoder(const AttentionCall& call, KeyUnits& units, uint32_t rank, uint32_t warp)
      : call_(call), units_(units), rank_(rank), warp_(warp), lane_(threadIdx.x % 32) {}

  // The units of all rows of this cluster.
  __device__ __forceinline__ void Run() {
    for (uint32_t row = blockIdx.x / 2; row < call_.step.rows; row += gridDim.x / 2) Row(row);
  }

 private:
  __device__ __forceinline__ void Row(uint32_t row) {
    const StepView& step = call_.step;
    // Loads that wait for none. The part is a guess, which holds where every row is a part, and
    // where there is one part.
    const uint32_t guess = min(row, step.parts - 1), index = step.part_of_row[row];
    const uint32_t topk = call_.selected == nullptr ? 0 : call_.topk;
    const int32_t* const selected = call_.selected + uint64_t{row} * topk;
    int32_t entries[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t at = (i * 4 + lane_ / 8) * kKeys + warp_ * kKeysOfWarp + lane_ % 8;
      entries[i] = at < topk ? selected[at] : -1;
    }
    // Entries come before -1, so a tile has some when its first place has one.
    const bool some = lane_ * kKeys < topk && selected[lane_ * kKeys] >= 0;
    const auto position = static_cast<int32_t>(step.positions[row]);
    DevicePart part = step.part[guess];
    if (row == blockIdx.x / 2) ClusterWait();  // The barriers are made.
    if (index != guess) part = step.part[index];

    const WindowPlace own = PlaceInTile(part, position, rank_);
    RawWindow now = LoadWindow(own, 0), next = LoadWindow(own, 1);
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) Find(i, part.first_block, entries[i]);
    const WindowPlace others = PlaceInTile(part, position, 1 - rank_);
    const uint32_t window_mask = __ballot_sync(
        0xffffffff, lane_ < kKeysOfWarp && IsInWindow(part, position, KeyOf(rank_, lane_)));
    const uint32_t stages = (__popc(__ballot_sync(0xffffffff, some)) + 1) / 2;
    const auto put = [&] {
      PutWindow(Exchanged(now), PutAt());
      Publish(window_mask, row, stages == 0);
      now = next;
    };
    put();
    next = LoadWindow(others, rank_);
    put();
    // Entries come while the last unit of the window is put: from here on there are registers.
    Entry key = EntryOf(rank_), other = EntryOf(1 - rank_);
    RawEntry raw[kUnits];
    raw[0] = LoadEntry(key, 0);
    raw[1] = LoadEntry(key, 1);
    put();
    raw[kOthersUnit] = LoadEntry(other, rank_);
#pragma unroll 1
    for (uint32_t stage = 1; stage <= stages; ++stage) {
      const uint32_t tile = 2 * (stage - 1) + rank_;
      const uint32_t mask = (tile < 4 ? real_[0] : real_[1]) >> tile % 4 * 8 & 0xff;
      key = EntryOf(2 * stage + rank_);
      other = EntryOf(2 * stage + 1 - rank_);
#pragma unroll
      for (uint32_t unit = 0; unit < kUnits; ++unit) {
        PutEntry(Exchanged(raw[unit]), PutAt());
        Publish(mask, row, stage == stages);
        raw[unit] = unit == kOthersUnit ? LoadEntry(other, rank_) : LoadEntry(key, unit);
      }
    }
  }

  // Finds this lane's entry of four tiles: lane 8 t + k has key k of the warp in tile 4 i + t.
  __device__ void Find(uint32_t i, uint32_t first_block, int32_t entry) {
    const Entry found = EntryAt(call_, first_block, entry);
    codes_[i] = found.codes;
    scales_[i] = found.scales;
    real_[i] = __ballot_sync(0xffffffff, entry >= 0);
  }
  // The key that this lane loads, of a tile of the selection.
  __device__ Entry EntryOf(uint32_t tile) const {
    const uint32_t from = tile % 4 * 8 + lane_ / 4;
    const bool low = tile < 4;
    const auto codes = __shfl_sync(
        0xffffffff, reinterpret_cast<unsigned long long>(low ? codes_[0] : codes_[1]), from);
    return {tile * kKeys < kSelectedMax ? reinterpret_cast<const uint8_t*>(codes) : nullptr,
            __shfl_sync(0xffffffff, low ? scales_[0] : scales_[1], from)};
  }
  __device__ RawEntry LoadEntry(const Entry& key, uint32_t half) const {
    const bool real = key.codes != nullptr;
    const uint8_t* codes = key.codes + half * (kHalfDim / 2) + lane_ % 4 * 32;
    const uint4 a = LoadIf(real, codes), b = LoadIf(real, codes + 16);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
            LoadWordIf(real, key.codes + key.scales + half * (kHalfDim / 16) + lane_ % 4 * 4)};
  }
  // Key `key` of the warp in a tile.
  __device__ uint32_t KeyOf(uint32_t tile, uint32_t key) const {
    return tile * kKeys + warp_ * kKeysOfWarp + key;
  }
  // The key that this lane loads, of a tile of the window.
  __device__ WindowPlace PlaceInTile(const DevicePart& part, int32_t position,
                                     uint32_t tile) const {
    return PlaceInWindow(call_, part, position, KeyOf(tile, lane_ / 4));
  }
  __device__ RawWindow LoadWindow(const WindowPlace& key, uint32_t half) const {
    const bool real = key.codes != nullptr;
    const uint32_t dim = half * kHalfDim + lane_ % 4 * 64;
    RawWindow raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.codes[i] = LoadIf(real, key.codes + dim + 16 * i);
    raw.scales = LoadHalfIf(real, key.scales + dim / 32);
    return raw;
  }

  // What this lane decodes, of what another has loaded.
  __device__ uint32_t Exchanged(uint32_t word) const {
    return __shfl_sync(0xffffffff, word, lane_ % 8 * 4 + lane_ / 8);
  }
  __device__ RawEntry Exchanged(const RawEntry& raw) const {
    RawEntry its;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) its.codes[i] = Exchanged(raw.codes[i]);
    its.scales = Exchanged(raw.scales);
    return its;
  }
  __device__ RawWindow Exchanged(const RawWindow& raw) const {
    RawWindow its;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint4& four = raw.codes[i];
      its.codes[i] = {Exchanged(four.x), Exchanged(four.y), Exchanged(four.z), Exchanged(four.w)};
    }
    its.scales = Exchanged(raw.scales);
    return its;
  }

  // Where this lane's part of the unit goes, once there is room.
  __device__ uint32_t PutAt() const {
    WaitPhase(SharedAddress(units_.empty[0]) + turn_ * sizeof(uint64_t), parity_ ^ 1);
    return SharedAddress(units_.keys) + turn_ * kUnitBytes + lane_ / 8 * kBlockBytes +
           SwizzledOffset(warp_ * kKeysOfWarp + lane_ % 8, 0);
  }
  // A unit of `row`. `mask`: of the warp's keys.
  __device__ void Publish(uint32_t mask, uint32_t row, bool last) {
    FenceForMatrixUnits();
    __syncwarp();
    if (lane_ == 0) {
      UnitInfo& info = units_.info[0][turn_];
      reinterpret_cast<uint8_t*>(info.mask)[warp_] = static_cast<uint8_t>(mask);
      if (warp_ == 0) {
        const bool last_row = row + gridDim.x / 2 >= call_.step.rows;
        info.is = last ? last_row ? kLastOfRow | kLastOfAll : kLastOfRow : 0;
      }
    }
    if (Arrives(lane_)) ArriveAt(SharedAddress(units_.full[0]) + turn_ * sizeof(uint64_t));
    if (++turn_ == kStages * kUnits) {
      turn_ = 0;
      parity_ ^= 1;
    }
  }

  const AttentionCall& call_;
  KeyUnits& units_;
  const uint32_t rank_, warp_, lane_;
  uint32_t turn_ = 0, parity_ = 0;  // Of the unit that is put next, among those of all stages.
  const uint8_t* codes_[2];         // See Find.
  int32_t scales_[2];
  uint32_t real_[2];  // Of the table's entries, by lane, which there are.
};

}  // namespace reprise::engine::cuda
