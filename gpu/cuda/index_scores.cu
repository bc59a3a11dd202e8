#include "gpu/cuda/formats.cuh"
#include "gpu/cuda/index_keys.cuh"
#include "gpu/cuda/index_ring.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/launch.cuh"
#include "gpu/cuda/octets.cuh"
#include "gpu/cuda/places.cuh"
#include "gpu/cuda/wgmma.cuh"

// The indexer's queries, and scores of global entries over their FP4 keys (model-facts sections 5.2
// and 5.3).
namespace reprise::engine::cuda {
namespace {

constexpr uint32_t kQueryThreads = 128;

// A thread takes eight values of a row's queries, four lanes a group of quantiser C.
__global__ __launch_bounds__(kQueryThreads) void IndexQueries(StepView step, Bf16Bits* q,
                                                              uint32_t heads, uint32_t dim) {
  WaitForEarlier();
  LetNextBegin();
  const uint64_t row = blockIdx.x;
  const uint32_t i = (blockIdx.y * kQueryThreads + threadIdx.x) * 8;
  if (i >= heads * dim) return;
  Bf16* const x = AsBf16(q) + row * heads * dim + i;
  const Octet turned =
      Octet::At(x).Turned(i % dim, dim, step.pairs, step.cosines[1] + row * step.pairs,
                          step.sines[1] + row * step.pairs);
  const float scale = PowerOf(ScaleC(LargestOfGroup(turned.Largest())));
  Octet rounded;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    rounded.values[k] = E2m1Value(E2m1Of(__fdiv_rn(turned.values[k], scale))) * scale;
  }
  rounded.Store(x);
}

// ---- Scores ------------------------------------------------------------------------------------

constexpr uint32_t kScoreThreads = 128;

// A thread an entry, a block 128 of them: for models with few index heads.
__global__ void SimpleScores(ScoreCall call) {
  WaitForEarlier();
  LetNextBegin();
  extern __shared__ float query[];  // [heads][dim], then [heads] weights.
  const uint32_t in_call = blockIdx.y, row = call.row + in_call;
  const uint32_t all = call.heads * call.dim;
  const uint32_t count = call.candidates == nullptr ? Visible(call.step, row, call.ratio)
                                                    : call.candidate_counts[in_call];
  if (blockIdx.x * kScoreThreads >= count) return;
  for (uint32_t i = threadIdx.x; i < all; i += kScoreThreads) {
    query[i] = ToFloat(AsBf16(call.queries)[uint64_t{row} * all + i]);
  }
  for (uint32_t h = threadIdx.x; h < call.heads; h += kScoreThreads) {
    query[all + h] = ToFloat(AsBf16(call.weights)[uint64_t{row} * call.heads + h]) * call.factor;
  }
  __syncthreads();
  const uint32_t i = blockIdx.x * kScoreThreads + threadIdx.x;
  if (i >= count) return;
  const uint64_t at = uint64_t{in_call} * call.stride + i;
  const uint32_t entry = call.candidates == nullptr ? i : call.candidates[at];
  const EntryPlace place =
      PlaceOf(call.step, call.entries, call.step.part[call.step.part_of_row[row]], entry);
  float score = 0;
  for (uint32_t h = 0; h < call.heads; ++h) {
    float dot = 0;
    for (uint32_t d = 0; d < call.dim; d += 8) {
      const uint32_t codes = *reinterpret_cast<const uint32_t*>(place.index_codes + d / 2);
      const float scale = PowerOf(place.index_scales[d / 32]);
      const float* q = query + h * call.dim + d;
#pragma unroll
      for (uint32_t k = 0; k < 8; ++k) {
        dot = fmaf(q[k], E2m1Value(codes >> (4 * k) & 15) * scale, dot);
      }
    }
    score = fmaf(query[all + h], fmaxf(dot, 0.0f), score);
  }
  call.scores[at] = score + 0.0f;  // -0 becomes 0: they are a tie.
}

// ---- Scores by the matrix units ----------------------------------------------------------------

// Blocks of a multiprocessor at a time, by the registers they need.
constexpr int ScoreBlocks(int rows, int groups, bool in_order) {
  return rows * groups > 6 ? 2 : rows > 1 ? 3 : in_order ? 6 : 5;
}

// Keys of tiles that lie in one block of entries each, in order: what rows see without candidates.
// Keys past the last one are loaded as they lie there. The block of the tile after the next is
// looked up meanwhile.
class KeysInOrder {
 public:
  __device__ KeysInOrder(const ScoreCall& call, const DevicePart& part, uint32_t first_key,
                         uint32_t tiles, uint32_t lane)
      : blocks_(call.step.blocks + part.first_block),
        shift_(call.entries.block_shift - kTileShift),
        in_block_((1u << shift_) - 1),
        codes_(call.entries.index_codes + first_key * kKeyCodeBytes + lane % 4 * 16),
        scales_(call.entries.index_scales + first_key * kKeyScaleBytes + lane % 4) {
    InRegister(shift_);
    InRegister(in_block_);
    InRegister(codes_);
    InRegister(scales_);
    InRegister(blocks_);
    if (blockIdx.x < tiles) block_ = Block(blockIdx.x);
  }
  // Of a tile, and `next` is loaded next if there is that one.
  __device__ void Load(uint32_t tile, uint32_t next, uint32_t tiles, RawKeys* raw) {
    const uint32_t in_block = tile & in_block_;
    const uint8_t* codes = block_ + (codes_ + in_block * (kTileKeys * kKeyCodeBytes));
    const uint8_t* scales = block_ + (scales_ + in_block * (kTileKeys * kKeyScaleBytes));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      raw->codes[i] = __ldg(reinterpret_cast<const uint4*>(codes + i * 8 * kKeyCodeBytes));
      raw->scales[i] = __ldg(scales + i * 8 * kKeyScaleBytes);
    }
    if (next < tiles) block_ = Block(next);
  }

