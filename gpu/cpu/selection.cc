// The indexer: scores of global entries, the best of them, and the candidate pool of the decoder
// (model-facts sections 5.2 to 5.5). Ties go to the lower position.
#include <bit>
#include <cmath>
#include <vector>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

constexpr uint32_t kRowsOfTask = 16;
// Entries whose scores are in the nearest cache when the tops of their blocks are taken.
constexpr uint32_t kEntriesOfTurn = 4 * kIndexEntries;
constexpr size_t kNoTiles = SIZE_MAX;

// Rows of one part that are scored together, because they share the decoded keys.
struct ScoreTask {
  uint32_t part = 0;
  uint32_t row = 0;  // Within the part.
  uint32_t rows = 0;
};

// Where a task's scores lie: of every row all entries that its last row sees, then the top of every
// block of them. The odd stride keeps the rows of long texts out of one another's cache sets.
struct ScoredRows {
  ScoredRows(const ModelConfig& config, uint32_t visible)
      : entries(AlignUp(visible, kEntriesOfTurn)),
        stride(entries + entries / config.candidate_block_size + 16) {}
  const float* ScoresOf(uint32_t row) const { return values + row * stride; }
  float* TopsOf(uint32_t row) const { return values + row * stride + entries; }
  size_t floats() const { return kRowsOfTask * stride; }

  size_t entries, stride;
  float* values = nullptr;
};

// The best blocks and entries of a row. Every block ranks by its best entry: so the best entries
// are in as many best blocks.
class BestOfRow {
 public:
  BestOfRow(const ModelConfig& config, const Kernels& kernels)
      : kernels_(kernels),
        size_(config.candidate_block_size),
        pool_(config.candidate_topk_blocks - 1),
        topk_(config.index_topk),
        blocks_(std::max(pool_, topk_) + 1),
        tops_(blocks_.size()),
        picks_(blocks_.size()),
        scores_(blocks_.size() * size_) {}

  // Blocks that may be in the pool or have entries that are taken: all others are worse.
  void Look(const float* tops, uint32_t blocks) {
    const uint32_t newest = blocks - 1;
    count_ = kernels_.largest(tops, newest, std::max(pool_, topk_), blocks_.data());
    blocks_[count_++] = newest;
    for (uint32_t i = 0; i < count_; ++i) tops_[i] = tops[blocks_[i]];
  }

  // The newest, which is always in, and the best of the others: a bit each.
  void FillPool(uint64_t* words) {
    uint32_t found = kernels_.largest(tops_.data(), count_ - 1, pool_, picks_.data());
    picks_[found++] = count_ - 1;
    for (uint32_t i = 0; i < found; ++i) {
      const uint32_t block = blocks_[picks_[i]];
      words[block / 64] |= 1ull << (block % 64);
    }
  }

