#pragma once

#include <cstdint>
#include <vector>

#include "protocol/record/geometry.h"

namespace reprise {

// The header and the token ids are the last kRecordTailBytes of a record, whatever its payload, so
// that a scanner which knows only the record's size can find them (storage/FORMAT.md, "Record").
inline constexpr uint32_t kRecordHeaderBytes = 256;
inline constexpr uint32_t kRecordTokenBytes = kBlockTokens * sizeof(TokenId);
inline constexpr uint32_t kRecordTailBytes = kRecordHeaderBytes + kRecordTokenBytes;

// Record size for a payload: payload, zero padding, tail; whole pages of 4 KiB.
constexpr uint32_t RecordBytesFor(uint32_t payload_bytes) {
  return static_cast<uint32_t>(AlignUp(uint64_t{payload_bytes} + kRecordTailBytes, kPageBytes));
}

// Where a source layer's four planes lie in the payload. Offsets and sizes in bytes; `rows` rows
// each.
struct SourcePlanes {
  uint32_t layer = 0;
  uint32_t rows = 0;
  uint32_t main_codes = 0;      // [rows, main.code_bytes]
  uint32_t main_scales = 0;     // [rows, main.scale_bytes]
  uint32_t indexer_codes = 0;   // [rows, indexer.code_bytes]
  uint32_t indexer_scales = 0;  // [rows, indexer.scale_bytes]
  uint32_t end = 0;             // One past the last byte of this source.
};

// The payload of a block of a model: for each source layer in order, main codes, main scales,
// indexer codes, indexer scales, without gaps. Design section 4.
struct RecordLayout {
  uint32_t payload_bytes = 0;
  uint32_t record_bytes = 0;
  std::vector<SourcePlanes> sources;

  uint32_t bytes_per_token() const { return payload_bytes / kBlockTokens; }
  uint32_t header_offset() const { return record_bytes - kRecordTailBytes; }

  // Refuses a ratio that does not divide a block, unknown formats, and sizes beyond 64 MiB.
  static absl::StatusOr<RecordLayout> For(const KvGeometry& geometry);
};

// V4.1-Flash, by the same arithmetic at compile time: 3 sources of 64 rows and one of 128, each row
// 256 + 32 + 64 + 4 bytes.
inline constexpr uint32_t kV41RowBytes = 512 / 2 + 512 / 16 + 128 / 2 + 128 / 32;
inline constexpr uint32_t kV41PayloadBytes = (3 * kBlockTokens / 2 + kBlockTokens) * kV41RowBytes;
inline constexpr uint32_t kV41RecordBytes = RecordBytesFor(kV41PayloadBytes);
static_assert(kV41RowBytes == 356);
static_assert(kV41PayloadBytes == 113'920);
static_assert(kV41PayloadBytes == 890 * kBlockTokens);
static_assert(kV41RecordBytes == 28 * kPageBytes);
static_assert(kV41RecordBytes == 114'688);

}  // namespace reprise
