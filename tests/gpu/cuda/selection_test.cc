// The best of a row's scores, and its candidate pool, against sorting: few values and many, equal
// ones, and samples that mislead.
#include <algorithm>
#include <cmath>

#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

// A step whose rows lie at [first, first + rows).
class Positions {
 public:
  Positions(uint32_t first, uint32_t rows) : positions_(rows), rows_(rows) {
    std::vector<uint32_t> positions(rows);
    for (uint32_t r = 0; r < rows; ++r) positions[r] = first + r;
    positions_.Put(positions);
  }
  StepView step() const { return {.rows = rows_, .positions = positions_.data()}; }

 private:
  OnDevice<uint32_t> positions_;
  uint32_t rows_;
};

// Scores of which many are equal; the best are anywhere (0), among the first 5,000 (1), or all are
// equal (2).
std::vector<float> ScoresWithTies(uint32_t count, int kind, uint64_t seed) {
  Prng prng(seed);
  std::vector<float> values(count);
  for (uint32_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(static_cast<int>(prng.Below(30'000)) - 100) / 8;
    values[i] = kind == 2 ? 3.0f : kind == 1 && i < 5000 ? value + 4000 : value;
  }
  return values;
}

// The `wanted` best, ascending.
std::vector<uint32_t> BestOf(std::span<const float> values, uint32_t wanted) {
  std::vector<uint32_t> order(values.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return values[a] > values[b]; });
  order.resize(wanted);
  std::sort(order.begin(), order.end());
  return order;
}

TEST(Selection, TheBestAreSelectedAscendingTiesByPlace) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kTopk = 512;
  const struct {
    uint32_t count, rows;  // Of the last row; others see fewer.
  } cases[] = {{513, 1},    {900, 3},     {16'384, 2},   {16'385, 1}, {70'001, 1},
               {70'001, 3}, {20'000, 70}, {300'000, 65}, {400'003, 1}};
  for (const auto& c : cases) {
    for (const int kind : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(c.rows) + " rows of " + std::to_string(c.count) + ", kind " +
                   std::to_string(kind));
      const Positions positions(c.count - c.rows, c.rows);
      const uint64_t stride = (c.count + 3) / 4 * 4;
      const std::vector<float> values = ScoresWithTies(stride + c.rows, kind, 12);
      std::vector<float> all;  // A row's begin one further on than those of the row before.
      for (uint32_t r = 0; r < c.rows; ++r) {
        all.insert(all.end(), values.begin() + r, values.begin() + r + stride);
      }
      const OnDevice<float> scores(all);
      const OnDevice<int32_t> selected(c.rows * kTopk);
      const OnDevice<std::byte> room(SelectRoomBytes());
      Launched(LaunchSelect({.step = positions.step(),
                             .ratio = 1,
                             .rows = c.rows,
                             .scores = scores.data(),
                             .stride = stride,
                             .topk = kTopk,
                             .selected = selected.data(),
                             .room = room.data(),
                             .entries_max = c.count},
                            nullptr));
      const std::vector<int32_t> got = selected.Get();
      for (uint32_t r = 0; r < c.rows; r += 13) {
        const uint32_t visible = c.count - c.rows + r + 1;
        const auto want =
            BestOf(std::span(all).subspan(r * stride, visible), std::min(visible, kTopk));
        ASSERT_TRUE(std::equal(want.begin(), want.end(), got.begin() + r * kTopk)) << "row " << r;
      }
    }
  }
}

TEST(Selection, PoolsOfManyBlocksHoldTheBestAndTheNewest) {
  RP_NEEDS_DEVICE();
  constexpr uint32_t kBlock = 8, kBlocksMax = 2048;
  for (const auto& [count, rows] : {std::pair{131'072u, 1u}, {140'003u, 3u}, {200'001u, 70u}}) {
    for (const int kind : {0, 1, 2}) {
      SCOPED_TRACE(std::to_string(rows) + " rows of " + std::to_string(count) + ", kind " +
                   std::to_string(kind));
      const Positions positions(count - rows, rows);
      const uint64_t stride = (count + 3) / 4 * 4;
      std::vector<float> all;
      for (uint32_t r = 0; r < rows; ++r) {
        const std::vector<float> values = ScoresWithTies(stride, kind, 20 + r % 7);
        all.insert(all.end(), values.begin(), values.end());
      }
      const OnDevice<float> scores(all);
      const OnDevice<uint32_t> candidates(size_t{rows} * kBlocksMax * kBlock), counts(rows);
      const OnDevice<std::byte> room(SelectRoomBytes());
      Launched(LaunchPool({.step = positions.step(),
                           .rows = rows,
                           .scores = scores.data(),
                           .stride = stride,
                           .room = room.data(),
                           .entries_max = count,
                           .block = kBlock,
                           .blocks_max = kBlocksMax,
                           .candidates = candidates.data(),
                           .candidate_counts = counts.data()},
                          nullptr));
      const std::vector<uint32_t> got = candidates.Get(), got_counts = counts.Get();
      for (uint32_t r = 0; r < rows; r += 23) {
        const uint32_t visible = count - rows + r + 1;
        const uint32_t blocks = (visible + kBlock - 1) / kBlock;
        std::vector<float> tops(blocks, INFINITY);
        for (uint32_t b = 0; b + 1 < blocks; ++b) {
          const float* block = &all[r * stride + b * kBlock];
          tops[b] = *std::max_element(block, block + kBlock);
        }
        std::vector<uint32_t> want;
        for (const uint32_t b : BestOf(tops, kBlocksMax)) {
          for (uint32_t i = b * kBlock; i < std::min(visible, (b + 1) * kBlock); ++i)
            want.push_back(i);
        }
        ASSERT_EQ(got_counts[r], want.size());
        ASSERT_TRUE(
            std::equal(want.begin(), want.end(), got.begin() + size_t{r} * kBlocksMax * kBlock))
            << "row " << r;
      }
    }
  }
}

TEST(Selection, PoolsHoldTheBestBlocksAndTheNewest) {
  RP_NEEDS_DEVICE();
  const struct { uint32_t block, blocks_max; } cases[] = {{8, 5}, {8, 2048}, {3, 20}, {1, 64}};
  for (const auto& c : cases) {
    for (const auto& list : AwkwardSteps()) {
      const RandomStep step(list, 0, {}, 18);
      SCOPED_TRACE(std::to_string(step.rows()) + " rows, blocks of " + std::to_string(c.block));
      const uint32_t stride = 1008;
      // A part of the call's rows, as where scores do not fit all at once.
      const uint32_t row = step.rows() / 3, rows = step.rows() - row;
      Prng prng(19);
      Floats scores(size_t{rows} * stride);
      for (float& score : scores) {  // Many ties, and negative ones.
        score = static_cast<float>(static_cast<int>(prng.Below(400)) - 200) / 16;
      }
      const uint32_t of_row = c.block * c.blocks_max;
      const OnDevice<float> device_scores(scores);
      const OnDevice<std::byte> room(SelectRoomBytes());
      const OnDevice<uint32_t> candidates(size_t{step.rows()} * of_row), counts(step.rows());
      Launched(LaunchPool({.step = step.view(),
                           .row = row,
                           .rows = rows,
                           .scores = device_scores.data(),
                           .stride = stride,
                           .room = room.data(),
                           .entries_max = stride,
                           .block = c.block,
                           .blocks_max = c.blocks_max,
                           .candidates = candidates.data(),
                           .candidate_counts = counts.data()},
                          nullptr));
      const std::vector<uint32_t> got = candidates.Get(), got_counts = counts.Get();
      for (uint32_t i = 0; i < rows; ++i) {
        const std::vector<uint32_t> want = reference::Pool(
            RowOf(scores, i, stride).first(step.positions[row + i] + 1), c.block, c.blocks_max);
        ASSERT_EQ(got_counts[row + i], want.size()) << "row " << row + i;
        const auto have = RowOf(got, row + i, of_row);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), have.begin())) << "row " << row + i;
      }
      for (uint32_t i = 0; i < row; ++i) ASSERT_EQ(got_counts[i], 0xffffffff);
    }
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
