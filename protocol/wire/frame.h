#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

// One frame: a 64-byte header, a message body, then bulk data (whole block records or a snapshot).
// PROTOCOL.md is the prose twin; tests/golden/frame.hex pins the bytes.
namespace reprise::wire {

inline constexpr uint32_t kFrameMagic = 0x31525052;  // "RPR1" in a hexdump.
inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint32_t kBodyBytesMax = 1u << 20;
inline constexpr uint64_t kDataBytesMax = 64_MiB;

// Numbers are for ever. Retired: none.
enum class Opcode : uint8_t {
  kHello = 1,          // Control (protobuf): version, features, what the connection may use.
  kOpenNamespace = 2,  // Control: a manifest in, a namespace id for this connection out.
  kLookup = 3,         // A prefix chain in, one verdict out. Pins nothing.
  kAcquire = 4,        // Keys in, a lease on DRAM slots out (local clients).
  kGet = 5,            // Keys in, records out in the data part of one or more replies.
  kRelease = 6,        // Leases end. One way: no reply.
  kPut = 7,            // Records in, from staging slots or the data part.
  kWindowPut = 8,      // A snapshot in, from staging slots or the data part.
  kWindowAcquire = 9,  // A lease on a snapshot's slots (local clients).
  kWindowGet = 10,     // A snapshot out in the data part.
  kControl = 11,       // Control: status, explain, evict, verify, the HBM pool.
  kFetch = 12,         // Keys in, records written into the client's registered memory (RDMA).
  kWindowFetch = 13,   // A snapshot written there.
  kSlotAcquire = 14,   // Keys in, a lease on slots of the HBM pool out (local engines).
};
inline constexpr uint8_t kOpcodeMax = 14;

enum FrameFlag : uint16_t {
  kReply = 1u << 0,
  kMore = 1u << 1,  // Further replies to the same request follow.
};

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kProtocolVersion;
  uint8_t opcode = 0;
  uint8_t outcome = 0;      // Outcome; kOk in a request.
  uint32_t header_crc = 0;  // HeaderCrc: checked before a length is believed.
  uint32_t body_crc = 0;    // CRC32C over the body. Bulk data carries its own checksums.
  uint64_t request_id =
      0;  // Chosen by the client, rising, echoed by the server; 0 in a one-way message.
  uint32_t body_bytes = 0;   // At most kBodyBytesMax.
  uint32_t deadline_ms = 0;  // Time the client still waits, from arrival; 0 in replies: none.
  uint64_t data_bytes = 0;   // At most kDataBytesMax.
  uint64_t store_id = 0;     // The store's UUID, first half; 0 in Hello. Refuses a stranger.
  uint16_t flags = 0;
  std::byte reserved[14] = {};  // Zero; a reader rejects anything else.
};
static_assert(sizeof(FrameHeader) == 64);
static_assert(offsetof(FrameHeader, header_crc) == 8);
static_assert(offsetof(FrameHeader, request_id) == 16);
static_assert(offsetof(FrameHeader, data_bytes) == 32);
static_assert(offsetof(FrameHeader, flags) == 48);
static_assert(std::has_unique_object_representations_v<FrameHeader>, "no implicit padding");

inline constexpr uint32_t kFrameHeaderBytes = sizeof(FrameHeader);

// CRC32C over all of the header but header_crc itself: bytes [0, 8) and [12, 64), in this order.
uint32_t HeaderCrc(const FrameHeader& header);

// Sets both checksums and the body length.
void SealFrame(FrameHeader* header, ConstBytes body);

// Checks a header on its own: magic, version, checksum, opcode, outcome, lengths, reserved bytes.
// kUnsupported for another version, kInvalid for the rest. `bytes` is exactly 64 bytes.
Outcome ParseFrameHeader(ConstBytes bytes, FrameHeader* header);

// True when the body is the one that the header was sealed with.
bool BodyMatches(const FrameHeader& header, ConstBytes body);

}  // namespace reprise::wire
