#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/mbarrier.cuh"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// Keys for MatrixAttention: found, fetched, and turned from codes into bf16 tiles.
//
// A tile is 64 keys by the 256 dimensions of a block, as four blocks of 64 x 64. Within 64
// dimensions, position 16 s + 8 h + 2 c + e holds dimension 16 c + 8 h + s + 4 e: so four threads
// that share a row of a product each hold 16 dimensions side by side, and the two values of a word
// come from one shift of a word of FP4 codes. Keys are 2^-8 of what they should be.
namespace reprise::engine::cuda {

constexpr uint32_t kHeads = 64, kDim = 512, kKeys = 64;
constexpr uint32_t kHalfDim = kDim / 2;
constexpr uint32_t kBlockBytes = 64 * 128;                    // 64 rows of 64 values.
constexpr uint32_t kTileBytes = kHalfDim / 64 * kBlockBytes;  // 32 KiB.
constexpr uint32_t kDecodeWarps = 8, kKeysOfWarp = kKeys / kDecodeWarps;
constexpr uint32_t kTiles = 4;  // In bf16; `AttentionShared` has room for no more.
constexpr uint32_t kRawTiles = 2;
constexpr uint32_t kRawKeyBytes = kHalfDim / 2 + kHalfDim / 16;  // Codes, then scales.
constexpr float kKeyUnit = 256;

constexpr uint32_t kLastOfRow = 1, kLastOfAll = 2, kNoTile = 4;
struct TileInfo {
  uint8_t mask[kDecodeWarps];  // Which keys there are.
  uint32_t is;                 // kLastOfRow, kLastOfAll.
  uint32_t unused;
};
struct KeyTiles {
  uint8_t keys[kTiles][kTileBytes];
  uint8_t raw[kRawTiles][kDecodeWarps][kKeysOfWarp * kRawKeyBytes];
  TileInfo info[kTiles];
  uint64_t full[kTiles], empty[kTiles];
};

// Whose turn it is among the tiles' buffers, and in which phase.
struct TileTurn {
  uint32_t buffer = 0, parity = 0;
  __device__ void Next() {
    if (++buffer == kTiles) {
      buffer = 0;
      parity ^= 1;
    }
  }
};

// ---- Codes to bf16 -----------------------------------------------------------------------------

__device__ inline __nv_bfloat162 AsPair(uint32_t bits) {
  return *reinterpret_cast<const __nv_bfloat162*>(&bits);
}
__device__ inline uint32_t Multiplied(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(AsPair(pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Nibbles s and s + 4 of a word of E2M1 codes, 2^-126 too small.
template <int s>
__device__ inline uint32_t SpreadNibbles(uint32_t word) {
  constexpr int kLeft = 6 - 4 * s;  // Of the magnitudes; the signs go six further.
  const uint32_t signs = word << (12 - 4 * s);
  uint32_t magnitudes;
  if constexpr (kLeft > 0) {
    magnitudes = word << kLeft;
  } else {
    magnitudes = word >> -kLeft;
  }
  return (signs & 0x80008000) | (magnitudes & 0x01c001c0);
}
// Bytes s of two words of E4M3 codes, 2^-120 too small.
template <int s>
__device__ inline uint32_t SpreadBytes(uint32_t low, uint32_t high) {
  const uint32_t bytes = __byte_perm(low, high, (4 + s) << 12 | s << 4);
  return (bytes & 0x80008000) | (bytes >> 4 & 0x07f007f0);
}

// Eight values of a tile.
__device__ inline void StorePiece(uint32_t at, const uint32_t (&words)[4]) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}

// What a thread decodes: 64 dimensions of a key. `at`: the key's row of that block, as the first
// piece lies.
struct RawEntry {
  uint32_t codes[8];
  uint32_t scales;  // E4M3, one for 16.
};
template <int s>
__device__ inline void PutEntryPieces(const RawEntry& raw, const __nv_bfloat162 (&factors)[4],
                                      uint32_t at) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      words[c] = Multiplied(SpreadNibbles<s>(raw.codes[2 * c + h]), factors[c]);
    }
    StorePiece(at ^ (2 * s + h) << 4, words);
  }
}
__device__ inline void PutEntry(const RawEntry& raw, uint32_t at) {
  __nv_bfloat162 factors[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(raw.scales >> (16 * i));
    const float2 scales = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
    factors[2 * i] = __float2bfloat162_rn(scales.x * (0x1p126f / kKeyUnit));
    factors[2 * i + 1] = __float2bfloat162_rn(scales.y * (0x1p126f / kKeyUnit));
  }
  PutEntryPieces<0>(raw, factors, at);
  PutEntryPieces<1>(raw, factors, at);
  PutEntryPieces<2>(raw, factors, at);
  PutEntryPieces<3>(raw, factors, at);
}

