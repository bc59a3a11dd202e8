#include <cooperative_groups.h>

#include <type_traits>

#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/matrix_attention.h"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// Sparse attention by the matrix units, for 64 heads and latents of 512.
//
// A cluster of two blocks takes a row: each half of the list of keys, 64 at a time. In a block one
// warpgroup turns codes into bf16 in shared memory; two multiply, 256 dimensions
// each: logits, of which each then has the sums for 32 keys, and values. At the end the two blocks
// exchange half of their sums. The split is always the same, so a row becomes the same bytes
// whatever runs beside it.
namespace reprise::engine::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr uint32_t kGroup = 128;  // Threads of a warpgroup.
constexpr uint32_t kDecoders = kGroup, kThreads = kDecoders + 2 * kGroup;
constexpr uint32_t kHeads = 64, kDim = 512, kKeys = 64;
constexpr uint32_t kBlockBytes = 64 * 128;                // 64 rows of 64 values.
constexpr uint32_t kTileBytes = kDim / 64 * kBlockBytes;  // 64 rows of 512 values: 64 KiB.
constexpr float kNone = -3e38f;

struct Shared {
  uint8_t query[kTileBytes];
  uint8_t keys[2][kTileBytes];
  uint8_t p[kBlockBytes];       // [heads][keys], bf16.
  float4 logits[2][4][kGroup];  // What a warpgroup has for the other's keys.
  float largest[2][kHeads];
  float total[2][kHeads];                      // Of this block's two halves.
  float peer_top[kHeads], peer_total[kHeads];  // Written by the other block.
};

enum Barrier : uint32_t { kFull = 1, kEmpty = 3, kBoth = 5 };  // Full and empty: one a buffer.
__device__ inline void Arrive(uint32_t barrier, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The list of a row, cut into tiles: two of the window, then the selection's.
struct KeyList {
  __device__ KeyList(const AttentionCall& call, uint32_t row_index)
      : row(row_index),
        position(call.step.positions[row_index]),
        part(call.step.part[call.step.part_of_row[row_index]]),
        selected(call.selected == nullptr ? nullptr
                                          : call.selected + uint64_t{row_index} * call.topk),
        topk(call.selected == nullptr ? 0 : call.topk) {
    window_tiles = call.windows.window / kKeys;
    tiles = window_tiles + (topk + kKeys - 1) / kKeys;
  }
  __device__ int64_t WindowBegin(const AttentionCall& call, uint32_t tile) const {
    const int64_t begin = int64_t{position} - call.windows.window + 1 + tile * kKeys;
    return max(begin, int64_t{part.windows_from});
  }
  __device__ uint32_t Count(const AttentionCall& call, uint32_t tile, uint32_t valid) const {
    if (tile < window_tiles) {
      const int64_t begin = int64_t{position} - call.windows.window + 1 + tile * kKeys;
      const int64_t end = min(begin + kKeys, int64_t{position} + 1);
      const int64_t from = WindowBegin(call, tile);
      return end > from ? static_cast<uint32_t>(end - from) : 0;
    }
    const uint32_t first = (tile - window_tiles) * kKeys;
    return valid > first ? min(valid - first, kKeys) : 0;
  }

  uint32_t row, position;
  const DevicePart& part;
  const int32_t* selected;
  uint32_t topk, window_tiles, tiles;
};

// ---- Codes to bf16 -----------------------------------------------------------------------------

__device__ inline uint32_t Multiplied(uint32_t pair, __nv_bfloat162 factor) {
  const __nv_bfloat162 product = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&pair), factor);
  return *reinterpret_cast<const uint32_t*>(&product);
}
// Sixteen values of a key, at 16 x lane: two pieces of its block of 64.
__device__ inline void PutValues(uint8_t* tile, uint32_t key, uint32_t lane,
                                 const uint32_t* pairs) {
  uint8_t* block = tile + lane / 4 * kBlockBytes;
  const uint32_t piece = lane % 4 * 2;
  *reinterpret_cast<uint4*>(block + SwizzledOffset(key, piece)) =
      make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  *reinterpret_cast<uint4*>(block + SwizzledOffset(key, piece + 1)) =
      make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
}
// E4M3 codes, and their UE8M0 scale.
__device__ inline void ExpandWindow(const uint4& codes, uint32_t scale, uint32_t* pairs) {
  const uint32_t half = (scale + 120) << 7;  // Codes are spread 2^-120 too small.
  const uint32_t both = half | half << 16;
  const __nv_bfloat162 factor = *reinterpret_cast<const __nv_bfloat162*>(&both);
  const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint32_t bytes = __byte_perm(words[i / 2], 0, i % 2 == 0 ? 0x1404 : 0x3424);
    pairs[i] = Multiplied((bytes & 0x80008000) | (bytes >> 4 & 0x07f007f0), factor);
  }
}
// E2M1 codes, neighbours in a byte, and their E4M3 scale.
__device__ inline void ExpandEntry(const uint2& codes, uint8_t scale, uint32_t* pairs) {
  const __nv_bfloat162 unit = __float2bfloat162_rn(0x1p126f);  // Codes are spread 2^-126 too small.
  const __nv_bfloat162 factor = __float2bfloat162_rn(E4m3Value(scale));
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Nibbles 2 i and 2 i + 1 of the word to the tops of the halves.
    const uint32_t byte = words[i / 4] >> (8 * (i % 4));
    const uint32_t tops = (byte & 15) << 12 | (byte & 0xf0) << 24;
    const uint32_t spread = (tops & 0x80008000) | (tops >> 6 & 0x01c001c0);
    const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&spread), unit);
    pairs[i] = Multiplied(*reinterpret_cast<const uint32_t*>(&value), factor);
  }
}