  // REQUIRES: topk entries are visible.
  void TakeEntries(const float* scores, uint32_t visible, int32_t* selected) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      const uint32_t first = blocks_[i] * size_, entries = std::min(size_, visible - first);
      std::copy_n(scores + first, entries, &scores_[count]);
      count += entries;
    }
    kernels_.largest(scores_.data(), count, topk_, picks_.data());
    for (uint32_t i = 0; i < topk_; ++i) {
      const uint32_t place = picks_[i];
      selected[i] = static_cast<int32_t>(blocks_[place / size_] * size_ + place % size_);
    }
  }

 private:
  const Kernels& kernels_;
  const uint32_t size_, pool_, topk_;
  uint32_t count_ = 0;
  std::vector<uint32_t> blocks_;  // Ascending.
  std::vector<float> tops_;
  std::vector<uint32_t> picks_;
  std::vector<float> scores_;
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
    ExpandKeys();
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

  bool FillsPool() const { return plan_.writes_pool && step_.pool_words > 0; }
  bool ReadsPool() const { return plan_.reads_pool && step_.pool_words > 0; }
  bool ScoresAll(uint32_t visible) const {
    return !ReadsPool() && (visible > config_.index_topk || FillsPool());
  }

  // Of parts that several tasks score: each key is expanded once for all of them.
  void ExpandKeys() {
    struct Tile {
      uint32_t part, first;
    };
    std::vector<Tile> tiles;
    tiles_from_.assign(step_.parts.size(), kNoTiles);
    for (uint32_t part = 0; part < step_.parts.size(); ++part) {
      const Step::Part& p = step_.parts[part];
      const uint32_t visible = Visible(p.first + p.rows - 1);
      if (p.rows <= kRowsOfTask || !ScoresAll(visible)) continue;
      tiles_from_[part] = tiles.size();
      for (uint32_t first = 0; first < visible; first += kIndexEntries) {
        tiles.push_back({part, first});
      }
    }
    const size_t bytes = tiles.size() * TileBytes();
    if (step_.index_tiles.size() < bytes) step_.index_tiles.resize(bytes);
    machine_.ForRows(static_cast<uint32_t>(tiles.size()), 16,
                     [&](uint32_t first, uint32_t end, uint32_t) {
                       for (uint32_t i = first; i < end; ++i) {
                         const auto [part, entry] = tiles[i];
                         const Step::Part& p = step_.parts[part];
                         const uint32_t visible = Visible(p.first + p.rows - 1);
                         Expand(part, entry, visible, &step_.index_tiles[i * TileBytes()]);
                       }
                     });
  }

  void RunTask(const ScoreTask& task, uint32_t worker) {
    if (ReadsPool()) {
      for (uint32_t row = 0; row < task.rows; ++row) PickFromPool(task, row, worker);
      return;
    }
    const uint32_t visible = Visible(PositionOf(task, task.rows - 1));
    if (!ScoresAll(visible)) {
      for (uint32_t row = 0; row < task.rows; ++row) TakeAll(task, row);
      return;
    }
    ScoredRows scored(config_, visible);
    scored.values = machine_.Scratch(worker, scored.floats() + TileFloats());
    ScoreAll(task, visible, scored);
    BestOfRow best(config_, machine_.kernels);
    for (uint32_t row = 0; row < task.rows; ++row) Pick(task, row, scored, &best);
  }

  size_t TileBytes() const { return IndexTileBytes(config_.index_head_dim); }
  size_t TileFloats() const { return TileBytes() / sizeof(float); }

  void TakeAll(const ScoreTask& task, uint32_t row) {
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    const uint32_t visible = Visible(PositionOf(task, row));
    for (uint32_t i = 0; i < config_.index_topk; ++i) {
      selected[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
  }

  void Expand(uint32_t part, const uint32_t* entries, uint8_t* tile) const {
    const SequenceMemory& memory = step_.parts[part].segment->memory;
    const uint8_t* codes[kIndexEntries];
    const uint8_t* scales[kIndexEntries];
    for (uint32_t i = 0; i < kIndexEntries; ++i) {
      const EntryPlace place = entries_.Of(memory, entries[i]);
      codes[i] = place.index_codes;
      scales[i] = place.index_scales;
    }
    machine_.kernels.index_tile(codes, scales, config_.index_head_dim, tile);
  }
  // Entries from `first` on; in the place of those that nobody sees yet, the last.
  void Expand(uint32_t part, uint32_t first, uint32_t visible, uint8_t* tile) const {
    uint32_t entries[kIndexEntries];
    for (uint32_t i = 0; i < kIndexEntries; ++i) entries[i] = std::min(first + i, visible - 1);
    Expand(part, entries, tile);
  }

  // scores[row * stride + i] of entry i of the tile, for rows [row, row + rows) of the task.
  void Score(const ScoreTask& task, uint32_t row, uint32_t rows, const uint8_t* tile, float* scores,
             size_t stride) const {
    const size_t at = RowOf(task, row);
    machine_.kernels.index_scores(tile, &queries_[at * QueryBytes()],
                                  &head_weights_[at * config_.index_heads], config_.index_heads,
                                  config_.index_head_dim, rows, scores, stride);
  }

  // Scores of all entries that the task's last row sees, and the tops of their whole blocks.
  void ScoreAll(const ScoreTask& task, uint32_t visible, const ScoredRows& scored) const {
    const size_t tiles_from = tiles_from_[task.part];
    auto* own_tile = reinterpret_cast<uint8_t*>(scored.values + scored.floats());
    const uint32_t size = config_.candidate_block_size;
    for (uint32_t turn = 0; turn < visible; turn += kEntriesOfTurn) {
      for (uint32_t first = turn; first < std::min(visible, turn + kEntriesOfTurn);
           first += kIndexEntries) {
        const uint8_t* tile = own_tile;
        if (tiles_from == kNoTiles) {
          Expand(task.part, first, visible, own_tile);
        } else {
          tile = &step_.index_tiles[(tiles_from + first / kIndexEntries) * TileBytes()];
        }
        Score(task, 0, task.rows, tile, scored.values + first, scored.stride);
      }
      for (uint32_t row = 0; row < task.rows; ++row) {
        machine_.kernels.block_tops(scored.ScoresOf(row) + turn, kEntriesOfTurn / size, size,
                                    scored.TopsOf(row) + turn / size);
      }
    }
  }

  void Pick(const ScoreTask& task, uint32_t row, const ScoredRows& scored, BestOfRow* best) {
    const uint32_t visible = Visible(PositionOf(task, row));
    if (visible == 0) return TakeAll(task, row);
    const size_t at = RowOf(task, row);
    const uint32_t blocks = BlocksOf(PositionOf(task, row)), newest = blocks - 1;
    const float* scores = scored.ScoresOf(row);
    float* tops = scored.TopsOf(row);
    // The newest may not be whole.
    tops[newest] =
        *std::max_element(scores + size_t{newest} * config_.candidate_block_size, scores + visible);
    best->Look(tops, blocks);
    if (FillsPool()) best->FillPool(&step_.pool[at * step_.pool_words]);
    if (visible <= config_.index_topk) return TakeAll(task, row);
    best->TakeEntries(scores, visible, &step_.selected[at * config_.index_topk]);
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
      Expand(task.part, &entries[at], tile);
      Score(task, row, 1, tile, scores + at, kIndexEntries);
    }
    std::vector<uint32_t> best(config_.index_topk);
    best.resize(machine_.kernels.largest(scores, count, config_.index_topk, best.data()));
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    std::fill_n(selected, config_.index_topk, -1);
    for (const uint32_t i : best) *selected++ = static_cast<int32_t>(entries[i]);
  }

  Machine& machine_;
  const ModelConfig& config_;
  const LayerPlan& plan_;
  const EntryMap& entries_;
  Step& step_;
  std::vector<uint8_t> queries_;    // [rows][heads][IndexQueryBytes]
  Floats head_weights_;             // [rows][heads]
  std::vector<size_t> tiles_from_;  // Of a part: its first in the step's index_tiles, or kNoTiles.
};

}  // namespace

void Select(Machine& machine, uint32_t layer, Step& step) { Selector(machine, layer, step).Run(); }

}  // namespace reprise::engine::cpu