 private:
  static constexpr uint32_t kTileShift = 6;
  static_assert(1u << kTileShift == kTileKeys);
  __device__ const uint8_t* Block(uint32_t tile) const {
    return reinterpret_cast<const uint8_t*>(blocks_[tile >> shift_]);
  }
  std::byte* const* blocks_;
  uint32_t shift_, in_block_;  // Tiles of a block, as a power of two, and less one.
  uint32_t codes_, scales_;    // Of this thread's first key, in a block.
  const uint8_t* block_ = nullptr;
};

// Any keys: of candidates, or in blocks of other shapes.
class KeysAnywhere {
 public:
  __device__ KeysAnywhere(const ScoreCall& call, const DevicePart& part, const uint32_t* candidates,
                          uint32_t first_key, uint32_t count, uint32_t lane)
      : call_(call),
        part_(part),
        candidates_(candidates),
        first_key_(first_key),
        count_(count),
        lane_(lane) {}
  __device__ void Load(uint32_t tile, uint32_t, uint32_t, RawKeys* raw) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t at = min(tile * kTileKeys + first_key_ + 8 * i, count_ - 1);
      const uint32_t entry = candidates_ == nullptr ? at : candidates_[at];
      const EntryPlace place = PlaceOf(call_.step, call_.entries, part_, entry);
      raw->codes[i] = __ldg(reinterpret_cast<const uint4*>(place.index_codes) + lane_ % 4);
      raw->scales[i] = __ldg(place.index_scales + lane_ % 4);
    }
  }

 private:
  const ScoreCall& call_;
  const DevicePart& part_;
  const uint32_t* candidates_;
  uint32_t first_key_, count_, lane_;
};

// Weights of a thread's columns, [groups][lane % 4][columns of a group / 4]: in registers, or where
// those do not suffice in shared memory, where four threads' 16 bytes lie in different banks.
template <int kColumns, int kGroups>
class HeadWeights {
 public:
  static constexpr uint32_t kStride = kColumns / 4 + 4;  // Floats.
  static constexpr uint32_t kBytes = kGroups == 1 ? 0 : kGroups * 4 * kStride * 4;

  __device__ HeadWeights(const ScoreCall& call, uint32_t row, uint32_t rows, float* shared)
      : own_(shared + threadIdx.x % 4 * kStride) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int i = 0; i < kColumns / 4; ++i) {
        const uint32_t column = g * kColumns + i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2;
        const uint32_t of_row = min(column / kIndexHeads, rows - 1);
        const float weight = HalfWeight(
            AsBf16(call.weights)[(uint64_t{row} + of_row) * kIndexHeads + column % kIndexHeads],
            call.factor);
        if constexpr (kGroups == 1) {
          values_[i] = weight;
        } else if (threadIdx.x < 4) {
          own_[g * 4 * kStride + i] = weight;
        }
      }
    }
  }
  // Of eight columns of row `r` of group `g`.
  __device__ void Get(int g, int r, float (&weights)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      if constexpr (kGroups == 1) {
#pragma unroll
        for (int k = 0; k < 4; ++k) weights[i + k] = values_[r * 8 + i + k];
      } else {
        const float4 four = *reinterpret_cast<const float4*>(own_ + g * 4 * kStride + r * 8 + i);
        weights[i] = four.x, weights[i + 1] = four.y;
        weights[i + 2] = four.z, weights[i + 3] = four.w;
      }
    }
  }

 private:
  float* own_;
  float values_[kGroups == 1 ? kColumns / 4 : 1];
};

