// Index scores at V4.1's shape, 32 heads of 128: the matrix units against plain sums, for keys and
// heads whose groups have scales near one another, far apart, or are zero.
#include <cmath>
#include <cstring>
#include <numeric>

#include "gpu/cuda/kernels.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/prng.h"
#include "tests/gpu/cuda/kernel_fixture.h"

namespace reprise::engine::cuda::test {
namespace {

constexpr uint32_t kHeads = 32, kDim = 128, kGroups = kDim / 32, kEntries = 2048, kBlock = 128;
constexpr uint32_t kCodeBytes = kDim / 2, kPayload = kBlock * (kCodeBytes + kGroups);
constexpr uint32_t kFarthest = 40;  // Powers of two.

// How scales of groups are below the largest one. Of 32 neighbours in turn: all near, one that is
// far, all far, and zero groups among near ones.
uint32_t Below(uint32_t which, uint32_t neighbour, Prng* prng) {
  const bool far = which % 4 == 2 || (which % 4 == 1 && neighbour == 7);
  return static_cast<uint32_t>(prng->Below(far ? kFarthest + 1 : 4));
}
bool IsZero(uint32_t which, Prng* prng) { return which % 4 == 3 && prng->Below(5) == 0; }

class ScoresTest : public testing::Test {
 protected:
  void SetUp() override {
    RP_NEEDS_DEVICE();
    Prng prng(41);
    payloads_.resize(size_t{kEntries} / kBlock * kPayload);
    for (uint32_t e = 0; e < kEntries; ++e) {
      for (uint32_t group = 0; group < kGroups; ++group) {
        uint8_t* const codes = Codes(e) + group * 16;
        const bool zero = IsZero(e / 32, &prng);
        for (uint32_t i = 0; i < 16; ++i) {
          // Zeros of both signs.
          codes[i] = static_cast<uint8_t>(prng.Below(256) & (zero ? 0x88 : 0xff));
        }
        *Scale(e, group) = static_cast<uint8_t>(zero ? 1 : 128 - Below(e / 32, e % 32, &prng));
      }
    }
    device_payloads_ = std::make_unique<OnDevice<uint8_t>>(payloads_);
    std::vector<std::byte*> list;
    for (uint32_t b = 0; b < kEntries / kBlock; ++b) {
      list.push_back(reinterpret_cast<std::byte*>(device_payloads_->data() + b * kPayload));
    }
    blocks_ = std::make_unique<OnDevice<std::byte*>>(list);
  }

  uint8_t* Codes(uint32_t entry) {
    return &payloads_[size_t{entry} / kBlock * kPayload + entry % kBlock * kCodeBytes];
  }
  uint8_t* Scale(uint32_t entry, uint32_t group) {
    return &payloads_[size_t{entry} / kBlock * kPayload + kBlock * kCodeBytes +
                      entry % kBlock * kGroups + group];
  }