constexpr uint32_t kKeysOfWarp = kKeys / (kDecoders / 32);

// Where a key lies: codes and scales by their offsets from `base`, which may still be on its way
// from memory. Null: no key.
struct KeyPlace {
  const uint8_t* base = nullptr;
  int64_t codes = 0, scales = 0;
};
// Each of the first lanes of a warp finds one of the warp's keys of a tile.
__device__ inline uint32_t KeyOfLane() {
  return threadIdx.x / 32 * kKeysOfWarp + threadIdx.x % kKeysOfWarp;
}
__device__ inline uint32_t FindEntry(const KeyList& list, uint32_t tile, uint32_t count) {
  if (tile < list.window_tiles || KeyOfLane() >= count) return 0;
  return static_cast<uint32_t>(list.selected[(tile - list.window_tiles) * kKeys + KeyOfLane()]);
}
__device__ inline KeyPlace FindKey(const AttentionCall& call, const KeyList& list, uint32_t tile,
                                   uint32_t count, uint32_t entry) {
  const uint32_t mine = KeyOfLane();
  if (mine >= count) return {};
  if (tile >= list.window_tiles) {
    const EntryView& view = call.entries;
    const uint32_t row = entry & ((1u << view.block_shift) - 1);
    return {reinterpret_cast<const uint8_t*>(
                call.step.blocks[list.part.first_block + (entry >> view.block_shift)]),
            view.main_codes + row * view.main_code_bytes,
            view.main_scales + row * view.main_scale_bytes};
  }
  const auto at = static_cast<uint32_t>(list.WindowBegin(call, tile)) + mine;
  if (at >= list.part.first) {
    const uint64_t row = list.part.row + at - list.part.first;
    const uint8_t* base = call.kv_codes + row * kDim;
    return {base, 0, call.kv_scales + row * (kDim / 32) - base};
  }
  const WindowPlace place = RingPlace(call.windows, list.part, at);
  return {place.codes, 0, place.scales - place.codes};
}

// A warp decodes its keys of a tile; those beyond the count are zeros. Loads of kTogether keys are
// under way at once. `ready` comes between the first loads and the first store.
template <bool kWindow, typename Ready>
__device__ inline void DecodeTile(const KeyPlace& place, uint8_t* to, Ready&& ready) {
  constexpr uint32_t kTogether = kWindow ? 8 : 16;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  using Codes = std::conditional_t<kWindow, uint4, uint2>;
  const bool found = place.base != nullptr;
  const uint8_t* const codes_at = found ? place.base + place.codes : nullptr;
  const uint8_t* const scales_at = found ? place.base + place.scales : nullptr;
#pragma unroll
  for (uint32_t first = 0; first < kKeysOfWarp; first += kTogether) {
    Codes codes[kTogether];
    uint8_t scales[kTogether];
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      const auto share = [&](const uint8_t* pointer) {
        return reinterpret_cast<const uint8_t*>(
            __shfl_sync(0xffffffff, reinterpret_cast<unsigned long long>(pointer), first + i));
      };
      const uint8_t* const key_codes = share(codes_at);
      const uint8_t* const key_scales = share(scales_at);
      const bool real = key_codes != nullptr;
      codes[i] = real ? *(reinterpret_cast<const Codes*>(key_codes) + lane) : Codes{};
      scales[i] = real ? key_scales[kWindow ? lane / 2 : lane] : uint8_t{1};
    }
    if (first == 0) ready();
#pragma unroll
    for (uint32_t i = 0; i < kTogether; ++i) {
      uint32_t pairs[8];
      if constexpr (kWindow) {
        ExpandWindow(codes[i], scales[i], pairs);
      } else {
        ExpandEntry(codes[i], scales[i], pairs);
      }
      PutValues(to, warp * kKeysOfWarp + first + i, lane, pairs);
    }
  }
}

