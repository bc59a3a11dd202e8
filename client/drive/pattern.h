#pragma once

#include <cstdint>

#include "protocol/base/bytes.h"
#include "protocol/base/types.h"
#include "protocol/record/record_layout.h"

// The bytes that drive stores: a payload follows from its block's hash, so whoever reads it back
// can tell every wrong byte without having kept any.
namespace reprise {

// The seed of a block's payload, by its hash, or of a snapshot, by its prefix.
uint64_t PatternSeed(const BlockKey& key);
// The endless byte sequence that `seed` names, from its start.
void FillPattern(uint64_t seed, Bytes out);
// How many bytes differ from it.
uint64_t CountPatternErrors(uint64_t seed, ConstBytes bytes);

// Which block a record is, and what it must hold.
struct RecordIdentity {
  const Hash256* name_space = nullptr;
  const Hash256* block_hash = nullptr;
  const Hash256* parent_hash = nullptr;
  uint32_t block_index = 0;
  uint32_t payload_bytes = 0;
  const TokenId* tokens = nullptr;  // kBlockTokens of them.
};

// Writes a whole, sealed record. `flags`: of RecordFlag.
void BuildRecord(const RecordIdentity& identity, uint32_t flags, int64_t created_ms, Bytes record);
// How many bytes of the record are wrong: payload, padding, identity in the header, token ids. The
// two checksums in the header are not computed again; everything that they protect is compared.
uint64_t CountRecordErrors(const RecordIdentity& identity, ConstBytes record);

}  // namespace reprise
