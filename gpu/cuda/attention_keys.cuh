#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// Keys for MatrixAttention: found, fetched, and turned from codes into bf16.
//
// A row's keys come in stages of 128: a tile of 64 for each block of its cluster. The first stage
// is the window, older half first; then come selected entries. A unit is 64 keys by 256 dimensions,
// as four blocks of 64 x 64, and a block of the cluster needs three units of a stage: its own
// tile's lower and upper dimensions, and its own dimensions of the other's tile.
//
// Within 64 dimensions, position 16 s + 8 h + 2 c + e holds dimension 16 c + 8 h + s + 4 e: so four
// threads that share a row of a product each hold 16 dimensions side by side, and the two values of
// a word come from one shift of a word of FP4 codes. Keys are 2^-8 of what they should be.
namespace reprise::engine::cuda {

constexpr uint32_t kHeads = 64, kDim = 512, kKeys = 64;
constexpr uint32_t kHalfDim = kDim / 2;
constexpr uint32_t kWindow = 2 * kKeys, kSelectedMax = 8 * kKeys;
constexpr uint32_t kBlockBytes = 64 * 128;                    // 64 rows of 64 values.
constexpr uint32_t kUnitBytes = kHalfDim / 64 * kBlockBytes;  // 32 KiB.
constexpr uint32_t kDecodeWarps = 8, kKeysOfWarp = kKeys / kDecodeWarps;
constexpr uint32_t kStages = 2;  // In bf16; `AttentionShared` has room for no more.
constexpr uint32_t kUnits = 3, kOthersUnit = 2;
constexpr float kKeyUnit = 256;

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

// ---- Codes to bf16 -----------------------------------------------------------------------------

__device__ inline __nv_bfloat162 AsPair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
__device__ inline uint32_t Multiplied(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(AsPair(pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Nibbles s and s + 4 of a word of E2M1 codes, for s of 0 and 1; 2^-126 too small. One product
// moves signs and magnitudes, which do not meet on the way.
template <uint32_t s>
__device__ inline uint32_t SpreadNibbles(uint32_t word) {
  return (word & 0x000f000f << 4 * s) * ((1 << 12 | 1 << 6) >> 4 * s) & 0x81c081c0;
}
// Bytes s of two words of E4M3 codes, 2^-120 too small.
__device__ inline uint32_t SpreadBytes(uint32_t low, uint32_t high, uint32_t s) {
  const uint32_t bytes = __byte_perm(low, high, 0x4000 + s * 0x1010);
  return (bytes & 0x80008000) | (bytes >> 4 & 0x07f007f0);
}

// Eight values of a unit.
__device__ inline void StorePiece(uint32_t at, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

__device__ inline void LoadPiece(uint32_t at, uint32_t (&words)[4]) {
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(at)
               : "memory");
}

// What a thread decodes: 64 dimensions of a key. `at`: the key's row of that block, as the first
// piece lies.
struct RawEntry {
  uint32_t codes[8];
  uint32_t scales;  // E4M3, one for 16.
};
__device__ inline void PutEntry(const RawEntry& raw, uint32_t at) {
  __nv_bfloat162 factors[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(raw.scales >> (16 * i));
    const float2 scales = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    factors[2 * i] = __float2bfloat162_rn(scales.x * (0x1p126f / kKeyUnit));
    factors[2 * i + 1] = __float2bfloat162_rn(scales.y * (0x1p126f / kKeyUnit));
  }
#pragma unroll
  for (uint32_t s = 0; s < 4; ++s) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      uint32_t words[4];
#pragma unroll
      for (uint32_t c = 0; c < 4; ++c) {
        const uint32_t codes = s < 2 ? raw.codes[2 * c + h] : raw.codes[2 * c + h] >> 8;
        words[c] =
            Multiplied(s % 2 == 0 ? SpreadNibbles<0>(codes) : SpreadNibbles<1>(codes), factors[c]);
      }
      StorePiece(at ^ (2 * s + h) << 4, words);
    }
  }
}

struct RawWindow {
  uint4 codes[4];
  uint32_t scales;  // UE8M0, two of 32.
};
__device__ inline void PutWindow(const RawWindow& raw, uint32_t at) {
  __nv_bfloat162 factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // 2^(scale - 127) x 2^112; no scale of a latent comes near the limit.
    const uint32_t half = min((raw.scales >> (8 * i) & 255) + 112, 254u) << 7;
    factors[i] = AsPair(half | half << 16);
  }
#pragma unroll
  for (uint32_t s = 0; s < 4; ++s) {
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      uint32_t words[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const uint4& four = raw.codes[c];
        const uint32_t spread =
            h == 0 ? SpreadBytes(four.x, four.y, s) : SpreadBytes(four.z, four.w, s);
        words[c] = Multiplied(spread, factors[c / 2]);
      }
      StorePiece(at ^ (2 * s + h) << 4, words);
    }
  }
}

// Loads that give zeros where there is nothing, and whose values are not waited for, as they would
// be where two ways of the code meet.
__device__ inline uint4 LoadIf(bool real, const void* from) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n"
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "l"(from), "r"(real ? 1 : 0)
      : "memory");
  return v;
}
__device__ inline uint32_t LoadWordIf(bool real, const void* from) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u32 %0, 0;\n@p ld.global.u32 %0, [%1];\n}\n"
      : "=&r"(v)
      : "l"(from), "r"(real ? 1 : 0)
      : "memory");
  return v;
}
__device__ inline uint32_t LoadHalfIf(bool real, const void* from) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u32 %0, 0;\n@p ld.global.u16 %0, [%1];\n}\n"
      : "=&r"(v)
      : "l"(from), "r"(real ? 1 : 0)
      : "memory");
  return v;
}

