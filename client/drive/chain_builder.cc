#include "client/drive/chain_builder.h"

#include <array>
#include <bit>

#include "protocol/base/check.h"
#include "protocol/identity/block_hash.h"

namespace reprise {

ChainBuilder::ChainBuilder(const Hash256& name_space, uint32_t table_entries)
    : name_space_(name_space), table_(table_entries) {
  RP_CHECK(std::has_single_bit(table_entries));
}

std::span<const Hash256> ChainBuilder::Build(const Prompt& prompt) {
  chain_.resize(prompt.block_count());
  for (uint32_t i = 0; i < chain_.size(); ++i) {
    const uint64_t fingerprint = prompt.BlockFingerprint(i);
    if (fingerprint == 0) {
      chain_[i] = HashBlock(prompt, i);
      continue;
    }
    const BlockKey parent = KeyOf(Parent(i));
    Entry& entry = table_[Mix(fingerprint ^ parent.low) & (table_.size() - 1)];
    if (entry.fingerprint != fingerprint || entry.parent != parent) {
      entry = {fingerprint, parent, HashBlock(prompt, i)};
    }
    chain_[i] = entry.hash;
  }
  return chain_;
}

Hash256 ChainBuilder::HashBlock(const Prompt& prompt, uint32_t block_index) {
  std::array<TokenId, kBlockTokens> tokens;
  prompt.Tokens(uint64_t{block_index} * kBlockTokens, tokens);
  ++hashed_blocks_;
  return BlockHash(Parent(block_index), tokens);
}

Hash256 ChainBuilder::PrefixHash(const Prompt& prompt, uint32_t position) const {
  RP_CHECK(position > 0 && position <= prompt.input_tokens());
  const uint32_t whole = position / kBlockTokens;
  const uint32_t rest = position % kBlockTokens;
  if (rest == 0) return Parent(whole);
  std::array<TokenId, kBlockTokens> tokens;
  const auto part = std::span(tokens).first(rest);
  prompt.Tokens(uint64_t{whole} * kBlockTokens, part);
  return BlockHash(Parent(whole), part);
}

}  // namespace reprise
