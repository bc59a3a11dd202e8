#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace reprise::economics {

// Gives block ids of a trace small numbers: 0, 1, 2, ... in order of first appearance. Blocks of a
// prompt get numbers in a row, and a number in a row is found without a search. Some 20 bytes a
// block. One thread.
class BlockNumbers {
 public:
  BlockNumbers();

  // The numbers of a request's blocks; valid until the next call. New ids get new numbers.
  std::span<const uint32_t> Of(std::span<const uint64_t> ids);
  uint32_t size() const { return static_cast<uint32_t>(ids_.size()); }
  uint64_t id(uint32_t number) const { return ids_[number]; }

 private:
  uint32_t Find(uint64_t id);
  void Grow();

  std::vector<uint64_t> ids_;    // By number.
  std::vector<uint32_t> table_;  // Open addressing: number + 1; 0 is free.
  std::vector<uint32_t> numbers_;
};

}  // namespace reprise::economics
