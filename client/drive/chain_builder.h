#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/drive/prompt.h"
#include "protocol/base/types.h"

namespace reprise {

// The prefix chains of prompts in one namespace: what PrefixChain gives for their tokens. Hashes
// are kept, in a table of fixed size, by the parent's hash and what the trace says of the block's
// content, so that driving is not bound by SHA-256.
class ChainBuilder {
 public:
  // `table_entries`: a power of two, of 64 bytes each.
  explicit ChainBuilder(const Hash256& name_space, uint32_t table_entries = 1u << 17);

  // One hash for each whole block. The view ends with the next Build.
  std::span<const Hash256> Build(const Prompt& prompt);
  // The hash of the exact prefix [0, position) of the prompt that was built last. `position` > 0.
  Hash256 PrefixHash(const Prompt& prompt, uint32_t position) const;
  // Of block i of the prompt that was built last: the namespace for block 0.
  const Hash256& Parent(uint32_t block_index) const {
    return block_index == 0 ? name_space_ : chain_[block_index - 1];
  }

  uint64_t hashed_blocks() const { return hashed_blocks_; }  // That the table did not know.

 private:
  struct Entry {
    uint64_t fingerprint = 0;  // 0: empty.
    BlockKey parent;
    Hash256 hash;
  };
  Hash256 HashBlock(const Prompt& prompt, uint32_t block_index);

  const Hash256 name_space_;
  std::vector<Entry> table_;
  std::vector<Hash256> chain_;
  uint64_t hashed_blocks_ = 0;
};

}  // namespace reprise