// ---- Products ----------------------------------------------------------------------------------

// What a thread of a multiplying warpgroup holds: rows (heads) `row` and `row` + 8 of 256
// dimensions.
struct Sums {
  float values[128];
  float top[2], total[2];  // total: over this warpgroup's keys.
};

// One step of the online softmax. `half`: which 32 keys and 256 dimensions are this warpgroup's.
__device__ inline void Attend(Shared& shared, const uint8_t* tile, uint32_t count, uint32_t half,
                              float scale, Sums& sums) {
  const uint32_t thread = threadIdx.x % kGroup, lane = thread % 32;
  const uint32_t row = thread / 32 * 16 + lane / 4;
  float partial[32];  // Of all keys, over this warpgroup's dimensions.
  WgmmaFence();
#pragma unroll
  for (uint32_t block = 0; block < kDim / 128; ++block) {
#pragma unroll
    for (uint32_t step = 0; step < 4; ++step) {
      const uint32_t at = (half * (kDim / 128) + block) * kBlockBytes + step * 32;
      WgmmaShared<64, false>::Run(partial, SwizzledRows(SharedAddress(shared.query) + at),
                                  SwizzledRows(SharedAddress(tile) + at), block + step > 0 ? 1 : 0);
    }
  }
  WgmmaCommit();
  WgmmaWait<0>();
  Hold(partial);
  float logits[16];
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    float4 sent;
    float* const out = &sent.x;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      out[j] = half == 0 ? partial[16 + i + j] : partial[i + j];
      logits[i + j] = half == 0 ? partial[i + j] : partial[16 + i + j];
    }
    shared.logits[half][i / 4][thread] = sent;
  }
  GroupBarrier(kBoth, 2 * kGroup);
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const float4 other = shared.logits[1 - half][i / 4][thread];
    logits[i] += other.x;
    logits[i + 1] += other.y;
    logits[i + 2] += other.z;
    logits[i + 3] += other.w;
  }
  float largest[2] = {kNone, kNone};
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const uint32_t key = half * 32 + i / 4 * 8 + lane % 4 * 2 + i % 2;
    logits[i] = key < count ? logits[i] * scale : kNone;
    largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], logits[i]);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 1));
    largest[k] = fmaxf(largest[k], __shfl_xor_sync(0xffffffff, largest[k], 2));
    if (lane % 4 == 0) shared.largest[half][row + 8 * k] = largest[k];
  }
  GroupBarrier(kBoth, 2 * kGroup);
  float decay[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float top = fmaxf(sums.top[k], fmaxf(largest[k], shared.largest[1 - half][row + 8 * k]));
    decay[k] = expf(sums.top[k] - top);
    sums.top[k] = top;
  }
  float added[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 16; i += 2) {
    const int k = i / 2 % 2;
    const float p = expf(logits[i] - sums.top[k]), q = expf(logits[i + 1] - sums.top[k]);
    added[k] += p + q;
    const uint32_t key = half * 32 + i / 4 * 8 + lane % 4 * 2;
    *reinterpret_cast<__nv_bfloat162*>(shared.p + SwizzledOffset(row + 8 * k, key / 8) +
                                       key % 8 * 2) = __floats2bfloat162_rn(p, q);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    added[k] += __shfl_xor_sync(0xffffffff, added[k], 1);
    added[k] += __shfl_xor_sync(0xffffffff, added[k], 2);
    sums.total[k] = sums.total[k] * decay[k] + added[k];
  }
