#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine/snapshot.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::server {

// What the window pool keeps for a session at one position: the windows, and what rides with them:
// the block that the position cuts. Little-endian:
//
//   offset  bytes
//   0       4      magic "RPSS"
//   4       4      version: 1
//   8       4      partial_tokens: tokens of the last block, 0 to 127
//   12      4      partial_bytes: payload_bytes of the model when partial_tokens > 0, else 0
//   16      8      session id, which the next positions of the same session carry on
//   24      4      flags: 1 the partial block derives from an encoder replay
//   28      4      zero
//   32      ...    int32 token ids [partial_tokens]
//           ...    payload of the partial block [partial_bytes]
//           ...    snapshot of the windows (gpu/engine/snapshot.h), which carries a checksum; the
//                  pool checks all of it
struct SessionSnapshot {
  std::span<const TokenId> partial_tokens;
  ConstBytes partial_payload;
  ConstBytes windows;
  uint64_t session_id = 0;
  bool replay_derived = false;
};

std::vector<std::byte> EncodeSessionSnapshot(const SessionSnapshot& snapshot);

// The parts of an encoded one. DataLoss when it is not whole.
struct DecodedSnapshot {
  std::vector<TokenId> partial_tokens;
  ConstBytes partial_payload;  // Into the bytes given.
  ConstBytes windows;
  uint64_t session_id = 0;
  bool replay_derived = false;
};
absl::StatusOr<DecodedSnapshot> DecodeSessionSnapshot(ConstBytes bytes);

}  // namespace reprise::server