struct RawWindow {
  uint4 codes[4];
  uint32_t scales;  // UE8M0, two of 32.
  bool real;
};
template <int s>
__device__ inline void PutWindowPieces(const RawWindow& raw, const __nv_bfloat162 (&factors)[2],
                                       uint32_t at) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    uint32_t words[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const uint4& four = raw.codes[c];
      const uint32_t spread =
          h == 0 ? SpreadBytes<s>(four.x, four.y) : SpreadBytes<s>(four.z, four.w);
      words[c] = Multiplied(spread, factors[c / 2]);
    }
    StorePiece(at ^ (2 * s + h) << 4, words);
  }
}
__device__ inline void PutWindow(const RawWindow& raw, uint32_t at) {
  __nv_bfloat162 factors[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    // 2^(scale - 127) x 2^112; no scale of a latent comes near the limit.
    const uint32_t half = min((raw.scales >> (8 * i) & 255) + 112, 254u) << 7;
    factors[i] = AsPair(half | half << 16);
  }
  PutWindowPieces<0>(raw, factors, at);
  PutWindowPieces<1>(raw, factors, at);
  PutWindowPieces<2>(raw, factors, at);
  PutWindowPieces<3>(raw, factors, at);
}

// ---- Keys of rows ------------------------------------------------------------------------------

// A warp's part of the work: eight keys of every tile. A lane decodes 64 dimensions of one.
class KeyDecoder {
 public:
  __device__ KeyDecoder(const AttentionCall& call, KeyTiles& tiles, uint32_t rank, uint32_t warp)
      : call_(call), tiles_(tiles), rank_(rank), warp_(warp), lane_(threadIdx.x % 32) {}

  // A row's tiles, its last one marked. `ready` is called before any barrier is touched, when loads
  // are under way.
  template <typename Ready>
  __device__ __forceinline__ void Row(uint32_t row, bool last_row, Ready&& ready) {
    const StepView& step = call_.step;
    last_is_ = last_row ? kLastOfRow | kLastOfAll : kLastOfRow;
    constexpr int32_t kTileKeys = kKeys;
    const uint32_t part_index = step.part_of_row[row];
    const auto position = static_cast<int32_t>(step.positions[row]);
    topk_ = call_.selected == nullptr ? 0 : call_.topk;
    selected_ = call_.selected + uint64_t{row} * topk_;
    const int32_t first = EntryOf(0);
    ahead_ = EntryOf(1);
    // Entries come before -1, so a tile has some when its first place has one.
    entry_tiles_ = 0;
    for (uint32_t tile = 0; tile * kKeys < topk_; tile += 32) {
      const uint32_t at = (tile + lane_) * kKeys;
      entry_tiles_ += __popc(__ballot_sync(0xffffffff, at < topk_ && selected_[at] >= 0));
    }
    const DevicePart& part = step.part[part_index];
    const int32_t begin = position - static_cast<int32_t>(call_.windows.window) + 1;
    const int32_t lowest = max(begin, static_cast<int32_t>(part.windows_from));
    blocks_ = step.blocks + part.first_block;
    // Positions of the tiles of the window that are not empty: those up to the row's own.
    int32_t at = begin + (lowest - begin) / kTileKeys * kTileKeys;
    RawWindow now = LoadWindow(part, at, lowest, position);
    ExpectWindow(part, at + kTileKeys, lowest, position);
    ready();
    group_ = Find(first);
    if (lowest > position && entry_tiles_ == 0) entry_tiles_ = 1;  // A row has a tile at least.
    Fetch(0);
    Fetch(1);
    for (; at <= position; at += kTileKeys) {
      WaitPhase(SharedAddress(&tiles_.empty[turn_.buffer]), turn_.parity ^ 1);
      PutWindow(now, PutAt());
      Publish(__ballot_sync(0xffffffff, now.real), entry_tiles_ == 0 && at + kTileKeys > position);
      now = LoadWindow(part, at + kTileKeys, lowest, position);
    }
    for (uint32_t tile = 0; tile < entry_tiles_; ++tile) {
      CopyWait<kRawTiles - 1>();
      __syncwarp();
      const RawEntry raw = ReadRaw(tile);
      const uint32_t mask = masks_;
      __syncwarp();
      Fetch(tile + kRawTiles);
      WaitPhase(SharedAddress(&tiles_.empty[turn_.buffer]), turn_.parity ^ 1);
      PutEntry(raw, PutAt());
      Publish(mask, tile + 1 == entry_tiles_);
    }
  }

 private:
  // Where the codes and scales of this block's dimensions lie, by their offsets from `base`, which
  // may still be on its way from memory. Null: no entry.
  struct Place {
    const uint8_t* base;
    uint32_t codes, scales;
  };

