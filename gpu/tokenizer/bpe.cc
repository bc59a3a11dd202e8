#include "gpu/tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <queue>
#include <span>

#include "gpu/tokenizer/word_cache.h"

namespace reprise::engine {
namespace {

uint64_t PairOf(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// The tokens of a word while it is merged: a list through `previous` and `next`.
struct Symbol {
  static constexpr uint32_t kEnd = UINT32_MAX;
  TokenId token;  // -1: merged into the one before.
  uint32_t previous;
  uint32_t next;
};

// Merges that may be done, lowest rank first, then leftmost: rank above position in one number.
using Queue = std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>>;

}  // namespace

MergeTable::MergeTable(const std::vector<Merge>& merges) {
  const size_t slot_count = std::bit_ceil(std::max<size_t>(2, 2 * merges.size()));
  shift_ = 64 - static_cast<uint32_t>(std::countr_zero(slot_count));
  slots_.resize(slot_count);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const uint64_t pair = PairOf(merge.left, merge.right);
    slots_[SlotOf(pair)] = {pair, static_cast<uint32_t>(rank), merge.result};
  }
}

size_t MergeTable::SlotOf(uint64_t pair) const {
  // Fibonacci hashing; ids below 2^31 never make the pair that marks a free slot.
  size_t slot = pair * 0x9E3779B97F4A7C15u >> shift_;
  while (slots_[slot].rank != kNoRank && slots_[slot].pair != pair) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

const MergeTable::Entry& MergeTable::Find(TokenId left, TokenId right) const {
  return slots_[SlotOf(PairOf(left, right))];
}

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<Merge>& merges,
         std::unordered_map<std::string, TokenId> whole_words)
    : byte_tokens_(byte_tokens),
      merges_(merges),
      whole_words_(std::move(whole_words)),
      cache_(std::make_unique<WordCache>()) {}

Bpe::~Bpe() = default;

void Bpe::Encode(std::string_view word, std::vector<TokenId>* tokens) const {
  if (word.size() == 1) {
    tokens->push_back(byte_token(static_cast<uint8_t>(word.front())));
    return;
  }
  if (cache_->Append(word, tokens)) return;
  const size_t before = tokens->size();
  const auto whole =
      whole_words_.empty() ? whole_words_.end() : whole_words_.find(std::string(word));
  if (whole != whole_words_.end()) {
    tokens->push_back(whole->second);
  } else {
    MergeWord(word, tokens);
  }
  cache_->Put(word, std::span<const TokenId>(*tokens).subspan(before));
}

void Bpe::MergeWord(std::string_view word, std::vector<TokenId>* tokens) const {
  if (word.size() >= Symbol::kEnd) {  // No room to number its bytes.
    for (const char byte : word) tokens->push_back(byte_token(static_cast<uint8_t>(byte)));
    return;
  }
  std::vector<Symbol> symbols(word.size());
  std::vector<uint64_t> possible;
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    symbols[i] = {byte_token(static_cast<uint8_t>(word[i])), i - 1, i + 1};
  }
  symbols.front().previous = Symbol::kEnd;
  symbols.back().next = Symbol::kEnd;
  const auto consider = [&](uint32_t left, auto&& push) {
    if (left == Symbol::kEnd || symbols[left].next == Symbol::kEnd) return;
    const auto& merge = merges_.Find(symbols[left].token, symbols[symbols[left].next].token);
    if (merge.rank != MergeTable::kNoRank) push(uint64_t{merge.rank} << 32 | left);
  };
  for (uint32_t i = 0; i < symbols.size(); ++i) {
    consider(i, [&](uint64_t entry) { possible.push_back(entry); });
  }
  Queue queue(std::greater<>(), std::move(possible));
  while (!queue.empty()) {
    const auto rank = static_cast<uint32_t>(queue.top() >> 32);
    const auto at = static_cast<uint32_t>(queue.top());
    queue.pop();
    Symbol& left = symbols[at];
    if (left.token < 0 || left.next == Symbol::kEnd) continue;
    Symbol& right = symbols[left.next];
    const MergeTable::Entry& merge = merges_.Find(left.token, right.token);
    if (merge.rank != rank) continue;  // One of the two has been merged since.
    left.token = merge.result;
    left.next = right.next;
    right.token = -1;
    if (left.next != Symbol::kEnd) symbols[left.next].previous = at;
    consider(at, [&](uint64_t entry) { queue.push(entry); });
    consider(left.previous, [&](uint64_t entry) { queue.push(entry); });
  }
  for (uint32_t i = 0; i != Symbol::kEnd; i = symbols[i].next) tokens->push_back(symbols[i].token);
}

}  // namespace reprise::engine
