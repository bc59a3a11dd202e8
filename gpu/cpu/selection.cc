// The indexer: scores of global entries, the best of them, and the candidate pool of the decoder
// (model-facts sections 5.2 to 5.5). Ties go to the lower position.
#include <bit>
#include <cmath>
#include <span>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

constexpr uint32_t kRowsOfTask = 16;

// Larger is better: the score, then the lower index.
uint64_t RankOf(float score, uint32_t index) {
  const auto bits = std::bit_cast<uint32_t>(score);
  const uint32_t ordered = (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
  return (uint64_t{ordered} << 32) | (UINT32_MAX - index);
}

// The largest of many values. Few are ever ranked: a sample says about where the last of them lies,
// and one sweep collects what is above.
class Largest {
 public:
  explicit Largest(const Kernels& kernels) : kernels_(kernels) {}

  // Indices of the `wanted` largest of values[0, count), ascending; of equal values the first come
  // in. Valid until the next call.
  std::span<const uint32_t> Of(const float* values, uint32_t count, uint32_t wanted) {
    indices_.resize(count);
    uint32_t found = 0;
    if (count >= kSampledFrom) {
      found = kernels_.at_least(values, count, Guess(values, count, wanted), indices_.data());
    }
    if (found < wanted) found = kernels_.at_least(values, count, -INFINITY, indices_.data());
    if (found <= wanted) return {indices_.data(), found};

    ranks_.resize(found);
    for (uint32_t i = 0; i < found; ++i) ranks_[i] = RankOf(values[indices_[i]], indices_[i]);
    const auto last = ranks_.begin() + static_cast<ptrdiff_t>(wanted) - 1;
    std::nth_element(ranks_.begin(), last, ranks_.end(), std::greater<>());
    uint32_t kept = 0;
    for (uint32_t i = 0; i < found; ++i) {
      const uint32_t index = indices_[i];
      if (RankOf(values[index], index) >= *last) indices_[kept++] = index;
    }
    return {indices_.data(), kept};
  }

 private:
  // A value that most probably at least `wanted` of them reach, and not many more.
  float Guess(const float* values, uint32_t count, uint32_t wanted) {
    sample_.resize(kSample);
    for (uint32_t i = 0; i < kSample; ++i) sample_[i] = values[uint64_t{i} * count / kSample];
    const double expected = static_cast<double>(wanted) * kSample / count;
    const auto rank = static_cast<uint32_t>(expected + 3 * std::sqrt(expected) + 2);
    if (rank >= kSample) return -INFINITY;
    const auto at = sample_.begin() + static_cast<ptrdiff_t>(rank);
    std::nth_element(sample_.begin(), at, sample_.end(), std::greater<>());
    return *at;
  }

  static constexpr uint32_t kSample = 256;
  static constexpr uint32_t kSampledFrom = 4 * kSample;

  const Kernels& kernels_;
  std::vector<uint32_t> indices_;
  std::vector<uint64_t> ranks_;
  std::vector<float> sample_;
};

// Rows of one part that are scored together, because they share the decoded keys.
struct ScoreTask {
  uint32_t part = 0;
  uint32_t row = 0;  // Within the part.
  uint32_t rows = 0;
};

class Selector {
 public:
  Selector(Machine& machine, uint32_t layer, Step& step)
      : machine_(machine),
        config_(machine.config),
        plan_(machine.geometry.layers[layer]),
        entries_(machine.EntriesOf(layer)),
        step_(step) {
    Queries(*machine.weights.layers[layer].attn.indexer, RotationOf(machine, layer, step));
    if (plan_.writes_pool) SizePool();
  }

  void Run() {
    std::vector<ScoreTask> tasks;
    for (uint32_t part = 0; part < step_.parts.size(); ++part) {
      for (uint32_t row = 0; row < step_.parts[part].rows; row += kRowsOfTask) {
        tasks.push_back({part, row, std::min(kRowsOfTask, step_.parts[part].rows - row)});
      }
    }
    machine_.pool.Run(static_cast<uint32_t>(tasks.size()),
                      [&](uint32_t task, uint32_t worker) { RunTask(tasks[task], worker); });
  }

 private:
  uint32_t Visible(uint32_t position) const { return (position + 1) / plan_.ratio; }
  uint32_t PositionOf(const ScoreTask& task, uint32_t row) const {
    return step_.parts[task.part].first + task.row + row;
  }
  size_t RowOf(const ScoreTask& task, uint32_t row) const {
    return step_.parts[task.part].row + size_t{task.row} + row;
  }

  void Queries(const IndexerWeights& weights, const Rotation& rotation) {
    const size_t dim = config_.index_head_dim, all = config_.index_heads * dim;
    const size_t pairs = config_.rope_dim / 2;
    Floats values(step_.rows * all);
    queries_.resize(step_.rows * QueryBytes());
    head_weights_.resize(size_t{step_.rows} * config_.index_heads);
    const Machine::Product products[] = {{.matrix = &weights.wq_b,
                                          .x = step_.qr_round.data(),
                                          .x_stride = config_.q_lora_rank,
                                          .y = values.data(),
                                          .y_stride = all,
                                          .rows = step_.rows},
                                         {.matrix = &weights.head_weights,
                                          .x = step_.x.data(),
                                          .x_stride = config_.hidden_size,
                                          .y = head_weights_.data(),
                                          .y_stride = config_.index_heads,
                                          .rows = step_.rows}};
    machine_.Multiply(products);
    const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim)) /
                                           std::sqrt(static_cast<double>(config_.index_heads)));
    machine_.ForRows(step_.rows, 16, [&](uint32_t first, uint32_t end, uint32_t) {
      std::vector<uint8_t> codes(dim / 2), scales(dim / 32);
      for (size_t row = first; row < end; ++row) {
        for (uint32_t head = 0; head < config_.index_heads; ++head) {
          float* q = &values[row * all + head * dim];
          machine_.kernels.rotate(q + dim - config_.rope_dim, &rotation.cosines[row * pairs],
                                  &rotation.sines[row * pairs], pairs);
          machine_.kernels.quantise_c(q, dim, codes.data(), scales.data());
          machine_.kernels.index_query(
              codes.data(), scales.data(), config_.index_head_dim,
              &queries_[row * QueryBytes() + head * IndexQueryBytes(config_.index_head_dim)]);
          head_weights_[row * config_.index_heads + head] *= factor;
        }
      }
    });
  }
  // Of all heads of a row.
  size_t QueryBytes() const {
    return config_.index_heads * IndexQueryBytes(config_.index_head_dim);
  }

  // The pool excludes nothing while every block is among the best: then it has no words.
  void SizePool() {
    uint32_t blocks = 0;
    for (uint32_t row = 0; row < step_.rows; ++row) {
      blocks = std::max(blocks, BlocksOf(step_.positions[row]));
    }
    step_.pool_words = blocks > config_.candidate_topk_blocks ? (blocks + 63) / 64 : 0;
    step_.pool.assign(size_t{step_.rows} * step_.pool_words, 0);
  }
  uint32_t BlocksOf(uint32_t position) const {
    return (Visible(position) + config_.candidate_block_size - 1) / config_.candidate_block_size;
  }

  void RunTask(const ScoreTask& task, uint32_t worker) {
    const bool pooled = plan_.reads_pool && step_.pool_words > 0;
    if (pooled) {
      for (uint32_t row = 0; row < task.rows; ++row) PickFromPool(task, row, worker);
      return;
    }
    const uint32_t last_visible = Visible(PositionOf(task, task.rows - 1));
    const bool fills_pool = plan_.writes_pool && step_.pool_words > 0;
    if (last_visible <= config_.index_topk && !fills_pool) {
      for (uint32_t row = 0; row < task.rows; ++row) TakeAll(task, row);
      return;
    }
    const size_t stride = AlignUp(last_visible, kIndexEntries);
    float* scores = machine_.Scratch(worker, kRowsOfTask * stride + TileFloats());
    auto* tile = reinterpret_cast<uint8_t*>(scores + kRowsOfTask * stride);
    for (uint32_t first = 0; first < last_visible; first += kIndexEntries) {
      uint32_t entries[kIndexEntries];
      for (uint32_t i = 0; i < kIndexEntries; ++i)
        entries[i] = std::min(first + i, last_visible - 1);
      Score(task, 0, task.rows, entries, tile, scores + first, stride);
    }
    Largest largest(machine_.kernels);
    std::vector<float> tops;
    for (uint32_t row = 0; row < task.rows; ++row) {
      const float* row_scores = scores + row * stride;
      if (fills_pool) FillPool(task, row, row_scores, tops, &largest);
      Pick(task, row, row_scores, &largest);
    }
  }

  size_t TileFloats() const { return IndexTileBytes(config_.index_head_dim) / sizeof(float); }

  void TakeAll(const ScoreTask& task, uint32_t row) {
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    const uint32_t visible = Visible(PositionOf(task, row));
    for (uint32_t i = 0; i < config_.index_topk; ++i) {
      selected[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
  }

  // scores[row * stride + i] of entries[i], for rows [row, row + rows) of the task.
  void Score(const ScoreTask& task, uint32_t row, uint32_t rows, const uint32_t* entries,
             uint8_t* tile, float* scores, size_t stride) {
    const SequenceMemory& memory = step_.parts[task.part].segment->memory;
    const size_t at = RowOf(task, row);
    const uint8_t* codes[kIndexEntries];
    const uint8_t* scales[kIndexEntries];
    for (uint32_t i = 0; i < kIndexEntries; ++i) {
      const EntryPlace place = entries_.Of(memory, entries[i]);
      codes[i] = place.index_codes;
      scales[i] = place.index_scales;
    }
    machine_.kernels.index_tile(codes, scales, config_.index_head_dim, tile);
    machine_.kernels.index_scores(tile, &queries_[at * QueryBytes()],
                                  &head_weights_[at * config_.index_heads], config_.index_heads,
                                  config_.index_head_dim, rows, scores, stride);
  }

  void FillPool(const ScoreTask& task, uint32_t row, const float* scores, std::vector<float>& tops,
                Largest* largest) {
    const uint32_t blocks = BlocksOf(PositionOf(task, row));
    if (blocks == 0) return;
    tops.resize(blocks);
    machine_.kernels.block_tops(scores, blocks - 1, config_.candidate_block_size, tops.data());
    tops[blocks - 1] = INFINITY;  // The newest is always in.
    uint64_t* words = &step_.pool[RowOf(task, row) * step_.pool_words];
    for (const uint32_t block : largest->Of(tops.data(), blocks, config_.candidate_topk_blocks)) {
      words[block / 64] |= 1ull << (block % 64);
    }
  }

  void Pick(const ScoreTask& task, uint32_t row, const float* scores, Largest* largest) {
    const uint32_t visible = Visible(PositionOf(task, row));
    if (visible <= config_.index_topk) return TakeAll(task, row);
    const std::span<const uint32_t> best = largest->Of(scores, visible, config_.index_topk);
    std::copy(best.begin(), best.end(), &step_.selected[RowOf(task, row) * config_.index_topk]);
  }

  // Scores the row's candidates alone: their number does not grow with the text.
  void PickFromPool(const ScoreTask& task, uint32_t row, uint32_t worker) {
    const uint32_t visible = Visible(PositionOf(task, row));
    if (visible <= config_.index_topk) return TakeAll(task, row);
    const uint32_t size = config_.candidate_block_size;
    std::vector<uint32_t> entries;
    const uint64_t* words = &step_.pool[RowOf(task, row) * step_.pool_words];
    for (uint32_t word = 0; word < step_.pool_words; ++word) {
      for (uint64_t left = words[word]; left != 0; left &= left - 1) {
        const uint32_t first = (word * 64 + static_cast<uint32_t>(std::countr_zero(left))) * size;
        for (uint32_t i = first; i < std::min(first + size, visible); ++i) {
          entries.push_back(i);
          const EntryPlace place = entries_.Of(step_.parts[task.part].segment->memory, i);
          __builtin_prefetch(place.index_codes, 0, 2);  // They lie all over a long text.
          __builtin_prefetch(place.index_scales, 0, 2);
        }
      }
    }
    const auto count = static_cast<uint32_t>(entries.size());
    entries.resize(AlignUp(count, kIndexEntries), entries.back());
    float* scores = machine_.Scratch(worker, entries.size() + TileFloats());
    auto* tile = reinterpret_cast<uint8_t*>(scores + entries.size());
    for (size_t at = 0; at < count; at += kIndexEntries) {
      Score(task, row, 1, &entries[at], tile, scores + at, kIndexEntries);
    }
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    std::fill_n(selected, config_.index_topk, -1);
    Largest largest(machine_.kernels);
    for (const uint32_t i : largest.Of(scores, count, config_.index_topk)) {
      *selected++ = static_cast<int32_t>(entries[i]);
    }
  }

  Machine& machine_;
  const ModelConfig& config_;
  const LayerPlan& plan_;
  const EntryMap& entries_;
  Step& step_;
  std::vector<uint8_t> queries_;  // [rows][heads][IndexQueryBytes]
  Floats head_weights_;           // [rows][heads]
};

}  // namespace

void Select(Machine& machine, uint32_t layer, Step& step) { Selector(machine, layer, step).Run(); }

}  // namespace reprise::engine::cpu
