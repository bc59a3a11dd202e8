#include <algorithm>
#include <array>

#include "protocol/base/check.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"
#include "tests/fuzz/fuzz_input.h"

// A record whose end is the input: as it comes, then with its checksums put right, so that sizes,
// flags and hashes are reached.
namespace {

using reprise::ConstBytes;
using reprise::Outcome;

void CheckOutcome(Outcome outcome) {
  RP_CHECK(outcome == Outcome::kOk || outcome == Outcome::kCorrupt ||
           outcome == Outcome::kHashMismatch || outcome == Outcome::kInvalid ||
           outcome == Outcome::kUnsupported);
}

void Verify(ConstBytes record) {
  const reprise::RecordHeader header = reprise::LoadRecordHeader(record);
  const reprise::BlockKey key = reprise::KeyOf(header.block_hash);
  const auto record_bytes = static_cast<uint32_t>(record.size());
  const Outcome by_header =
      reprise::VerifyHeader(record.last(reprise::kRecordTailBytes), record_bytes);
  CheckOutcome(by_header);
  const Outcome whole = reprise::VerifyRecord(record, key);
  CheckOutcome(whole);
  if (whole != Outcome::kOk) return;
  RP_CHECK(by_header == Outcome::kOk && reprise::VerifyPayload(record) == Outcome::kOk);
  RP_CHECK(header.record_bytes == record_bytes);
  RP_CHECK(header.payload_bytes <= record_bytes - reprise::kRecordTailBytes);
  RP_CHECK(reprise::VerifyRecord(record, {key.low, ~key.high}) != Outcome::kOk);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint32_t kRecordBytes = reprise::kPageBytes;
  alignas(8) std::array<std::byte, kRecordBytes> record{};
  const reprise::fuzz::Input input(data, size);
  const ConstBytes end = input.rest().first(std::min<size_t>(size, kRecordBytes));
  std::copy(end.begin(), end.end(), record.end() - static_cast<ptrdiff_t>(end.size()));
  Verify(record);

  reprise::RecordHeader header = reprise::LoadRecordHeader(record);
  header.record_bytes = kRecordBytes;
  reprise::SealRecord(record, header);
  Verify(record);

  std::array<reprise::TokenId, reprise::kBlockTokens> tokens;
  std::memcpy(tokens.data(), reprise::RecordTokens(record).data(), sizeof(tokens));
  header.block_hash = reprise::BlockHash(header.parent_hash, tokens);
  reprise::SealRecord(record, header);
  Verify(record);
  return 0;
}