  // Rows at [first, first + rows) of one sequence; row r is of kind `kind` + r.
  void MakeRows(uint32_t first, uint32_t rows, uint32_t kind) {
    Prng prng(first + rows);
    queries_.clear();
    for (uint32_t head = 0; head < rows * kHeads; ++head) {
      const uint32_t which = kind + head / kHeads;
      for (uint32_t group = 0; group < kGroups; ++group) {
        const float scale = std::ldexp(1.0f, -static_cast<int>(Below(which, head % 32, &prng)));
        const bool zero = IsZero(which, &prng);
        for (uint32_t i = 0; i < 32; ++i) {
          const auto code = static_cast<uint8_t>(prng.Below(16) & (zero ? 8 : 15));
          queries_.push_back(ToBf16(FromE2m1(code) * scale));
        }
      }
    }
    weights_ = RandomBits(rows * kHeads, 1, 6);
    positions_.resize(rows);
    std::iota(positions_.begin(), positions_.end(), first);
    device_queries_ = std::make_unique<OnDevice<uint16_t>>(queries_);
    device_weights_ = std::make_unique<OnDevice<uint16_t>>(weights_);
    device_positions_ = std::make_unique<OnDevice<uint32_t>>(positions_);
    part_of_row_ = std::make_unique<OnDevice<uint32_t>>(std::vector<uint32_t>(rows, 0));
    parts_ = std::make_unique<OnDevice<DevicePart>>(
        std::vector<DevicePart>{{.rows = rows, .first = first}});
    call_ = {.step = {.rows = rows,
                      .parts = 1,
                      .part = parts_->data(),
                      .part_of_row = part_of_row_->data(),
                      .positions = device_positions_->data(),
                      .blocks = blocks_->data()},
             .entries = {.block_shift = 7,
                         .index_codes = 0,
                         .index_scales = kBlock * kCodeBytes,
                         .index_code_bytes = kCodeBytes,
                         .index_scale_bytes = kGroups},
             .ratio = 1,
             .queries = device_queries_->data(),
             .weights = device_weights_->data(),
             .factor = 1.0f / 64,
             .heads = kHeads,
             .dim = kDim,
             .stride = kEntries};
  }
  uint32_t VisibleTo(uint32_t row) const { return positions_[row] + 1; }

  Floats Scores(uint32_t first, uint32_t rows, bool one_part) {
    const OnDevice<float> scores(size_t{rows} * kEntries);
    ScoreCall call = call_;
    call.row = first;
    call.rows = rows;
    call.one_part = one_part;
    call.scores = scores.data();
    Launched(LaunchScores(call, VisibleTo(first + rows - 1), nullptr));
    return scores.Get();
  }
  Floats ScoresBackwards(uint32_t row) {
    std::vector<uint32_t> order(VisibleTo(row));
    std::iota(order.rbegin(), order.rend(), 0);
    const OnDevice<uint32_t> candidates(order);
    const OnDevice<uint32_t> count(std::vector<uint32_t>{VisibleTo(row)});
    const OnDevice<float> scores(kEntries);
    ScoreCall call = call_;
    call.row = row;
    call.rows = 1;
    call.scores = scores.data();
    call.candidates = candidates.data();
    call.candidate_counts = count.data();
    Launched(LaunchScores(call, VisibleTo(row), nullptr));
    return scores.Get();
  }

  struct Score {
    double value = 0, size = 0;  // Size: of the terms, before any of them cancel.
  };
  Score Want(uint32_t row, uint32_t entry) {
    Score want;
    for (uint32_t h = 0; h < kHeads; ++h) {
      double dot = 0, size = 0;
      for (uint32_t group = 0; group < kGroups; ++group) {
        double of_group = 0;
        for (uint32_t d = group * 32; d < (group + 1) * 32; ++d) {
          of_group += double{FromBf16(queries_[(row * kHeads + h) * kDim + d])} *
                      FromE2m1(Codes(entry)[d / 2] >> (d % 2 * 4) & 15);
        }
        of_group *= FromUe8m0(*Scale(entry, group));
        dot += of_group;
        size += std::fabs(of_group);
      }
      const double weight = FromBf16(weights_[row * kHeads + h]) / 64;
      want.value += weight * std::max(dot, 0.0);
      want.size += std::fabs(weight) * size;
    }
    return want;
  }
  void ExpectScores(const Floats& got, uint32_t row, uint32_t step) {
    for (uint32_t e = 0; e < VisibleTo(row); e += step) {
      const Score want = Want(row, e);
      ASSERT_NEAR(got[row * kEntries + e], want.value, want.size * 1e-6)
          << "row " << row << " entry " << e;
    }
    if (VisibleTo(row) < kEntries) {
      EXPECT_TRUE(std::isnan(got[row * kEntries + VisibleTo(row)]));  // Untouched.
    }
  }