#pragma unroll
  for (int i = 0; i < 128; ++i) sums.values[i] *= decay[i / 2 % 2];
  FenceForMatrixUnits();
  GroupBarrier(kBoth, 2 * kGroup);
  Hold(sums.values);
  WgmmaFence();
#pragma unroll
  for (uint32_t step = 0; step < kKeys / 16; ++step) {
    const uint32_t a = SharedAddress(shared.p) + step * 32;
    const uint32_t b = SharedAddress(tile) + half * 4 * kBlockBytes + step * 16 * 128;
    WgmmaShared<256, true>::Run(sums.values, SwizzledRows(a), SwizzledColumns(b, kBlockBytes), 1);
  }
  WgmmaCommit();
  WgmmaWait<0>();
  Hold(sums.values);
}

// Both blocks' sums to attended values: this block gives dimensions 256 x rank and on, from what
// the warpgroup of that half holds and the other block's has sent.
__device__ inline void Finish(const AttentionCall& call, Shared& shared, const KeyList& list,
                              uint32_t rank, const Sums& sums) {
  const uint32_t thread = threadIdx.x % kGroup, lane = thread % 32;
  const uint32_t head = thread / 32 * 16 + lane / 4, pairs = call.step.pairs;
  const float4* received = reinterpret_cast<const float4*>(shared.keys[0]);
  float own[2], other[2], inverse[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t h = head + 8 * k;
    const float top = fmaxf(sums.top[k], shared.peer_top[h]);
    own[k] = expf(sums.top[k] - top);
    other[k] = expf(shared.peer_top[h] - top);
    const float mine = (shared.total[0][h] + shared.total[1][h]) * own[k];
    const float theirs = shared.peer_total[h] * other[k];
    inverse[k] = 1.0f / ((mine + theirs) + expf(call.sinks[h] - top));
  }
  const float* cosines = call.step.cosines[call.rotation] + uint64_t{list.row} * pairs;
  const float* sines = call.step.sines[call.rotation] + uint64_t{list.row} * pairs;
  Bf16* out = reinterpret_cast<Bf16*>(call.out) + uint64_t{list.row} * kHeads * kDim;
#pragma unroll
  for (int i = 0; i < 128; i += 4) {
    const float4 sent = received[i / 4 * kGroup + thread];
    const float theirs[4] = {sent.x, sent.y, sent.z, sent.w};
    const uint32_t d = rank * 256 + i / 4 * 8 + lane % 4 * 2;
    const bool turned = d >= kDim - 2 * pairs;
    const uint32_t pair = turned ? (d - (kDim - 2 * pairs)) / 2 : 0;
    const float c = turned ? cosines[pair] : 1, s = turned ? -sines[pair] : 0;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float value[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float a = sums.values[i + 2 * k + j] * own[k], b = theirs[2 * k + j] * other[k];
        value[j] = RoundBf16((a + b) * inverse[k]);
      }
      *reinterpret_cast<__nv_bfloat162*>(out + uint64_t{head + 8 * k} * kDim + d) =
          __floats2bfloat162_rn(value[0] * c - value[1] * s, value[0] * s + value[1] * c);
    }
  }
}

