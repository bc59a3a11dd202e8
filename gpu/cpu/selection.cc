// The indexer: scores of global entries, the best of them, and the candidate pool of the decoder
// (model-facts sections 5.2 to 5.5). Ties go to the lower position.
#include <bit>
#include <cmath>

#include "gpu/cpu/step.h"

namespace reprise::engine::cpu {
namespace {

constexpr uint32_t kTileEntries = 16;
constexpr uint32_t kRowsOfTask = 16;

// Larger is better: the score, then the lower index.
uint64_t RankOf(float score, uint32_t index) {
  const auto bits = std::bit_cast<uint32_t>(score);
  const uint32_t ordered = (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
  return (uint64_t{ordered} << 32) | (UINT32_MAX - index);
}
uint32_t IndexOf(uint64_t rank) { return UINT32_MAX - static_cast<uint32_t>(rank); }

// The best `count` of the ranks, in any order.
void KeepBest(std::vector<uint64_t>* ranks, size_t count) {
  if (ranks->size() <= count) return;
  std::nth_element(ranks->begin(), ranks->begin() + static_cast<ptrdiff_t>(count), ranks->end(),
                   std::greater<>());
  ranks->resize(count);
}

// Rows of one part that are scored together, because they share the decoded keys.
struct Task {
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
        source_(machine.source_index[plan_.kv_source]),
        step_(step) {
    Queries(*machine.weights.layers[layer].attn.indexer, RotationOf(machine, layer, step));
    if (plan_.writes_pool) SizePool();
  }

  void Run() {
    std::vector<Task> tasks;
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
  uint32_t PositionOf(const Task& task, uint32_t row) const {
    return step_.parts[task.part].first + task.row + row;
  }
  size_t RowOf(const Task& task, uint32_t row) const {
    return step_.parts[task.part].row + size_t{task.row} + row;
  }

  void Queries(const IndexerWeights& weights, const Rotation& rotation) {
    const size_t dim = config_.index_head_dim, all = config_.index_heads * dim;
    const size_t pairs = config_.rope_dim / 2;
    queries_.resize(step_.rows * all);
    head_weights_.resize(size_t{step_.rows} * config_.index_heads);
    const Machine::Product products[] = {{.matrix = &weights.wq_b,
                                          .x = step_.qr_round.data(),
                                          .x_stride = config_.q_lora_rank,
                                          .y = queries_.data(),
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
          float* q = &queries_[row * all + head * dim];
          machine_.kernels.rotate(q + dim - config_.rope_dim, &rotation.cosines[row * pairs],
                                  &rotation.sines[row * pairs], pairs);
          machine_.kernels.quantise_c(q, dim, codes.data(), scales.data());
          machine_.kernels.dequantise_c(codes.data(), scales.data(), dim, q);
          head_weights_[row * config_.index_heads + head] *= factor;
        }
      }
    });
  }

  // The pool excludes nothing while every block is among the best: then it has no words.
  void SizePool() {
    uint32_t blocks = 0;
    for (const uint32_t position : step_.positions) blocks = std::max(blocks, BlocksOf(position));
    step_.pool_words = blocks > config_.candidate_topk_blocks ? (blocks + 63) / 64 : 0;
    step_.pool.assign(size_t{step_.rows} * step_.pool_words, 0);
  }
  uint32_t BlocksOf(uint32_t position) const {
    return (Visible(position) + config_.candidate_block_size - 1) / config_.candidate_block_size;
  }
  bool InPool(size_t row, uint32_t block) const {
    return (step_.pool[row * step_.pool_words + block / 64] >> (block % 64) & 1) != 0;
  }

  void RunTask(const Task& task, uint32_t worker) {
    const uint32_t last_visible = Visible(PositionOf(task, task.rows - 1));
    const bool pool_matters = plan_.writes_pool && step_.pool_words > 0;
    if (last_visible <= config_.index_topk && !pool_matters) {
      for (uint32_t row = 0; row < task.rows; ++row) TakeAll(task, row);
      return;
    }
    const size_t stride = AlignUp(last_visible, kTileEntries);
    const size_t tile_floats = size_t{config_.index_head_dim} * kTileEntries;
    float* tile = machine_.Scratch(worker, tile_floats + kRowsOfTask * stride);
    float* scores = tile + tile_floats;
    Score(task, last_visible, tile, scores, stride);
    std::vector<uint64_t> ranks;
    for (uint32_t row = 0; row < task.rows; ++row) {
      const float* row_scores = scores + row * stride;
      if (pool_matters) FillPool(task, row, row_scores, &ranks);
      Pick(task, row, row_scores, &ranks);
    }
  }

  void TakeAll(const Task& task, uint32_t row) {
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    const uint32_t visible = Visible(PositionOf(task, row));
    for (uint32_t i = 0; i < config_.index_topk; ++i) {
      selected[i] = i < visible ? static_cast<int32_t>(i) : -1;
    }
  }

  // A tile is left out when no row of the task has one of its blocks in the pool.
  bool Wanted(const Task& task, uint32_t first_entry) const {
    if (!plan_.reads_pool || step_.pool_words == 0) return true;
    const uint32_t block = first_entry / config_.candidate_block_size;
    const uint32_t blocks = kTileEntries / config_.candidate_block_size;
    for (uint32_t row = 0; row < task.rows; ++row) {
      for (uint32_t b = block; b < block + blocks && b < step_.pool_words * 64; ++b) {
        if (InPool(RowOf(task, row), b)) return true;
      }
    }
    return false;
  }

  void Score(const Task& task, uint32_t entries, float* tile, float* scores, size_t stride) {
    const SequenceMemory& memory = step_.parts[task.part].segment->memory;
    const size_t row = RowOf(task, 0);
    const size_t query = size_t{config_.index_heads} * config_.index_head_dim;
    for (uint32_t first = 0; first < entries; first += kTileEntries) {
      if (!Wanted(task, first)) continue;
      const uint8_t* codes[kTileEntries];
      const uint8_t* scales[kTileEntries];
      for (uint32_t i = 0; i < kTileEntries; ++i) {
        const EntryPlace place =
            PlaceOf(machine_.geometry, memory, source_, std::min(first + i, entries - 1));
        codes[i] = place.index_codes;
        scales[i] = place.index_scales;
      }
      machine_.kernels.index_tile(codes, scales, config_.index_head_dim, tile);
      machine_.kernels.index_scores(tile, &queries_[row * query],
                                    &head_weights_[row * config_.index_heads], config_.index_heads,
                                    config_.index_head_dim, task.rows, scores + first, stride);
    }
  }

  void FillPool(const Task& task, uint32_t row, const float* scores, std::vector<uint64_t>* ranks) {
    const uint32_t visible = Visible(PositionOf(task, row));
    const uint32_t blocks = BlocksOf(PositionOf(task, row));
    const uint32_t size = config_.candidate_block_size;
    ranks->clear();
    for (uint32_t block = 0; block + 1 < blocks; ++block) {
      const float best = *std::max_element(scores + block * size, scores + (block + 1) * size);
      ranks->push_back(RankOf(best, block));
    }
    if (visible > 0) ranks->push_back(RankOf(INFINITY, blocks - 1));  // The newest is always in.
    KeepBest(ranks, config_.candidate_topk_blocks);
    uint64_t* words = &step_.pool[RowOf(task, row) * step_.pool_words];
    for (const uint64_t rank : *ranks) words[IndexOf(rank) / 64] |= 1ull << (IndexOf(rank) % 64);
  }

  void Pick(const Task& task, uint32_t row, const float* scores, std::vector<uint64_t>* ranks) {
    const uint32_t visible = Visible(PositionOf(task, row));
    if (visible <= config_.index_topk) return TakeAll(task, row);
    const bool pooled = plan_.reads_pool && step_.pool_words > 0;
    ranks->clear();
    for (uint32_t entry = 0; entry < visible; ++entry) {
      if (pooled && !InPool(RowOf(task, row), entry / config_.candidate_block_size)) continue;
      ranks->push_back(RankOf(scores[entry], entry));
    }
    KeepBest(ranks, config_.index_topk);
    int32_t* selected = &step_.selected[RowOf(task, row) * config_.index_topk];
    std::fill_n(selected, config_.index_topk, -1);
    for (size_t i = 0; i < ranks->size(); ++i) {
      selected[i] = static_cast<int32_t>(IndexOf((*ranks)[i]));
    }
    std::sort(selected, selected + ranks->size());
  }

  Machine& machine_;
  const ModelConfig& config_;
  const LayerPlan& plan_;
  uint32_t source_;
  Step& step_;
  Floats queries_;       // [rows][heads][dim]
  Floats head_weights_;  // [rows][heads]
};

}  // namespace

void Select(Machine& machine, uint32_t layer, Step& step) { Selector(machine, layer, step).Run(); }

}  // namespace reprise::engine::cpu
