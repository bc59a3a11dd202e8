#pragma once

#include <functional>
#include <string>
#include <vector>

#include "protocol/identity/manifest.h"
#include "server/api/session_book.h"

namespace reprise::server {

// A session as one file. All numbers little-endian:
//
//   offset  bytes
//   0       8      magic "RPSESS01"
//   8       8      header_bytes
//   16      ...    header: JSON {"manifest": hex of its encoding, "session": ..., "tokens": [ids],
//                  "record_bytes", "payload_bytes", "blocks"}
//           ...    records [blocks][record_bytes], each with its own checksums
//           32     digest: SHA-256 over the digest so far (zero at first) and each part in order:
//           the
//                  first 16 bytes, the header, every record
struct SessionFileHeader {
  Manifest manifest;
  Session session;
  std::vector<TokenId> tokens;
  uint32_t record_bytes = 0;
  uint32_t blocks = 0;
};
inline constexpr uint64_t kSessionFileMagic = 0x3130535345535052;  // "RPSESS01"

std::string EncodeSessionFileHeader(const SessionFileHeader& header);

// Takes a file apart as it arrives, in pieces of any size, with one record in memory at a time.
class SessionFileReader {
 public:
  // Each may refuse; that ends the reading. Records come in order, checked against the header's
  // ids.
  struct Sink {
    std::function<absl::Status(const SessionFileHeader&)> header;
    std::function<absl::Status(uint32_t block, Bytes record)> record;
  };
  explicit SessionFileReader(Sink sink) : sink_(std::move(sink)) {}

  absl::Status Add(ConstBytes bytes);
  // The file ended: DataLoss when it was cut short or its digest is wrong.
  absl::Status Finish();

 private:
  enum class Part { kStart, kHeader, kRecords, kDigest };

  absl::Status Step();  // `piece_` is full.
  absl::Status TakeHeader();
  absl::Status TakeRecord();
  void Expect(Part part, uint64_t bytes);

  Sink sink_;
  Part part_ = Part::kStart;
  std::vector<std::byte> piece_;
  uint64_t wanted_ = 16;
  SessionFileHeader header_;
  Hash256 parent_;
  uint32_t next_block_ = 0;
  Hash256 digest_;  // Chained over the pieces so far.
  bool ended_ = false;
};

// Chains the digest that ends a file: over the digest so far and one part of the file.
Hash256 SessionFileDigest(const Hash256& so_far, ConstBytes part);

}  // namespace reprise::server