  // Lane 8 i + k has key k of the warp in tile 4 group + i of the selection.
  __device__ int32_t EntryOf(uint32_t group) const {
    const uint32_t at = (group * 4 + lane_ / 8) * kKeys + warp_ * kKeysOfWarp + lane_ % 8;
    return at < topk_ ? selected_[at] : -1;
  }
  __device__ Place Find(int32_t entry) const {
    if (entry < 0) return {nullptr, 0, 0};
    const EntryView& view = call_.entries;
    const uint32_t row = entry & ((1u << view.block_shift) - 1);
    return {reinterpret_cast<const uint8_t*>(blocks_[entry >> view.block_shift]),
            view.main_codes + row * view.main_code_bytes + rank_ * (kHalfDim / 2),
            view.main_scales + row * view.main_scale_bytes + rank_ * (kHalfDim / 16)};
  }
  // Starts to copy a tile of the selection; always one group of copies.
  __device__ void Fetch(uint32_t tile) {
    uint32_t mask = 0;
    if (tile < entry_tiles_) {
      if (tile % 4 == 2) {
        next_group_ = Find(ahead_);
        ahead_ = EntryOf(tile / 4 + 2);
      }
      if (tile % 4 == 0 && tile != 0) group_ = next_group_;
      const bool real = group_.base != nullptr;
      const uint8_t* const own = real ? group_.base + group_.codes : nullptr;
      const uint32_t to = SharedAddress(tiles_.raw[tile % kRawTiles][warp_]);
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i) {
        const uint32_t key = lane_ / 8 + 4 * i;
        const auto* from = reinterpret_cast<const uint8_t*>(
            __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(own), tile % 4 * 8 + key));
        const bool any = from != nullptr;
        const void* piece = any ? from + lane_ % 8 * 16 : static_cast<const void*>(call_.query);
        CopyAsync16(to + key * kRawKeyBytes + lane_ % 8 * 16, piece, any);
      }
      if (lane_ / 8 == tile % 4) {
        const void* piece =
            real ? group_.base + group_.scales : static_cast<const void*>(call_.query);
        CopyAsync16(to + lane_ % 8 * kRawKeyBytes + kHalfDim / 2, piece, real);
      }
      mask = __ballot_sync(0xffffffff, real) >> (tile % 4 * 8) & 0xff;
    }
    masks_ = masks_ >> 8 | mask << 8 * (kRawTiles - 1);
    CopyCommit();
  }
  __device__ RawEntry ReadRaw(uint32_t tile) const {
    const uint8_t* key = tiles_.raw[tile % kRawTiles][warp_] + lane_ % 8 * kRawKeyBytes;
    const uint4* codes = reinterpret_cast<const uint4*>(key + lane_ / 8 * 32);
    const uint4 a = codes[0], b = codes[1];
    return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w},
            *reinterpret_cast<const uint32_t*>(key + kHalfDim / 2 + lane_ / 8 * 4)};
  }

  // This lane's part of the tile of the window whose first key is at position `tile`.
  __device__ WindowPlace PlaceInWindow(const DevicePart& part, uint32_t at) const {
    WindowPlace place;
    if (at >= part.first) {
      const uint64_t row = part.row + at - part.first;
      place = {call_.kv_codes + row * kDim, call_.kv_scales + row * (kDim / 32)};
    } else {
      place = RingPlace(call_.windows, part, at);
    }
    const uint32_t dim = rank_ * kHalfDim + lane_ / 8 * 64;
    return {place.codes + dim, place.scales + dim / 32};
  }
  __device__ RawWindow LoadWindow(const DevicePart& part, int32_t tile, int32_t lowest,
                                  int32_t position) const {
    const int32_t at = tile + static_cast<int32_t>(warp_ * kKeysOfWarp + lane_ % 8);
    RawWindow raw = {};
    raw.real = at >= lowest && at <= position;
    if (!raw.real) return raw;
    const WindowPlace place = PlaceInWindow(part, static_cast<uint32_t>(at));
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.codes[i] = reinterpret_cast<const uint4*>(place.codes)[i];
    raw.scales = *reinterpret_cast<const uint16_t*>(place.scales);
    return raw;
  }
  // The same into the L2: registers do not suffice for two tiles.
  __device__ void ExpectWindow(const DevicePart& part, int32_t tile, int32_t lowest,
                               int32_t position) const {
    const int32_t at = tile + static_cast<int32_t>(warp_ * kKeysOfWarp + lane_ % 8);
    if (at < lowest || at > position) return;
    const WindowPlace place = PlaceInWindow(part, static_cast<uint32_t>(at));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place.codes));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place.codes + 32));
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place.scales));
  }

  __device__ uint32_t PutAt() const {
    const uint32_t key = lane_ % 8;
    return SharedAddress(tiles_.keys[turn_.buffer]) + lane_ / 8 * kBlockBytes +
           SwizzledOffset(warp_ * kKeysOfWarp + key, 0);
  }
  __device__ void Publish(uint32_t mask, bool last) {
    FenceForMatrixUnits();
    __syncwarp();
    if (lane_ == 0) {
      TileInfo& info = tiles_.info[turn_.buffer];
      info.mask[warp_] = static_cast<uint8_t>(mask);
      if (warp_ == 0) info.is = last ? last_is_ : 0;
      ArriveAt(SharedAddress(&tiles_.full[turn_.buffer]));
    }
    turn_.Next();
  }

  const AttentionCall& call_;
  KeyTiles& tiles_;
  const uint32_t rank_, warp_, lane_;
  TileTurn turn_;
  const int32_t* selected_;
  std::byte* const* blocks_;
  uint32_t topk_, entry_tiles_, last_is_;
  uint32_t masks_ = 0;  // Of the tiles on their way, eight bits each.
  int32_t ahead_;       // Entries of the group that is found next.
  Place group_, next_group_;
};

}  // namespace reprise::engine::cuda
