#include "storage/departed.h"

#include <gtest/gtest.h>

namespace reprise::storage {
namespace {

TEST(DepartedBlocks, RemembersWhyAndNothingElse) {
  DepartedBlocks departed(16);
  const BlockKey key{.low = 3, .high = 77};
  EXPECT_EQ(departed.Why(key), Departure::kUnknown);
  departed.Remember(key, Departure::kEvictedSsd);
  EXPECT_EQ(departed.Why(key), Departure::kEvictedSsd);
  EXPECT_EQ(departed.Why({.low = 3, .high = 78}), Departure::kUnknown);       // The same row.
  EXPECT_EQ(departed.Why({.low = 3 + 16, .high = 77}), Departure::kUnknown);  // The same row.
  departed.Remember(key, Departure::kRemoved);
  EXPECT_EQ(departed.Why(key), Departure::kRemoved);
}

TEST(DepartedBlocks, NewerOverwritesOlderInTheSameRow) {
  for (const uint32_t rows : {1u, 2u, 1000u}) {
    DepartedBlocks departed(rows);
    const BlockKey older{.low = 5, .high = 100};
    const BlockKey newer{.low = 5 + uint64_t{rows}, .high = 200};
    departed.Remember(older, Departure::kEvictedDram);
    departed.Remember(newer, Departure::kIoError);
    EXPECT_EQ(departed.Why(newer), Departure::kIoError) << rows;
    EXPECT_EQ(departed.Why(older), Departure::kUnknown) << rows;
  }
}

}  // namespace
}  // namespace reprise::storage
