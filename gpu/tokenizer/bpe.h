#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "protocol/base/types.h"

namespace reprise::engine {

// Two neighbouring tokens become one. A list of merges is in order of rank: the first is done
// first.
struct Merge {
  TokenId left = 0;
  TokenId right = 0;
  TokenId result = 0;
};

// Merge of a pair of tokens, by open addressing: at most half full, never removed from.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Entry {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = kNoRank;
    TokenId result = -1;
  };

  // Of two merges of one pair, the later counts.
  explicit MergeTable(const std::vector<Merge>& merges);
  // An entry with kNoRank when the pair does not merge. Ids are not negative.
  const Entry& Find(TokenId left, TokenId right) const;

 private:
  size_t SlotOf(uint64_t pair) const;

  std::vector<Entry> slots_;
  uint32_t shift_ = 0;
};

class WordCache;

// Byte-pair encoding of words. Any thread.
class Bpe {
 public:
  // `byte_tokens`: the token of each byte. `whole_words`: words that are one token whatever the
  // merges say.
  Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<Merge>& merges,
      std::unordered_map<std::string, TokenId> whole_words);
  ~Bpe();

  // Appends the tokens of `word`, which is not empty. O(n log n) of its length.
  void Encode(std::string_view word, std::vector<TokenId>* tokens) const;
  TokenId byte_token(uint8_t byte) const { return byte_tokens_[byte]; }

 private:
  void MergeWord(std::string_view word, std::vector<TokenId>* tokens) const;

  std::array<TokenId, 256> byte_tokens_;
  MergeTable merges_;
  std::unordered_map<std::string, TokenId> whole_words_;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace reprise::engine
