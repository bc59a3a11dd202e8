// Attention rows and index scores. Part of kernels_<isa>.cc; see simd16.h and kernels.h.
#pragma once

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/quantise_kernels.h"
#include "gpu/cpu/simd16.h"

namespace {

using reprise::engine::cpu::AttentionCall;
using reprise::engine::cpu::kAttentionBlock;
using reprise::engine::cpu::kIndexEntries;

// ---- Sixteen sums over lanes at once, each by the tree of ReduceAdd
// ------------------------------

// Halves of `kWidth` lanes are added: groups of a, then groups of b.
inline F16 FoldEights(F16 a, F16 b) {
  const F16 low =
      __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23);
  const F16 high =
      __builtin_shufflevector(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
  return low + high;
}
inline F16 FoldFours(F16 a, F16 b) {
  const F16 low =
      __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
  const F16 high =
      __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
  return low + high;
}
inline F16 FoldTwos(F16 a, F16 b) {
  const F16 low =
      __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29);
  const F16 high =
      __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
  return low + high;
}
inline F16 FoldOnes(F16 a, F16 b) {
  const F16 low =
      __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const F16 high =
      __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return low + high;
}
// Lane i is the sum of v[i].
inline F16 ReduceAdd16(const F16* v) {
  F16 eights[8], fours[4], twos[2];
  for (int i = 0; i < 8; ++i) eights[i] = FoldEights(v[2 * i], v[2 * i + 1]);
  for (int i = 0; i < 4; ++i) fours[i] = FoldFours(eights[2 * i], eights[2 * i + 1]);
  for (int i = 0; i < 2; ++i) twos[i] = FoldTwos(fours[2 * i], fours[2 * i + 1]);
  return FoldOnes(twos[0], twos[1]);
}

// ---- Attention
// -----------------------------------------------------------------------------------

constexpr uint32_t kDotHeads = 4, kDotKeys = 4;

// logits[head][key] = q . k * scale, for 4 heads and 4 keys; out is [kDotHeads][stride].
inline void DotFourByFour(const float* query, const float* const* keys, uint32_t dim, float scale,
                          float* out, uint32_t stride) {
  F16 sum[kDotHeads * kDotKeys];
  for (F16& s : sum) s = Set(0.0f);
  for (uint32_t d = 0; d < dim; d += kLanes) {
    F16 key[kDotKeys];
    for (uint32_t k = 0; k < kDotKeys; ++k) key[k] = Load(keys[k] + d);
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      const F16 q = Load(query + h * dim + d);
      for (uint32_t k = 0; k < kDotKeys; ++k) {
        sum[h * kDotKeys + k] = MulAdd(q, key[k], sum[h * kDotKeys + k]);
      }
    }
  }
  float dots[kDotHeads * kDotKeys];
  Store(dots, ReduceAdd16(sum) * Set(scale));
  for (uint32_t h = 0; h < kDotHeads; ++h) {
    memcpy(out + h * stride, dots + h * kDotKeys, kDotKeys * sizeof(float));
  }
}

// Logits to probabilities, rounded to bf16, in place; the head's maximum and denominator go on.
// Returns what the old numerator is multiplied by.
inline float SoftmaxStep(float* logits, float* top, float* total) {
  F16 part[kAttentionBlock / kLanes];
  F16 largest = Set(-3e38f);
  for (uint32_t i = 0; i < kAttentionBlock / kLanes; ++i) {
    part[i] = Load(logits + i * kLanes);
    largest = Max(largest, part[i]);
  }
  const float new_top = Larger(*top, ReduceMax(largest));
  F16 sum = Set(0.0f);
  for (uint32_t i = 0; i < kAttentionBlock / kLanes; ++i) {
    const F16 p = Exp(part[i] - Set(new_top));
    sum += p;
    Store(logits + i * kLanes, RoundToBf16(p));
  }
  const float decay = Exp(Set(*top - new_top))[0];
  *total = *total * decay + ReduceAdd(sum);
  *top = new_top;
  return decay;
}

