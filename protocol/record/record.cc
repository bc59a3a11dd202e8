#include "protocol/record/record.h"

#include <algorithm>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"
#include "protocol/identity/block_hash.h"

namespace reprise {
namespace {

uint32_t HeaderCrc(const RecordHeader& header, ConstBytes token_area) {
  constexpr size_t kCrcOffset = offsetof(RecordHeader, header_crc);
  const ConstBytes bytes = AsBytes(header);
  uint32_t crc = Crc32c(bytes.first(kCrcOffset));
  crc = Crc32c(bytes.subspan(kCrcOffset + sizeof(header.header_crc)), crc);
  return Crc32c(token_area, crc);
}

bool IsZero(ConstBytes bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The hash that the tail's own parent and tokens (or key bytes) give.
Hash256 DerivedHash(const RecordHeader& header, ConstBytes token_area) {
  if ((header.flags & kOpaqueKey) != 0) {
    return OpaqueHash(header.name_space, token_area.first(header.token_count));
  }
  return BlockHash(header.parent_hash,
                   {reinterpret_cast<const TokenId*>(token_area.data()), kBlockTokens});
}

bool SizesAreSane(const RecordHeader& header, uint32_t record_bytes) {
  if (header.record_bytes != record_bytes) return false;
  if (header.payload_bytes == 0 || header.payload_bytes > record_bytes - kRecordTailBytes)
    return false;
  const bool opaque = (header.flags & kOpaqueKey) != 0;
  return opaque ? header.token_count > 0 && header.token_count <= kOpaqueKeyBytesMax
                : header.token_count == kBlockTokens;
}

}  // namespace

void SealRecord(Bytes record, RecordHeader header) {
  RP_CHECK(record.size() == header.record_bytes);
  header.payload_crc = Crc32c(RecordBody(record));
  header.header_crc = HeaderCrc(header, RecordTokens(record));
  StoreLe(record.data() + record.size() - kRecordTailBytes, header);
}

Outcome VerifyHeader(ConstBytes tail, uint32_t record_bytes) {
  RP_CHECK(tail.size() == kRecordTailBytes);
  const auto header = LoadLe<RecordHeader>(tail.data());
  const ConstBytes token_area = tail.subspan(kRecordHeaderBytes);
  if (header.magic != kRecordMagic || header.layout_version != kRecordLayoutVersion ||
      (header.flags & ~kRecordFlagsKnown) != 0 || !SizesAreSane(header, record_bytes) ||
      !IsZero(header.reserved) || header.header_crc != HeaderCrc(header, token_area)) {
    return Outcome::kCorrupt;
  }
  const bool root = header.block_index == 0 || (header.flags & kOpaqueKey) != 0;
  if (root && header.parent_hash != header.name_space) return Outcome::kHashMismatch;
  return DerivedHash(header, token_area) == header.block_hash ? Outcome::kOk
                                                              : Outcome::kHashMismatch;
}

Outcome VerifyPayload(ConstBytes record) {
  return Crc32c(RecordBody(record)) == LoadRecordHeader(record).payload_crc ? Outcome::kOk
                                                                            : Outcome::kCorrupt;
}

Outcome VerifyRecord(ConstBytes record, const BlockKey& expected) {
  if (const Outcome outcome =
          VerifyHeader(record.last(kRecordTailBytes), static_cast<uint32_t>(record.size()));
      outcome != Outcome::kOk) {
    return outcome;
  }
  if (KeyOf(LoadRecordHeader(record).block_hash) != expected) return Outcome::kCorrupt;
  return VerifyPayload(record);
}

}  // namespace reprise
