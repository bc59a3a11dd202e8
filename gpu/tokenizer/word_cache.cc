#include "gpu/tokenizer/word_cache.h"

#include <algorithm>
#include <functional>

namespace reprise::engine {

bool WordCache::Append(std::string_view word, std::vector<TokenId>* tokens) {
  if (word.size() > kWordBytesMax) return false;
  const size_t index = std::hash<std::string_view>()(word) % kSlots;
  const std::lock_guard lock(locks_[index % kLocks]);
  const Slot& slot = slots_[index];
  if (std::string_view(slot.word.data(), slot.word_bytes) != word) return false;
  tokens->insert(tokens->end(), slot.tokens.begin(), slot.tokens.begin() + slot.token_count);
  return true;
}

void WordCache::Put(std::string_view word, std::span<const TokenId> tokens) {
  if (word.empty() || word.size() > kWordBytesMax || tokens.size() > kTokensMax) return;
  const size_t index = std::hash<std::string_view>()(word) % kSlots;
  const std::lock_guard lock(locks_[index % kLocks]);
  Slot& slot = slots_[index];
  slot.word_bytes = static_cast<uint8_t>(word.size());
  slot.token_count = static_cast<uint8_t>(tokens.size());
  std::copy(word.begin(), word.end(), slot.word.begin());
  std::copy(tokens.begin(), tokens.end(), slot.tokens.begin());
}

}  // namespace reprise::engine
