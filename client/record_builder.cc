#include "client/record_builder.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "protocol/identity/block_hash.h"

namespace reprise {
namespace {

absl::Status CheckSizes(ConstBytes payload, Bytes record) {
  if (record.size() < kRecordTailBytes || record.size() > UINT32_MAX) {
    return InvalidArgument("a record of " + std::to_string(record.size()) + " bytes cannot be");
  }
  if (payload.empty() || payload.size() > record.size() - kRecordTailBytes) {
    return InvalidArgument("a payload of " + std::to_string(payload.size()) +
                           " bytes does not fit a record of " + std::to_string(record.size()) +
                           "; the daemon must be started for this model");
  }
  return absl::OkStatus();
}

// Everything but the checksums, which SealRecord adds.
void Fill(RecordHeader header, ConstBytes payload, ConstBytes token_area, Bytes record) {
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  header.record_bytes = static_cast<uint32_t>(record.size());
  if (payload.data() != record.data()) {
    std::memmove(record.data(), payload.data(), payload.size());
  }
  const Bytes tokens = record.last(kRecordTokenBytes);
  const Bytes padding =
      record.subspan(payload.size(), record.size() - kRecordTailBytes - payload.size());
  std::fill(padding.begin(), padding.end(), std::byte{0});
  std::fill(tokens.begin(), tokens.end(), std::byte{0});
  std::memcpy(tokens.data(), token_area.data(), token_area.size());
  SealRecord(record, header);
}

}  // namespace

absl::StatusOr<Hash256> BuildTokenRecord(const TokenBlock& block, ConstBytes payload,
                                         Bytes record) {
  RP_TRY(CheckSizes(payload, record));
  if (block.tokens.size() != kBlockTokens) {
    return InvalidArgument("a block has 128 tokens, not " + std::to_string(block.tokens.size()));
  }
  if ((block.flags & ~uint32_t{kReplayDerived}) != 0) {
    return InvalidArgument("a token block may carry the flag \"replay derived\" only");
  }
  const RecordHeader header{.flags = block.flags,
                            .name_space = block.name_space,
                            .block_hash = BlockHash(block.parent_hash, block.tokens),
                            .parent_hash = block.parent_hash,
                            .block_index = block.block_index,
                            .token_count = kBlockTokens,
                            .created_ms = block.created_ms};
  Fill(header, payload, std::as_bytes(block.tokens), record);
  return header.block_hash;
}

absl::StatusOr<Hash256> BuildOpaqueRecord(const Hash256& name_space, ConstBytes key,
                                          ConstBytes payload, int64_t created_ms, Bytes record) {
  RP_TRY(CheckSizes(payload, record));
  if (key.empty() || key.size() > kOpaqueKeyBytesMax) {
    return InvalidArgument("an opaque key has 1 to " + std::to_string(kOpaqueKeyBytesMax) +
                           " bytes, not " + std::to_string(key.size()));
  }
  const RecordHeader header{.flags = kOpaqueKey,
                            .name_space = name_space,
                            .block_hash = OpaqueHash(name_space, key),
                            .parent_hash = name_space,
                            .token_count = static_cast<uint32_t>(key.size()),
                            .created_ms = created_ms};
  Fill(header, payload, key, record);
  return header.block_hash;
}

}  // namespace reprise
