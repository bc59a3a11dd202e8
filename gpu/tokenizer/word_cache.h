#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

#include "protocol/base/types.h"

namespace reprise::engine {

// The tokens of words that were encoded lately. Bounded: each word has one place, where a newer one
// replaces it; long words have none. Any thread.
class WordCache {
 public:
  WordCache() : slots_(kSlots) {}

  // Appends the tokens of `word` if it is here.
  bool Append(std::string_view word, std::vector<TokenId>* tokens);
  void Put(std::string_view word, std::span<const TokenId> tokens);

 private:
  static constexpr size_t kSlots = 16'384;  // 1 MiB.
  static constexpr size_t kLocks = 64;
  static constexpr size_t kWordBytesMax = 30;
  static constexpr size_t kTokensMax = 8;

  struct alignas(64) Slot {
    std::array<TokenId, kTokensMax> tokens;
    uint8_t word_bytes = 0;  // 0: free.
    uint8_t token_count = 0;
    std::array<char, kWordBytesMax> word;
  };
  static_assert(sizeof(Slot) == 64);

  std::array<std::mutex, kLocks> locks_;  // Each of every kLocks-th slot.
  std::vector<Slot> slots_;
};

}  // namespace reprise::engine
