#pragma once

#include "protocol/base/status.h"
#include "protocol/record/record.h"

namespace reprise {

// What a token block's record says beside its payload.
struct TokenBlock {
  Hash256 name_space;
  Hash256 parent_hash;  // The namespace for block 0.
  uint32_t block_index = 0;
  std::span<const TokenId> tokens;  // 128.
  uint32_t flags = 0;               // kReplayDerived or 0.
  int64_t created_ms = 0;
};

// Writes a whole record: payload, zero padding, header, token area, both checksums. `record` is as
// long as the store's records. The payload may lie where it goes already (a staging slot's first
// bytes), and is then not copied. Returns the block's hash, or what does not fit.
absl::StatusOr<Hash256> BuildTokenRecord(const TokenBlock& block, ConstBytes payload, Bytes record);

// The same for a key that an engine chose: 1 to 512 bytes.
absl::StatusOr<Hash256> BuildOpaqueRecord(const Hash256& name_space, ConstBytes key,
                                          ConstBytes payload, int64_t created_ms, Bytes record);

}  // namespace reprise
