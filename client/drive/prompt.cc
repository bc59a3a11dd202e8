#include "client/drive/prompt.h"

#include <algorithm>

#include "protocol/base/check.h"

namespace reprise {
namespace {

constexpr uint32_t kVocabulary = 129'280;
constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;

// Token ids [first, first + out.size()) of the endless sequence that `seed` names.
void Expand(uint64_t seed, uint64_t first, std::span<TokenId> out) {
  uint64_t state = seed + first * kStep;
  for (TokenId& token : out) {
    const uint64_t mixed = (state ^ (state >> 32)) * 0xbf58476d1ce4e5b9u;
    token = static_cast<TokenId>(((mixed >> 32) * kVocabulary) >> 32);
    state += kStep;
  }
}

}  // namespace

Prompt::Prompt(const TraceRequest& request, uint64_t ordinal)
    : ordinal_(ordinal),
      time_ns_(request.time_ns),
      session_(request.session),
      input_tokens_(request.input_tokens),
      id_tokens_(request.hash_ids.empty() ? 0 : request.block_tokens),
      ids_(request.hash_ids.begin(), request.hash_ids.end()),
      tokens_(request.tokens.begin(), request.tokens.end()) {}

void Prompt::Tokens(uint64_t first, std::span<TokenId> out) const {
  RP_CHECK(first + out.size() <= input_tokens_);
  if (!tokens_.empty()) {
    std::copy_n(tokens_.begin() + static_cast<ptrdiff_t>(first), out.size(), out.begin());
    return;
  }
  while (!out.empty()) {
    const uint64_t index = id_tokens_ == 0 ? 0 : first / id_tokens_;
    if (index >= ids_.size()) {
      Expand(Mix(~ordinal_), first, out);
      return;
    }
    const uint64_t offset = first % id_tokens_;
    const size_t count = std::min<uint64_t>(out.size(), id_tokens_ - offset);
    Expand(Mix(ids_[index] + kStep), offset, out.first(count));
    out = out.subspan(count);
    first += count;
  }
}

uint32_t Prompt::snapshot_position() const {
  const uint32_t end = id_tokens_ == 0 ? input_tokens_ : input_tokens_ / id_tokens_ * id_tokens_;
  return end & ~1u;
}

uint64_t Prompt::BlockFingerprint(uint32_t block_index) const {
  if (id_tokens_ == 0) return 0;
  const uint64_t first = uint64_t{block_index} * kBlockTokens;
  const uint64_t last_id = (first + kBlockTokens - 1) / id_tokens_;
  if (last_id >= ids_.size()) return 0;
  uint64_t fingerprint = Mix(first % id_tokens_ + kStep);
  for (uint64_t i = first / id_tokens_; i <= last_id; ++i) {
    fingerprint = Mix(fingerprint ^ Mix(ids_[i] + kStep));
  }
  return fingerprint | 1;
}

}  // namespace reprise