// ---- Keys of rows ------------------------------------------------------------------------------

// A warp's part of the work: eight keys of every unit. A lane decodes 64 dimensions of one.
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

    const WindowPlace own = PlaceInWindow(part, position, rank_);
    RawWindow now = LoadWindow(own, 0), next = LoadWindow(own, 1);
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) Find(i, part.first_block, entries[i]);
    const WindowPlace others = PlaceInWindow(part, position, 1 - rank_);
    const uint32_t stages = (__popc(__ballot_sync(0xffffffff, some)) + 1) / 2;
#pragma unroll 1
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      PutWindow(now, PutAt());
      Publish(Mask(own.codes), row, stages == 0);
      now = next;
      if (unit == 0) next = LoadWindow(others, rank_);
    }
    Entry key = EntryOf(rank_), other = EntryOf(1 - rank_);
    RawEntry raw[kUnits] = {LoadEntry(key, 0), LoadEntry(key, 1), LoadEntry(other, rank_)};
#pragma unroll 1
    for (uint32_t stage = 1; stage <= stages; ++stage) {
      const uint32_t mask = Mask(key.codes);
      key = EntryOf(2 * stage + rank_);
      other = EntryOf(2 * stage + 1 - rank_);
#pragma unroll
      for (uint32_t unit = 0; unit < kUnits; ++unit) {
        PutEntry(raw[unit], PutAt());
        Publish(mask, row, stage == stages);
        raw[unit] = unit == kOthersUnit ? LoadEntry(other, rank_) : LoadEntry(key, unit);
      }
    }
  }

  // Where an entry's codes lie, and its scales from there. Null: there is none.
  struct Entry {
    const uint8_t* codes;
    int32_t scales;
  };
  // Finds this lane's entry of four tiles: lane 8 t + k has key k of the warp in tile 4 i + t.
  __device__ void Find(uint32_t i, uint32_t first_block, int32_t entry) {
    const EntryView& view = call_.entries;
    const uint32_t row = entry & ((1u << view.block_shift) - 1);
    const uint8_t* payload = nullptr;
    if (entry >= 0) {
      payload = reinterpret_cast<const uint8_t*>(
          call_.step.blocks[first_block + (entry >> view.block_shift)]);
    }
    const uint32_t codes = view.main_codes + row * view.main_code_bytes;
    codes_[i] = entry < 0 ? nullptr : payload + codes;
    scales_[i] = static_cast<int32_t>(view.main_scales + row * view.main_scale_bytes - codes);
  }
  // This lane's key of a tile of the selection.
  __device__ Entry EntryOf(uint32_t tile) const {
    const uint32_t from = tile % 4 * 8 + lane_ % 8;
    const bool low = tile < 4;
    const auto codes = __shfl_sync(
        0xffffffff, reinterpret_cast<unsigned long long>(low ? codes_[0] : codes_[1]), from);
    return {tile * kKeys < kSelectedMax ? reinterpret_cast<const uint8_t*>(codes) : nullptr,
            __shfl_sync(0xffffffff, low ? scales_[0] : scales_[1], from)};
  }
  __device__ RawEntry LoadEntry(const Entry& key, uint32_t half) const {
    const bool real = key.codes != nullptr;
    const uint8_t* codes = key.codes + half * (kHalfDim / 2) + lane_ / 8 * 32;
    const uint4 a = LoadIf(real, codes), b = LoadIf(real, codes + 16);
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
            LoadWordIf(real, key.codes + key.scales + half * (kHalfDim / 16) + lane_ / 8 * 4)};
  }
  // Of the warp's keys, which there are.
  __device__ static uint32_t Mask(const uint8_t* codes) {
    return __ballot_sync(0xffffffff, codes != nullptr) & 0xff;
  }

  // This lane's key of a tile of the window; null where there is none.
  __device__ WindowPlace PlaceInWindow(const DevicePart& part, int32_t position,
                                       uint32_t tile) const {
    const auto key = static_cast<int32_t>(tile * kKeys + warp_ * kKeysOfWarp + lane_ % 8);
    position += key - static_cast<int32_t>(kWindow) + 1;
    if (position < max(0, static_cast<int32_t>(part.windows_from))) return {nullptr, nullptr};
    const auto at = static_cast<uint32_t>(position);
    if (at < part.first) return RingPlace(call_.windows, part, at);
    const uint64_t row = part.row + at - part.first;
    return {call_.kv_codes + row * kDim, call_.kv_scales + row * (kDim / 32)};
  }
  __device__ RawWindow LoadWindow(const WindowPlace& key, uint32_t half) const {
    const bool real = key.codes != nullptr;
    const uint32_t dim = half * kHalfDim + lane_ / 8 * 64;
    RawWindow raw;
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.codes[i] = LoadIf(real, key.codes + dim + 16 * i);
    raw.scales = LoadHalfIf(real, key.scales + dim / 32);
    return raw;
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
};

}  // namespace reprise::engine::cuda