// sum[head][d] = sum * decay + sum over keys of p[head][key] key[d], for 4 heads.
inline void AddValues(const AttentionCall& call, const float* p, const float* decay, float* sum) {
  constexpr uint32_t kParts = 4;  // Registers of d at a time.
  const uint32_t dim = call.dim;
  uint32_t d = 0;
  for (; d + kParts * kLanes <= dim; d += kParts * kLanes) {
    F16 acc[kDotHeads][kParts];
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      for (uint32_t i = 0; i < kParts; ++i) {
        acc[h][i] = Load(sum + h * dim + d + i * kLanes) * Set(decay[h]);
      }
    }
    for (uint32_t k = 0; k < call.count; ++k) {
      F16 value[kParts];
      for (uint32_t i = 0; i < kParts; ++i) value[i] = Load(call.keys[k] + d + i * kLanes);
      for (uint32_t h = 0; h < kDotHeads; ++h) {
        const F16 weight = Set(p[h * kAttentionBlock + k]);
        for (uint32_t i = 0; i < kParts; ++i) acc[h][i] = MulAdd(weight, value[i], acc[h][i]);
      }
    }
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      for (uint32_t i = 0; i < kParts; ++i) Store(sum + h * dim + d + i * kLanes, acc[h][i]);
    }
  }
  for (; d < dim; d += kLanes) {
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      F16 acc = Load(sum + h * dim + d) * Set(decay[h]);
      for (uint32_t k = 0; k < call.count; ++k) {
        acc = MulAdd(Set(p[h * kAttentionBlock + k]), Load(call.keys[k] + d), acc);
      }
      Store(sum + h * dim + d, acc);
    }
  }
}

void KernelAttentionBlock(const AttentionCall& call) {
  if (call.count == 0) return;
  const float* padded[kAttentionBlock + kDotKeys];
  const uint32_t whole = (call.count + kDotKeys - 1) / kDotKeys * kDotKeys;
  for (uint32_t k = 0; k < whole; ++k) padded[k] = call.keys[k < call.count ? k : call.count - 1];
  for (uint32_t head = 0; head < call.heads; head += kDotHeads) {
    float logits[kDotHeads * kAttentionBlock];
    const float* query = call.query + size_t{head} * call.dim;
    for (uint32_t k = 0; k < whole; k += kDotKeys) {
      DotFourByFour(query, padded + k, call.dim, call.scale, logits + k, kAttentionBlock);
    }
    float decay[kDotHeads];
    for (uint32_t h = 0; h < kDotHeads; ++h) {
      float* row = logits + h * kAttentionBlock;
      for (uint32_t k = call.count; k < kAttentionBlock; ++k) row[k] = -3e38f;
      decay[h] = SoftmaxStep(row, call.top + head + h, call.total + head + h);
    }
    AddValues(call, logits, decay, call.sum + size_t{head} * call.dim);
  }
}

void KernelAttentionEnd(const AttentionCall& call, const float* sinks, float* out) {
  for (uint32_t head = 0; head < call.heads; ++head) {
    const float total = call.total[head] + Exp(Set(sinks[head] - call.top[head]))[0];
    const F16 divisor = Set(total);
    for (uint32_t d = 0; d < call.dim; d += kLanes) {
      const size_t at = size_t{head} * call.dim + d;
      Store(out + at, RoundToBf16(Load(call.sum + at) / divisor));
    }
  }
}

// ---- Index scores
// --------------------------------------------------------------------------------

// Twice the values of E2M1, as bytes. A query's byte is kOffset more, so that it is unsigned.
constexpr int8_t kDoubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int32_t kOffset = 12;
constexpr uint32_t kGroup = 32;  // Values that share a scale.

// Eight values are two words of four bytes: the even ones, then the odd ones.
inline U16 EvenBytes(U16 word) { return LookupBytes(kDoubled, word & SetU(0x0f0f0f0f)); }
inline U16 OddBytes(U16 word) { return LookupBytes(kDoubled, (word >> 4) & SetU(0x0f0f0f0f)); }

constexpr size_t HalfTileBytes(uint32_t dim) {
  return size_t{dim} * kLanes + size_t{dim} / kGroup * kLanes * 8;
}