// kGroups times kRows rows: while the products of the last group are under way, the scores of the
// one before it are made.
template <int kRows, int kGroups, bool kInOrder>
struct ScoreShape {
  static constexpr int kColumns = kRows * kIndexHeads;              // Of a group.
  static constexpr uint32_t kHalfBytes = kGroups * kColumns * 128;  // Of 64 inputs.
  static constexpr uint32_t kShared = 2 * kHalfBytes + HeadWeights<kColumns, kGroups>::kBytes;
};

template <int kRows, int kGroups, bool kInOrder>
__global__ __launch_bounds__(128, ScoreBlocks(kRows, kGroups,
                                              kInOrder)) void MatrixScores(ScoreCall call) {
  WaitForEarlier();
  LetNextBegin();
  using Shape = ScoreShape<kRows, kGroups, kInOrder>;
  constexpr int kColumns = Shape::kColumns, kAllRows = kRows * kGroups;
  constexpr uint32_t kRowPieces = kIndexHeads * kIndexDim * 2 / 16;  // 16 bytes each.
  extern __shared__ __align__(1024) uint8_t queries[];
  const uint32_t in_call = blockIdx.y * kAllRows, row = call.row + in_call;
  const uint32_t thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  // The queries are on their way while the first keys are looked up.
  constexpr int kPieces = kGroups * kColumns * kIndexDim / 8 / 128;
  uint4 values[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    const uint32_t of_row = min((i * 128 + thread) / kRowPieces, call.rows - 1 - in_call);
    values[i] = __ldg(reinterpret_cast<const uint4*>(call.queries) +
                      (uint64_t{row} + of_row) * kRowPieces + (i * 128 + thread) % kRowPieces);
  }
  const DevicePart& part = call.step.part[call.step.part_of_row[row]];
  const uint32_t stored_row = kRows == 1 ? 0 : lane % 4;  // Of each group.
  uint32_t count = 0;                                     // Of the row that sees most.
  uint32_t stored_counts[kGroups] = {};
#pragma unroll
  for (uint32_t r = 0; r < kAllRows; ++r) {
    const uint32_t of_row = in_call + r >= call.rows     ? 0
                            : call.candidates == nullptr ? Visible(call.step, row + r, call.ratio)
                                                         : call.candidate_counts[in_call + r];
    count = max(count, of_row);
    if (r % kRows == stored_row) stored_counts[r / kRows] = of_row;
  }
  const uint32_t tiles = (count + kTileKeys - 1) / kTileKeys;
  const uint32_t first_key = warp * 16 + lane / 4;  // Of a tile; the other is eight further on.
  auto keys = [&] {
    if constexpr (kInOrder) {
      return KeysInOrder(call, part, first_key, tiles, lane);
    } else {
      const uint32_t* candidates =
          call.candidates == nullptr ? nullptr : call.candidates + uint64_t{in_call} * call.stride;
      return KeysAnywhere(call, part, candidates, first_key, count, lane);
    }
  }();
  uint32_t tile = blockIdx.x, apart = gridDim.x;
  InRegister(apart);
  RawKeys raw;
  if (tile < tiles) keys.Load(tile, tile + apart, tiles, &raw);

#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    StoreQueries(queries, Shape::kHalfBytes, i * 128 + thread, values[i]);
  }
  const HeadWeights<kColumns, kGroups> head_weights(
      call, row, call.rows - in_call, reinterpret_cast<float*>(queries + 2 * Shape::kHalfBytes));
  FenceForMatrixUnits();
  __syncthreads();
  uint64_t rows = SwizzledRows(SharedAddress(queries));
  InRegister(rows);  // Then a product's rows take one addition; else three moves.
  // The scores that this thread stores: of one row of each group, and where a group is a single row
  // of one of its two keys.
  uint32_t key = tile * kTileKeys + first_key + (kRows == 1 ? lane % 2 * 8 : 0);
  float* to = call.scores + (uint64_t{in_call} + stored_row) * call.stride + key;
  if (kRows == 1 && (lane & 2) != 0) stored_counts[0] = 0;
#pragma unroll
  for (uint32_t& count : stored_counts) InRegister(count);
  InRegister(key);
  InRegister(to);
  for (; tile < tiles; tile += apart) {
    uint32_t a[8][4];
    ExpandTile(raw, a);
    if (tile + apart < tiles) keys.Load(tile + apart, tile + 2 * apart, tiles, &raw);
    float sums[kGroups][kColumns / 2];
#pragma unroll
    for (auto& of_group : sums) Forget(of_group);
#pragma unroll
    for (auto& step : a) Hold(step);
    WgmmaFence();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int step = 0; step < 8; ++step) {
        const uint32_t at = step / 4 * Shape::kHalfBytes + g * kColumns * 128 + step % 4 * 32;
        Wgmma<kColumns>::Run(sums[g], a[step], rows + at / 16, step > 0 ? 1 : 0);
      }
      WgmmaCommit();
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      if (g + 1 < kGroups) {
        WgmmaWait<1>();
      } else {
        WgmmaWait<0>();
        Keep(a);
      }
      Hold(sums[g]);
      float score[kRows == 1 ? 1 : 4][2] = {};  // Of two keys, over this thread's columns.
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float weights[8];
        head_weights.Get(g, r, weights);
