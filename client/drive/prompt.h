#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/trace/trace.h"
#include "protocol/base/types.h"

namespace reprise {

// splitmix64's finaliser: every bit of the result depends on every bit of `x`.
constexpr uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A trace's request that outlives the reader's next call, and the token ids that it stands for. A
// hash id is expanded into its block's token ids by the id alone, so equal ids give equal tokens
// and blocks of 128 follow whatever the trace's own block size is. Tokens that no id covers are the
// request's own: no other request has them.
class Prompt {
 public:
  // `ordinal` tells requests of one run apart.
  Prompt(const TraceRequest& request, uint64_t ordinal);

  uint64_t ordinal() const { return ordinal_; }
  Nanos time_ns() const { return time_ns_; }
  int64_t session() const { return session_; }
  uint32_t input_tokens() const { return input_tokens_; }
  uint32_t block_count() const { return input_tokens_ / kBlockTokens; }

  // Token ids [first, first + out.size()); REQUIRES: within the prompt.
  void Tokens(uint64_t first, std::span<TokenId> out) const;
  // Where this prompt's snapshot is taken: the last even position up to which another prompt can be
  // equal to this one as far as the trace says, which is the end of its last whole trace block. 0:
  // nowhere.
  uint32_t snapshot_position() const;
  // Equal for two blocks of one parent exactly when their tokens are equal; 0: cannot be told.
  uint64_t BlockFingerprint(uint32_t block_index) const;

 private:
  uint64_t ordinal_;
  Nanos time_ns_;
  int64_t session_;
  uint32_t input_tokens_;
  uint32_t id_tokens_;  // Tokens behind an id.
  std::vector<uint64_t> ids_;
  std::vector<TokenId> tokens_;  // The prompt itself, when the trace has it.
};

}  // namespace reprise
