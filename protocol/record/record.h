#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/record/record_layout.h"

// The block record: the same bytes in every tier and on the wire. storage/FORMAT.md is the prose
// twin of this header, and tests/golden/record_tail.hex holds a tail.
namespace reprise {

inline constexpr uint64_t kRecordMagic = 0x4b434f4c42525052;  // "RPRBLOCK" in a hexdump.
inline constexpr uint32_t kRecordLayoutVersion = 1;

enum RecordFlag : uint32_t {
  // Computed after a bounded replay, not after an exact window: a policy decides whether an exact
  // computation may replace it.
  kReplayDerived = 1u << 0,
  // The key came from an engine. The token area holds the engine's key bytes, `token_count` of
  // them.
  kOpaqueKey = 1u << 1,
};
inline constexpr uint32_t kRecordFlagsKnown = kReplayDerived | kOpaqueKey;
inline constexpr uint32_t kOpaqueKeyBytesMax = kRecordTokenBytes;

struct RecordHeader {
  uint64_t magic = kRecordMagic;
  uint32_t layout_version = kRecordLayoutVersion;
  uint32_t flags = 0;
  Hash256 name_space;
  Hash256 block_hash;
  Hash256 parent_hash;  // The namespace for block 0 and for opaque keys.
  uint32_t block_index = 0;
  uint32_t payload_bytes = 0;
  uint32_t record_bytes = 0;
  uint32_t token_count = 0;      // 128; for an opaque key its length in bytes.
  int64_t created_ms = 0;        // Unix time. Written down, never compared.
  uint32_t payload_crc = 0;      // CRC32C of everything before the header: payload and padding.
  uint32_t header_crc = 0;       // CRC32C of the header without this field, and of the token area.
  std::byte reserved[112] = {};  // Zero; a reader rejects anything else.
};
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);
static_assert(offsetof(RecordHeader, name_space) == 16);
static_assert(offsetof(RecordHeader, block_hash) == 48);
static_assert(offsetof(RecordHeader, parent_hash) == 80);
static_assert(offsetof(RecordHeader, block_index) == 112);
static_assert(offsetof(RecordHeader, created_ms) == 128);
static_assert(offsetof(RecordHeader, payload_crc) == 136);
static_assert(offsetof(RecordHeader, header_crc) == 140);
static_assert(offsetof(RecordHeader, reserved) == 144);
static_assert(std::is_trivially_copyable_v<RecordHeader>);
static_assert(std::has_unique_object_representations_v<RecordHeader>, "no implicit padding");

// A record in memory, cut into its parts. `record` is whole: record_bytes long.
inline ConstBytes RecordBody(ConstBytes record) {
  return record.first(record.size() - kRecordTailBytes);
}
inline RecordHeader LoadRecordHeader(ConstBytes record) {
  return LoadLe<RecordHeader>(record.data() + record.size() - kRecordTailBytes);
}
inline ConstBytes RecordTokens(ConstBytes record) { return record.last(kRecordTokenBytes); }

// Computes both checksums over `record`, whose payload, padding and token area are final, and
// writes `header` with them into place. record.size() must equal header.record_bytes.
void SealRecord(Bytes record, RecordHeader header);

// Which checks a record passed. Never trips a RP_CHECK whatever the bytes are.
//  - VerifyHeader reads the tail only (768 bytes; `tail` is exactly that long): magic, version,
//  flags,
//    sizes against `record_bytes`, reserved bytes, header checksum, and that token ids and parent
//    give the block hash. kCorrupt for damage, kHashMismatch for the last.
//  - VerifyPayload reads the rest: kOk or kCorrupt.
Outcome VerifyHeader(ConstBytes tail, uint32_t record_bytes);
Outcome VerifyPayload(ConstBytes record);
// Both, and that the record is the one asked for.
Outcome VerifyRecord(ConstBytes record, const BlockKey& expected);

}  // namespace reprise
