#include "protocol/wire/frame.h"

#include <algorithm>

#include "protocol/base/check.h"
#include "protocol/base/checksum.h"

namespace reprise::wire {

uint32_t HeaderCrc(const FrameHeader& header) {
  const ConstBytes bytes = AsBytes(header);
  return Crc32c(bytes.subspan(offsetof(FrameHeader, body_crc)),
                Crc32c(bytes.first(offsetof(FrameHeader, header_crc))));
}

void SealFrame(FrameHeader* header, ConstBytes body) {
  RP_CHECK(body.size() <= kBodyBytesMax);
  header->body_bytes = static_cast<uint32_t>(body.size());
  header->body_crc = Crc32c(body);
  header->header_crc = HeaderCrc(*header);
}

Outcome ParseFrameHeader(ConstBytes bytes, FrameHeader* header) {
  RP_CHECK(bytes.size() == kFrameHeaderBytes);
  *header = LoadLe<FrameHeader>(bytes.data());
  if (header->magic != kFrameMagic) return Outcome::kInvalid;
  if (header->version != kProtocolVersion) return Outcome::kUnsupported;
  if (header->header_crc != HeaderCrc(*header)) return Outcome::kInvalid;
  const bool reserved_zero = std::all_of(std::begin(header->reserved), std::end(header->reserved),
                                         [](std::byte b) { return b == std::byte{0}; });
  if (header->opcode == 0 || header->opcode > kOpcodeMax || header->outcome >= kOutcomeCount ||
      header->body_bytes > kBodyBytesMax || header->data_bytes > kDataBytesMax || !reserved_zero) {
    return Outcome::kInvalid;
  }
  return Outcome::kOk;
}

bool BodyMatches(const FrameHeader& header, ConstBytes body) {
  return body.size() == header.body_bytes && Crc32c(body) == header.body_crc;
}

}  // namespace reprise::wire
