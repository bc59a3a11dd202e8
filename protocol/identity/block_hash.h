#pragma once

#include <span>
#include <vector>

#include "protocol/base/types.h"

namespace reprise {

// SHA-256 over the parent's hash (the namespace for block 0) and the token ids as little-endian
// int32. With fewer than 128 tokens it names the exact prefix that ends inside a block, which is
// what window snapshots are keyed by.
Hash256 BlockHash(const Hash256& parent, std::span<const TokenId> tokens);

// SHA-256 over the namespace and the bytes of a key that an engine chose. Such keys live in
// namespaces whose manifest has kind "opaque", so they cannot meet a token block.
Hash256 OpaqueHash(const Hash256& name_space, ConstBytes key);

// The hashes of all whole blocks of `tokens`, in order: element i covers tokens [0, 128 * (i + 1)).
std::vector<Hash256> PrefixChain(const Hash256& name_space, std::span<const TokenId> tokens);

// The hash of the exact prefix tokens[0, position): the last block's hash when `position` is a
// multiple of 128, else the hash of the partial block over it. `chain` is PrefixChain of at least
// those tokens; `position` > 0.
Hash256 ExactPrefixHash(const Hash256& name_space, std::span<const Hash256> chain,
                        std::span<const TokenId> tokens, uint32_t position);

}  // namespace reprise
