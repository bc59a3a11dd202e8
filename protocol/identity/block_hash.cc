#include "protocol/identity/block_hash.h"

#include "protocol/base/check.h"
#include "protocol/base/sha256.h"

namespace reprise {

Hash256 BlockHash(const Hash256& parent, std::span<const TokenId> tokens) {
  return Sha256({ConstBytes(parent.bytes), std::as_bytes(tokens)});
}

Hash256 OpaqueHash(const Hash256& name_space, ConstBytes key) {
  return Sha256({ConstBytes(name_space.bytes), key});
}

std::vector<Hash256> PrefixChain(const Hash256& name_space, std::span<const TokenId> tokens) {
  std::vector<Hash256> chain(tokens.size() / kBlockTokens);
  const Hash256* parent = &name_space;
  for (size_t i = 0; i < chain.size(); ++i) {
    chain[i] = BlockHash(*parent, tokens.subspan(i * kBlockTokens, kBlockTokens));
    parent = &chain[i];
  }
  return chain;
}

Hash256 ExactPrefixHash(const Hash256& name_space, std::span<const Hash256> chain,
                        std::span<const TokenId> tokens, uint32_t position) {
  RP_CHECK(position > 0 && position <= tokens.size());
  const uint32_t whole = position / kBlockTokens;
  RP_CHECK(whole <= chain.size());
  const Hash256& parent = whole == 0 ? name_space : chain[whole - 1];
  const uint32_t rest = position % kBlockTokens;
  return rest == 0 ? parent : BlockHash(parent, tokens.subspan(whole * kBlockTokens, rest));
}

}  // namespace reprise