// Sixteen keys: [dim / 8][even, odd][lane][4], then [groups][lane] scales and [groups][lane] sums.
inline void PackKeys(const uint8_t* const* codes, const uint8_t* const* scales, uint32_t dim,
                     uint8_t* out) {
  uint8_t* tails = out + size_t{dim} * kLanes;
  for (uint32_t group = 0; group < dim / kGroup; ++group) {
    U16 ones_sum = SetU(0);
    for (uint32_t d = group * kGroup; d < (group + 1) * kGroup; d += 8) {
      uint32_t words[kLanes];
      for (size_t lane = 0; lane < kLanes; ++lane) memcpy(&words[lane], codes[lane] + d / 2, 4);
      const U16 word = LoadU(words);
      const U16 even = EvenBytes(word), odd = OddBytes(word);
      memcpy(out + d * kLanes, &even, sizeof(even));
      memcpy(out + d * kLanes + sizeof(even), &odd, sizeof(odd));
      ones_sum = MulAddBytes(SetU(0x01010101), even, ones_sum);
      ones_sum = MulAddBytes(SetU(0x01010101), odd, ones_sum);
    }
    uint32_t powers[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) powers[lane] = uint32_t{scales[lane][group]} << 23;
    memcpy(tails + group * kLanes * 8, powers, sizeof(powers));
    const I16 sums = AddHalves(ones_sum);
    memcpy(tails + group * kLanes * 8 + sizeof(powers), &sums, sizeof(sums));
  }
}

void KernelIndexTile(const uint8_t* const* codes, const uint8_t* const* scales, uint32_t dim,
                     uint8_t* tile) {
  PackKeys(codes, scales, dim, tile);
  PackKeys(codes + kLanes, scales + kLanes, dim, tile + HalfTileBytes(dim));
}

void KernelIndexQuery(const uint8_t* codes, const uint8_t* scales, uint32_t dim, uint8_t* query) {
  for (uint32_t d = 0; d < dim; d += 8) {
    for (uint32_t i = 0; i < 4; ++i) {
      const uint8_t pair = codes[d / 2 + i];
      query[d + i] = static_cast<uint8_t>(kDoubled[pair & 15] + kOffset);
      query[d + 4 + i] = static_cast<uint8_t>(kDoubled[pair >> 4] + kOffset);
    }
  }
  for (uint32_t group = 0; group < dim / kGroup; ++group) {
    const float scale = 0.25f * PowerOf(scales[group]);  // Both sides are doubled.
    memcpy(query + dim + group * 4, &scale, sizeof(scale));
  }
}

// Sixteens of keys that are taken together: enough sums under way to hide the latency of each,
// where there are registers for them.
#if defined(__AVX512F__)
constexpr uint32_t kHalvesAtOnce = 2;
#else
constexpr uint32_t kHalvesAtOnce = 1;
#endif