#pragma unroll
        for (int i = 0; i < 2; ++i) score[r][i] = ScoreOf(sums[g], r, i, weights);
      }
      // Four threads have parts of the same scores: each gets whole ones to store.
      if constexpr (kRows == 1) {
        float whole = SumOfHalf(score[0][0], score[0][1], lane, 1);
        whole += __shfl_xor_sync(0xffffffff, whole, 2);
        if (key < stored_counts[g]) *to = whole + 0.0f;
      } else {
        float* const of_group = to + g * kRows * call.stride;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float first = SumOfHalf(score[0][i], score[1][i], lane, 1);
          const float second = SumOfHalf(score[2][i], score[3][i], lane, 1);
          const float whole = SumOfHalf(first, second, lane, 2);
          if (key + 8 * i < stored_counts[g]) of_group[8 * i] = whole + 0.0f;
        }
      }
    }
    key += apart * kTileKeys;
    to += apart * kTileKeys;
  }
}

template <int kRows, int kGroups, bool kInOrder>
cudaError_t LaunchMatrixScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream) {
  static_assert(kRows == 1 || kRows == 3 || kRows == 4);
  constexpr uint32_t kBlocks = 132 * ScoreBlocks(kRows, kGroups, kInOrder);  // All run at once.
  constexpr uint32_t kShared = ScoreShape<kRows, kGroups, kInOrder>::kShared;
  const cudaError_t ready = AllowShared<MatrixScores<kRows, kGroups, kInOrder>>(kShared);
  if (ready != cudaSuccess) return ready;
  const uint32_t rows = (call.rows + kRows * kGroups - 1) / (kRows * kGroups);
  const uint32_t tiles = (entries_max + kTileKeys - 1) / kTileKeys;
  const dim3 grid(min(tiles, max(1u, kBlocks / rows)), rows);
  return QueueNext(MatrixScores<kRows, kGroups, kInOrder>, {grid, 128, kShared}, stream, call);
}

}  // namespace

cudaError_t LaunchIndexQueries(const StepView& step, Bf16Bits* q, uint32_t heads, uint32_t dim,
                               cudaStream_t stream) {
  const dim3 grid(step.rows, (heads * dim / 8 + kQueryThreads - 1) / kQueryThreads);
  return QueueNext(IndexQueries, {grid, kQueryThreads}, stream, step, q, heads, dim);
}

cudaError_t LaunchScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream) {
  if (call.rows == 0 || entries_max == 0) return cudaSuccess;
  if (call.heads == kIndexHeads && call.dim == kIndexDim) {
    const EntryView& view = call.entries;
    const bool in_order = call.candidates == nullptr && view.block_shift >= 6 &&
                          view.index_code_bytes == kKeyCodeBytes &&
                          view.index_scale_bytes == kKeyScaleBytes;
    const bool shared_keys =
        call.one_part && call.rows >= kRowsThatShareKeys && call.candidates == nullptr;
    if (shared_keys) {
      if (!in_order) return LaunchMatrixScores<4, 1, false>(call, entries_max, stream);
      // Blocks of the fewest rows, four, six or eight, of which as few are enough.
      const uint32_t blocks = (call.rows + 7) / 8;
      if (call.rows <= 4) return LaunchMatrixScores<4, 1, true>(call, entries_max, stream);
      if (call.rows <= 6 * blocks) return LaunchMatrixScores<3, 2, true>(call, entries_max, stream);
      return LaunchMatrixScores<4, 2, true>(call, entries_max, stream);
    }
    if (in_order && RingTakes(call, entries_max))
      return LaunchRingScores(call, entries_max, stream);
    return in_order ? LaunchMatrixScores<1, 1, true>(call, entries_max, stream)
                    : LaunchMatrixScores<1, 1, false>(call, entries_max, stream);
  }
  const uint32_t shared = call.heads * (call.dim + 1) * sizeof(float);
  const dim3 grid((entries_max + kScoreThreads - 1) / kScoreThreads, call.rows);
  return QueueNext(SimpleScores, {grid, kScoreThreads, shared}, stream, call);
}

}  // namespace reprise::engine::cuda
