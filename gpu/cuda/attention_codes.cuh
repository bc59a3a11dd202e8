#pragma once

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// Keys of attention by the matrix units: where they lie, and their codes turned into bf16.
//
// A row's keys are the window, oldest first, and then selected entries, in tiles of 64. In shared
// memory a block is 64 keys by 64 dimensions.
//
// Within 64 dimensions, position 16 s + 8 h + 2 c + e holds dimension 16 c + 8 h + s + 4 e: so four
// threads that share a row of a product each hold 16 dimensions side by side, and the two values of
// a word come from one shift of a word of FP4 codes. Keys are 2^-8 of what they should be.
namespace reprise::engine::cuda {

constexpr uint32_t kHeads = 64, kDim = 512, kKeys = 64;
constexpr uint32_t kWindow = 2 * kKeys, kSelectedMax = 8 * kKeys;
constexpr uint32_t kBlockBytes = 64 * 128;  // 64 rows of 64 values.
constexpr float kKeyUnit = 256;

// ---- Codes to bf16 -----------------------------------------------------------------------------

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

// ---- Where keys lie ----------------------------------------------------------------------------

// An entry's codes, and its scales from there. Null: there is none.
struct Entry {
  const uint8_t* codes;
  int32_t scales;
};
__device__ inline Entry EntryAt(const AttentionCall& call, uint32_t first_block, int32_t entry) {
  const EntryView& view = call.entries;
  const uint32_t row = entry & ((1u << view.block_shift) - 1);
  const uint8_t* payload = nullptr;
  if (entry >= 0) {
    payload = reinterpret_cast<const uint8_t*>(
        call.step.blocks[first_block + (entry >> view.block_shift)]);
  }
  const uint32_t codes = view.main_codes + row * view.main_code_bytes;
  return {entry < 0 ? nullptr : payload + codes,
          static_cast<int32_t>(view.main_scales + row * view.main_scale_bytes - codes)};
}
// Whether there is key `key` of the window that ends at `position`.
__device__ inline bool IsInWindow(const DevicePart& part, int32_t position, uint32_t key) {
  return position + static_cast<int32_t>(key) - static_cast<int32_t>(kWindow) + 1 >=
         max(0, static_cast<int32_t>(part.windows_from));
}
// Where it lies; null where there is none.
__device__ inline WindowPlace PlaceInWindow(const AttentionCall& call, const DevicePart& part,
                                            int32_t position, uint32_t key) {
  if (!IsInWindow(part, position, key)) return {nullptr, nullptr};
  const uint32_t at = static_cast<uint32_t>(position) + key - kWindow + 1;
  if (at < part.first) return RingPlace(call.windows, part, at);
  const uint64_t row = part.row + at - part.first;
  return {call.kv_codes + row * kDim, call.kv_scales + row * (kDim / 32)};
}

}  // namespace reprise::engine::cuda
