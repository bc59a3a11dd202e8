#include "storage/economics/block_numbers.h"

#include "protocol/base/check.h"

namespace reprise::economics {
namespace {

constexpr size_t kTableMin = 1024;

uint64_t Mix(uint64_t x) {
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93u;
  x ^= x >> 32;
  return x * 0xd6e8feb86659fd93u;
}

}  // namespace

BlockNumbers::BlockNumbers() : table_(kTableMin) {}

std::span<const uint32_t> BlockNumbers::Of(std::span<const uint64_t> ids) {
  numbers_.resize(ids.size());
  uint32_t expected = UINT32_MAX;
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool in_a_row = expected < ids_.size() && ids_[expected] == ids[i];
    numbers_[i] = in_a_row ? expected : Find(ids[i]);
    expected = numbers_[i] + 1;
  }
  return numbers_;
}

uint32_t BlockNumbers::Find(uint64_t id) {
  const size_t mask = table_.size() - 1;
  size_t at = Mix(id) >> 7 & mask;
  for (; table_[at] != 0; at = (at + 1) & mask) {
    if (ids_[table_[at] - 1] == id) return table_[at] - 1;
  }
  RP_CHECK(ids_.size() < UINT32_MAX - 1);
  ids_.push_back(id);
  table_[at] = static_cast<uint32_t>(ids_.size());
  if (ids_.size() * 2 > table_.size()) Grow();
  return static_cast<uint32_t>(ids_.size() - 1);
}

void BlockNumbers::Grow() {
  table_.assign(table_.size() * 2, 0);
  const size_t mask = table_.size() - 1;
  for (uint32_t number = 0; number < ids_.size(); ++number) {
    size_t at = Mix(ids_[number]) >> 7 & mask;
    while (table_[at] != 0) at = (at + 1) & mask;
    table_[at] = number + 1;
  }
}

}  // namespace reprise::economics
