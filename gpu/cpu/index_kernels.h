// Index scores, and the largest of them. Part of kernels_<isa>.cc; see simd16.h and kernels.h.
#pragma once

#include "gpu/cpu/kernels.h"
#include "gpu/cpu/quantise_kernels.h"
#include "gpu/cpu/simd16.h"

namespace {

using reprise::engine::cpu::kIndexEntries;

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

// Sixteen keys: [dim / 8][even, odd][lane][4], then [groups][lane] scales and [groups][lane] starts
// of the sums, which take the offset of queries back.
inline void PackKeys(const uint8_t* const* codes, const uint8_t* const* scales, uint32_t dim,
                     uint8_t* out) {
  uint8_t* tails = out + size_t{dim} * kLanes;
  for (uint32_t group = 0; group < dim / kGroup; ++group) {
    U16 ones_sum = SetU(0), words[4];
    LoadColumns(codes, size_t{group} * kGroup / 2, words);
    for (uint32_t i = 0; i < 4; ++i) {
      const U16 even = EvenBytes(words[i]), odd = OddBytes(words[i]);
      uint8_t* to = out + (size_t{group} * kGroup + i * 8) * kLanes;
      memcpy(to, &even, sizeof(even));
      memcpy(to + sizeof(even), &odd, sizeof(odd));
      ones_sum = MulAddBytes(SetU(0x01010101), even, ones_sum);
      ones_sum = MulAddBytes(SetU(0x01010101), odd, ones_sum);
    }
    uint32_t powers[kLanes];
    for (size_t lane = 0; lane < kLanes; ++lane) powers[lane] = uint32_t{scales[lane][group]} << 23;
    memcpy(tails + group * kLanes * 8, powers, sizeof(powers));
    const U16 starts = StartSums(AddHalves(ones_sum) * -kOffset);
    memcpy(tails + group * kLanes * 8 + sizeof(powers), &starts, sizeof(starts));
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

constexpr uint32_t kHeadsAtOnce = 4;

// Adds the scores of kHeadsAtOnce heads to those of kHalvesAtOnce sixteens of keys. Each q . k is
// exact.
[[gnu::always_inline]] inline void AddHeads(const uint8_t* keys, const uint8_t* queries,
                                            const float* weights, uint32_t dim, F16* scores) {
  constexpr uint32_t kHeads = kHeadsAtOnce;
  const size_t query_bytes = reprise::engine::cpu::IndexQueryBytes(dim);
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
      for (U16& sum : sums[half]) sum = LoadU(tails[half] + kLanes * 4);
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

// Inlined where `dim` is known, so that all of a row is one piece of straight code.
[[gnu::always_inline]] inline void ScoreRows(const uint8_t* tile, const uint8_t* queries,
                                             const float* weights, uint32_t heads, uint32_t dim,
                                             uint32_t rows, float* scores, size_t stride) {
  const size_t query_bytes = reprise::engine::cpu::IndexQueryBytes(dim);
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t half = 0; half < 2; half += kHalvesAtOnce) {
      const uint8_t* keys = tile + half * HalfTileBytes(dim);
      F16 sums[kHalvesAtOnce];
      for (F16& sum : sums) sum = Set(0.0f);
      for (uint32_t head = 0; head < heads; head += kHeadsAtOnce) {
        const size_t first = size_t{row} * heads + head;
        AddHeads(keys, queries + first * query_bytes, weights + first, dim, sums);
      }
      for (uint32_t i = 0; i < kHalvesAtOnce; ++i) {
        // -0 becomes 0: they are a tie.
        Store(scores + row * stride + (half + i) * kLanes, sums[i] + Set(0.0f));
      }
    }
  }
}

void KernelIndexScores(const uint8_t* tile, const uint8_t* queries, const float* weights,
                       uint32_t heads, uint32_t dim, uint32_t rows, float* scores, size_t stride) {
  if (dim == 64) return ScoreRows(tile, queries, weights, heads, 64, rows, scores, stride);
  if (dim == 128) return ScoreRows(tile, queries, weights, heads, 128, rows, scores, stride);
  ScoreRows(tile, queries, weights, heads, dim, rows, scores, stride);
}

// ---- The largest of many
// --------------------------------------------------------------------------

// The largest of each half of eight vectors, in order.
inline F16 TopsOfEight(const float* values) {
  F16 fours[4], twos[2];
  for (int i = 0; i < 4; ++i) {
    const F16 a = Load(values + 2 * i * kLanes), b = Load(values + (2 * i + 1) * kLanes);
    fours[i] = Max(FirstFours(a, b), SecondFours(a, b));
  }
  for (int i = 0; i < 2; ++i) {
    const F16 a = fours[2 * i], b = fours[2 * i + 1];
    twos[i] = Max(FirstTwos(a, b), SecondTwos(a, b));
  }
  return Max(FirstOnes(twos[0], twos[1]), SecondOnes(twos[0], twos[1]));
}

void KernelBlockTops(const float* values, uint32_t blocks, uint32_t size, float* tops) {
  uint32_t block = 0;
  if (size == kLanes / 2) {
    for (; block + kLanes <= blocks; block += kLanes) {
      Store(tops + block, TopsOfEight(values + size_t{block} * size));
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
    for (; i < size; ++i) top = Larger(top, in_block[i]);
    tops[block] = top;
  }
}

// Values as whole vectors, and the rest: filled up with what is less than any.
struct Vectors {
  const float* values;
  uint32_t whole;
  F16 rest;

  Vectors(const float* all, uint32_t count) : values(all), whole(count / kLanes) {
    float last[kLanes];
    Store(last, Set(-__builtin_inff()));
    memcpy(last, values + whole * kLanes, count % kLanes * sizeof(float));
    rest = Load(last);
  }
  F16 At(uint32_t i) const { return i < whole ? Load(values + size_t{i} * kLanes) : rest; }
};

inline uint32_t CountAtLeast(const Vectors& vectors, F16 least) {
  int reached = __builtin_popcount(AtLeast(vectors.rest, least));
  for (uint32_t i = 0; i < vectors.whole; ++i) {
    reached += __builtin_popcount(AtLeast(vectors.At(i), least));
  }
  return static_cast<uint32_t>(reached);
}

// Floats by whole numbers that are in the same order.
inline uint32_t OrderOf(float x) {
  const uint32_t bits = BitsOf(x);
  return (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
}
inline float ValueOf(uint32_t order) {
  return FloatOf((order & 0x80000000) != 0 ? order ^ 0x80000000 : ~order);
}

// The `wanted` largest are those above `least` and the first `equals` of those equal to it.
struct Cut {
  float least;
  uint32_t equals;
};
// REQUIRES: at least `wanted` reach `smallest`.
inline Cut FindCut(const Vectors& vectors, float smallest, uint32_t wanted) {
  F16 tops = vectors.rest;
  for (uint32_t i = 0; i < vectors.whole; ++i) tops = Max(tops, vectors.At(i));
  // At least `wanted` reach `low`, and `above` of them, which are fewer, reach `high`.
  uint32_t low = OrderOf(smallest), high = OrderOf(ReduceMax(tops)) + 1, above = 0;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const uint32_t reached = CountAtLeast(vectors, Set(ValueOf(middle)));
    if (reached == wanted) return {ValueOf(middle), wanted};
    (reached > wanted ? low : high) = middle;
    if (reached < wanted) above = reached;
  }
  return {ValueOf(low), wanted - above};
}
inline float SmallestOf(const Vectors& vectors) {
  const F16 none = Set(-__builtin_inff());
  F16 low = vectors.rest > none ? vectors.rest : Set(vectors.values[0]);
  for (uint32_t i = 0; i < vectors.whole; ++i) low = Min(low, vectors.At(i));
  return -ReduceMax(-low);
}

constexpr uint32_t kRoom = 4096;  // Values that are looked at closely.

// What at least `wanted` values reach, and not many more: `wanted` of twice as many groups have a
// value that does.
inline float LowerBound(const Vectors& vectors, uint32_t wanted, float* room) {
  const uint32_t folded = (2 * wanted + kLanes - 1) / kLanes;
  if (2 * folded > vectors.whole || folded * kLanes > kRoom) return SmallestOf(vectors);
  memcpy(room, vectors.values, folded * sizeof(F16));
  for (uint32_t i = folded; i + folded <= vectors.whole; i += folded) {
    for (uint32_t j = 0; j < folded; ++j) {
      Store(room + j * kLanes, Max(Load(room + j * kLanes), vectors.At(i + j)));
    }
  }
  const Vectors groups(room, folded * kLanes);
  return FindCut(groups, SmallestOf(groups), wanted).least;
}

// Places of those that are taken, ascending: `places` of all, or none: then their own.
inline uint32_t Take(const Vectors& vectors, Cut cut, const uint32_t* places, uint32_t* out) {
  const F16 least = Set(cut.least);
  uint32_t found = 0;
  for (uint32_t i = 0; i <= vectors.whole; ++i) {
    const F16 v = vectors.At(i);
    uint32_t taken = AtLeast(v, least);
    for (uint32_t equal = taken & AtLeast(least, v); equal != 0; equal &= equal - 1) {
      if (cut.equals == 0)
        taken &= ~(equal & -equal);
      else
        --cut.equals;
    }
    const U16 own = places == nullptr ? Numbers() + SetU(i * kLanes) : LoadU(places + i * kLanes);
    found += StorePacked(own, taken, out + found);
  }
  return found;
}

uint32_t KernelLargest(const float* values, uint32_t count, uint32_t wanted, uint32_t* indices) {
  if (count <= wanted) {
    for (uint32_t i = 0; i < count; ++i) indices[i] = i;
    return count;
  }
  if (wanted == 0) return 0;
  float room[kRoom];
  uint32_t places[kRoom + kLanes];
  const Vectors all(values, count);
  const float bound = LowerBound(all, wanted, room);
  uint32_t kept = 0;
  for (uint32_t i = 0; i <= all.whole; ++i) {
    if (kept + kLanes > kRoom) return Take(all, FindCut(all, bound, wanted), nullptr, indices);
    const F16 v = all.At(i);
    const uint32_t reached = AtLeast(v, Set(bound));
    StorePacked(AsBits(v), reached, room + kept);
    kept += StorePacked(Numbers() + SetU(i * kLanes), reached, places + kept);
  }
  const Vectors few(room, kept);
  return Take(few, FindCut(few, bound, wanted), places, indices);
}

}  // namespace