  std::vector<uint8_t> payloads_;
  Bits queries_, weights_;
  std::vector<uint32_t> positions_;
  std::unique_ptr<OnDevice<uint8_t>> device_payloads_;
  std::unique_ptr<OnDevice<std::byte*>> blocks_;
  std::unique_ptr<OnDevice<uint16_t>> device_queries_, device_weights_;
  std::unique_ptr<OnDevice<uint32_t>> device_positions_, part_of_row_;
  std::unique_ptr<OnDevice<DevicePart>> parts_;
  ScoreCall call_;
};

struct Rows {
  uint32_t first, rows, kind;
};
constexpr Rows kCalls[] = {{2047, 1, 0}, {2046, 1, 1}, {1957, 1, 2},  {700, 1, 3},
                           {63, 2, 0},   {1000, 3, 1}, {0, 4, 2},     {127, 6, 0},
                           {1990, 8, 0}, {2000, 9, 3}, {1500, 17, 0}, {1900, 64, 1}};

TEST_F(ScoresTest, AreThePlainSums) {
  for (const Rows& c : kCalls) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows at " << c.first << ", kind " << c.kind);
    MakeRows(c.first, c.rows, c.kind);
    const Floats got = Scores(0, c.rows, true);
    for (uint32_t row = 0; row < c.rows; ++row) ExpectScores(got, row, c.rows < 9 ? 3 : 37);
  }
}

TEST_F(ScoresTest, AreTheSameBytesAloneTogetherAndAsCandidates) {
  for (const Rows& c : kCalls) {
    SCOPED_TRACE(testing::Message() << c.rows << " rows at " << c.first << ", kind " << c.kind);
    MakeRows(c.first, c.rows, c.kind);
    const Floats got = Scores(0, c.rows, true), apart = Scores(0, c.rows, false);
    EXPECT_EQ(std::memcmp(got.data(), apart.data(), got.size() * sizeof(float)), 0);
    for (uint32_t row = 0; row < c.rows; row += 1 + row / 4) {
      const FloatSpan together = RowOf(got, row, kEntries).first(VisibleTo(row));
      const Floats alone = Scores(row, 1, false), backwards = ScoresBackwards(row);
      EXPECT_EQ(std::memcmp(alone.data(), together.data(), together.size_bytes()), 0);
      for (uint32_t e = 0; e < together.size(); ++e) {
        ASSERT_EQ(backwards[together.size() - 1 - e], together[e])
            << "row " << row << " entry " << e;
      }
    }
    if (c.rows > 4) {  // Other rows share the block.
      const Floats later = Scores(1, c.rows - 1, true);
      EXPECT_EQ(std::memcmp(later.data(), got.data() + kEntries, later.size() * sizeof(float)), 0);
    }
  }
}

TEST_F(ScoresTest, OfManyKeysAreThoseOfFew) {
  // The same blocks again and again: rings of keys come round several times.
  constexpr uint32_t kTimes = 301;
  std::vector<std::byte*> list;
  for (uint32_t b = 0; b < kTimes * kEntries / kBlock; ++b) {
    list.push_back(reinterpret_cast<std::byte*>(device_payloads_->data() +
                                                b % (kEntries / kBlock) * kPayload));
  }
  const OnDevice<std::byte*> blocks(list);
  const uint32_t count = kTimes * kEntries - 77;
  const OnDevice<uint32_t> position(std::vector<uint32_t>{count - 1});
  for (const uint32_t kind : {0u, 1u, 2u, 3u}) {
    SCOPED_TRACE(testing::Message() << "kind " << kind);
    MakeRows(kEntries - 1, 1, kind);
    const Floats few = Scores(0, 1, false);
    const OnDevice<float> scores(size_t{kTimes} * kEntries);
    call_.step.blocks = blocks.data();
    call_.step.positions = position.data();
    call_.rows = 1;
    call_.scores = scores.data();
    Launched(LaunchScores(call_, count, nullptr));
    const Floats many = scores.Get();
    for (uint32_t e = 0; e < count; ++e) ASSERT_EQ(many[e], few[e % kEntries]) << "entry " << e;
    EXPECT_TRUE(std::isnan(many[count]));  // Untouched.
  }
}

}  // namespace
}  // namespace reprise::engine::cuda::test