template <uint32_t kRegisters>
__device__ inline void MoreRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <uint32_t kRegisters>
__device__ inline void FewerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__global__ __cluster_dims__(2)
    __launch_bounds__(kThreads, 1) void MatrixAttention(AttentionCall call) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const cg::cluster_group cluster = cg::this_cluster();
  const uint32_t rank = cluster.block_rank();
  const KeyList list(call, blockIdx.x / 2);
  const uint32_t split = (list.tiles + 1) / 2;
  const uint32_t begin = rank == 0 ? 0 : split, end = rank == 0 ? split : list.tiles;

  for (uint32_t i = threadIdx.x; i < kHeads * kDim / 8; i += kThreads) {
    const uint32_t head = i / (kDim / 8), piece = i % (kDim / 8);
    const Bf16Bits* from = call.query + (uint64_t{list.row} * kHeads + head) * kDim + piece * 8;
    CopyAsync16(
        SharedAddress(shared.query + piece / 8 * kBlockBytes) + SwizzledOffset(head, piece % 8),
        from, true);
  }
  CopyCommit();
  uint32_t valid = 0;  // Selected entries come first.
  for (uint32_t first = 0; first < list.topk; first += kThreads) {
    const uint32_t i = first + threadIdx.x;
    valid += __syncthreads_count(i < list.topk && list.selected[i] >= 0);
  }
  CopyWait<0>();
  FenceForMatrixUnits();
  __syncthreads();

  const uint32_t group = threadIdx.x / kGroup;
  Sums sums;
  if (threadIdx.x < kDecoders) {
    FewerRegisters<104>();
    // While a tile is decoded, the place of the next one's keys and the entries of the one after it
    // are on their way.
    const auto count_of = [&](uint32_t tile) {
      return tile < end ? list.Count(call, tile, valid) : 0;
    };
    const auto entry_of = [&](uint32_t tile) { return FindEntry(list, tile, count_of(tile)); };
    uint32_t turn = 0;
    KeyPlace next = FindKey(call, list, begin, count_of(begin), entry_of(begin));
    uint32_t next_entry = entry_of(begin + 1);
    for (uint32_t tile = begin; tile < end; ++tile) {
      const KeyPlace place = next;
      const bool empty = count_of(tile) == 0;
      const uint32_t buffer = turn % 2;
      const auto ready = [&] {
        next = FindKey(call, list, tile + 1, count_of(tile + 1), next_entry);
        next_entry = entry_of(tile + 2);
        if (!empty && turn >= 2) GroupBarrier(kEmpty + buffer, kThreads);
      };
      if (empty) {
        ready();
        continue;
      }
      if (tile < list.window_tiles) {
        DecodeTile<true>(place, shared.keys[buffer], ready);
      } else {
        DecodeTile<false>(place, shared.keys[buffer], ready);
      }
      FenceForMatrixUnits();
      Arrive(kFull + buffer, kThreads);
      ++turn;
    }
    // The last arrivals of the others find this one waiting.
    for (uint32_t last = turn >= 2 ? turn - 2 : 0; last < turn; ++last) {
      GroupBarrier(kEmpty + last % 2, kThreads);
    }
    cluster.sync();
    cluster.sync();
    return;
  }
  MoreRegisters<200>();
  const uint32_t half = group - kDecoders / kGroup;
#pragma unroll
  for (float& value : sums.values) value = 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sums.top[k] = -1e30f;
    sums.total[k] = 0;
  }
  uint32_t turn = 0;
  for (uint32_t tile = begin; tile < end; ++tile) {
    const uint32_t count = list.Count(call, tile, valid);
    if (count == 0) continue;
    const uint32_t buffer = turn % 2;
    GroupBarrier(kFull + buffer, kThreads);
    Attend(shared, shared.keys[buffer], count, half, call.scale, sums);
    Arrive(kEmpty + buffer, kThreads);
    ++turn;
  }
  const uint32_t thread = threadIdx.x % kGroup, lane = thread % 32;
  const uint32_t head = thread / 32 * 16 + lane / 4;
  if (lane % 4 == 0) {
#pragma unroll
    for (int k = 0; k < 2; ++k) shared.total[half][head + 8 * k] = sums.total[k];
  }
  cluster.sync();  // Both blocks are done with their keys.
  Shared& peer = *cluster.map_shared_rank(&shared, 1 - rank);
  if (half != rank) {
    float4* to = reinterpret_cast<float4*>(peer.keys[0]);
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
      to[i / 4 * kGroup + thread] =
          make_float4(sums.values[i], sums.values[i + 1], sums.values[i + 2], sums.values[i + 3]);
    }
    if (lane % 4 == 0) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const uint32_t h = head + 8 * k;
        peer.peer_top[h] = sums.top[k];
        peer.peer_total[h] = shared.total[0][h] + shared.total[1][h];
      }
    }
  }
  cluster.sync();
  if (half == rank) Finish(call, shared, list, rank, sums);
}

}  // namespace

bool MatrixAttentionFits(const AttentionCall& call) {
  return call.heads == kHeads && call.dim == kDim && call.windows.window % kKeys == 0 &&
         !call.drafts;
}

cudaError_t LaunchMatrixAttention(const AttentionCall& call, cudaStream_t stream) {
  static const cudaError_t ready = cudaFuncSetAttribute(
      MatrixAttention, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared));
  if (ready != cudaSuccess) return ready;
  MatrixAttention<<<2 * call.step.rows, kThreads, sizeof(Shared), stream>>>(call);
  return cudaGetLastError();
}

}  // namespace reprise::engine::cuda
