#include "protocol/base/check.h"
#include "protocol/wire/frame.h"
#include "tests/fuzz/fuzz_input.h"

// A frame header as it comes, then with its checksum put right so that the other checks are
// reached.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using reprise::Outcome;
  namespace wire = reprise::wire;
  reprise::fuzz::Input input(data, size);
  auto header = input.Take<wire::FrameHeader>();
  wire::FrameHeader parsed;
  (void)wire::ParseFrameHeader(reprise::AsBytes(header), &parsed);

  header.header_crc = wire::HeaderCrc(header);
  const Outcome outcome = wire::ParseFrameHeader(reprise::AsBytes(header), &parsed);
  RP_CHECK(outcome == Outcome::kOk || outcome == Outcome::kInvalid ||
           outcome == Outcome::kUnsupported);
  if (outcome != Outcome::kOk) return 0;
  RP_CHECK(parsed.body_bytes <= wire::kBodyBytesMax && parsed.data_bytes <= wire::kDataBytesMax);
  RP_CHECK(parsed.opcode >= 1 && parsed.opcode <= wire::kOpcodeMax);
  RP_CHECK(parsed.outcome < reprise::kOutcomeCount);

  const reprise::ConstBytes body = input.rest();
  if (body.size() == parsed.body_bytes) (void)wire::BodyMatches(parsed, body);
  if (body.size() > wire::kBodyBytesMax) return 0;
  wire::SealFrame(&parsed, body);
  wire::FrameHeader again;
  RP_CHECK(wire::ParseFrameHeader(reprise::AsBytes(parsed), &again) == Outcome::kOk);
  RP_CHECK(again.body_bytes == body.size() && wire::BodyMatches(again, body));
  return 0;
}