// Adds the scores of `kHeads` heads to those of kHalvesAtOnce sixteens of keys. Each q . k is
// exact.
template <uint32_t kHeads>
inline void AddHeads(const uint8_t* keys, const uint8_t* queries, size_t query_bytes,
                     const float* weights, uint32_t dim, F16* scores) {
  const uint8_t* halves[kHalvesAtOnce];
  F16 dots[kHalvesAtOnce][kHeads];
  for (uint32_t half = 0; half < kHalvesAtOnce; ++half) {
    halves[half] = keys + half * HalfTileBytes(dim);
    for (F16& dot : dots[half]) dot = Set(0.0f);
  }
  for (uint32_t group = 0; group < dim / kGroup; ++group) {
    const uint8_t* tails[kHalvesAtOnce];
    U16 sums[kHalvesAtOnce][kHeads];
    for (uint32_t half = 0; half < kHalvesAtOnce; ++half) {
      tails[half] = halves[half] + size_t{dim} * kLanes + group * kLanes * 8;
      const I16 offset = (I16)LoadU(tails[half] + kLanes * 4) * kOffset;
      for (U16& sum : sums[half]) sum = StartSums(-offset);
    }
#pragma GCC unroll 8
    for (uint32_t d = 0; d < kGroup; d += 4) {
      const size_t at = group * kGroup + d;
      U16 query[kHeads];
      for (uint32_t head = 0; head < kHeads; ++head) {
        uint32_t four;
        memcpy(&four, queries + head * query_bytes + at, sizeof(four));
        query[head] = SetU(four);
      }
      for (uint32_t half = 0; half < kHalvesAtOnce; ++half) {
        const U16 key = LoadU(halves[half] + at * kLanes);
        for (uint32_t head = 0; head < kHeads; ++head) {
          sums[half][head] = MulAddBytes(query[head], key, sums[half][head]);
        }
      }
    }
    for (uint32_t half = 0; half < kHalvesAtOnce; ++half) {
      const F16 powers = AsFloat(LoadU(tails[half]));
      for (uint32_t head = 0; head < kHeads; ++head) {
        float scale;
        memcpy(&scale, queries + head * query_bytes + dim + group * 4, sizeof(scale));
        const F16 whole = __builtin_convertvector(AddHalves(sums[half][head]), F16);
        dots[half][head] = MulAdd(whole, powers * Set(scale), dots[half][head]);
      }
    }
  }
  for (uint32_t half = 0; half < kHalvesAtOnce; ++half) {
    for (uint32_t head = 0; head < kHeads; ++head) {
      scores[half] = MulAdd(Set(weights[head]), Max(dots[half][head], Set(0.0f)), scores[half]);
    }
  }
}

void KernelIndexScores(const uint8_t* tile, const uint8_t* queries, const float* weights,
                       uint32_t heads, uint32_t dim, uint32_t rows, float* scores, size_t stride) {
  const size_t query_bytes = reprise::engine::cpu::IndexQueryBytes(dim);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t half = 0; half < 2; half += kHalvesAtOnce) {
      const uint8_t* keys = tile + half * HalfTileBytes(dim);
      F16 sums[kHalvesAtOnce];
      for (F16& sum : sums) sum = Set(0.0f);
      for (uint32_t head = 0; head < heads;) {
        const uint8_t* query = queries + (size_t{row} * heads + head) * query_bytes;
        const float* weight = weights + size_t{row} * heads + head;
        if (head + 4 <= heads) {
          AddHeads<4>(keys, query, query_bytes, weight, dim, sums);
          head += 4;
        } else {
          AddHeads<1>(keys, query, query_bytes, weight, dim, sums);
          ++head;
        }
      }
      for (uint32_t i = 0; i < kHalvesAtOnce; ++i) {
        // -0 becomes 0: they are a tie.
        Store(scores + row * stride + (half + i) * kLanes, sums[i] + Set(0.0f));
      }
    }
  }
}

uint32_t KernelAtLeast(const float* values, uint32_t count, float least, uint32_t* indices) {
  uint32_t found = 0, i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (uint32_t mask = AtLeast(Load(values + i), Set(least)); mask != 0; mask &= mask - 1) {
      indices[found++] = i + static_cast<uint32_t>(__builtin_ctz(mask));
    }
  }
  for (; i < count; ++i) {
    if (values[i] >= least) indices[found++] = i;
  }
  return found;
}

void KernelBlockTops(const float* values, uint32_t blocks, uint32_t size, float* tops) {
  uint32_t block = 0;
  if (size == kLanes / 2) {
    for (; block + 2 <= blocks; block += 2) {
      MaxOfHalves(Load(values + size_t{block} * size), &tops[block], &tops[block + 1]);
    }
  }
  for (; block < blocks; ++block) {
    const float* in_block = values + size_t{block} * size;
    uint32_t i = 0;
    float top = in_block[0];
    if (size >= kLanes) {
      F16 largest = Load(in_block);
      for (i = kLanes; i + kLanes <= size; i += kLanes) largest = Max(largest, Load(in_block + i));
      top = ReduceMax(largest);
    }
    for (; i < size; ++i) top = in_block[i] > top ? in_block[i] : top;
    tops[block] = top;
  }
}

}  // namespace
