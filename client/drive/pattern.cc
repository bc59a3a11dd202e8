#include "client/drive/pattern.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/drive/prompt.h"
#include "protocol/base/check.h"
#include "protocol/record/record.h"

namespace reprise {
namespace {

constexpr uint64_t kLaneStep = 0x9e3779b97f4a7c15u;
constexpr size_t kLanes = 8;
constexpr size_t kStride = kLanes * sizeof(uint64_t);

// The words of the sequence, eight at a time: additions, shifts and exclusive ors only, which every
// vector unit has.
class PatternWords {
 public:
  explicit PatternWords(uint64_t seed) {
    const uint64_t start = Mix(seed);
    for (size_t lane = 0; lane < kLanes; ++lane) state_[lane] = start + lane * kLaneStep;
  }
  void Next(uint64_t* words) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      words[lane] = state_[lane] ^ (state_[lane] >> 29);
      state_[lane] += kLanes * kLaneStep;
    }
  }

 private:
  std::array<uint64_t, kLanes> state_;
};

uint64_t CountDifferent(ConstBytes a, const void* b) {
  const auto* const other = static_cast<const std::byte*>(b);
  uint64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != other[i] ? 1 : 0;
  return count;
}

uint64_t CountNonZero(ConstBytes bytes) {
  return static_cast<uint64_t>(
      std::count_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{0}; }));
}

}  // namespace

uint64_t PatternSeed(const BlockKey& key) { return Mix(key.low ^ Mix(key.high)); }

void FillPattern(uint64_t seed, Bytes out) {
  PatternWords pattern(seed);
  std::array<uint64_t, kLanes> words;
  size_t at = 0;
  for (; at + kStride <= out.size(); at += kStride) {
    pattern.Next(words.data());
    std::memcpy(out.data() + at, words.data(), kStride);
  }
  pattern.Next(words.data());
  if (at < out.size()) std::memcpy(out.data() + at, words.data(), out.size() - at);
}

uint64_t CountPatternErrors(uint64_t seed, ConstBytes bytes) {
  PatternWords pattern(seed);
  std::array<uint64_t, kLanes> want, got;
  uint64_t errors = 0;
  size_t at = 0;
  for (; at + kStride <= bytes.size(); at += kStride) {
    pattern.Next(want.data());
    std::memcpy(got.data(), bytes.data() + at, kStride);
    uint64_t difference = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) difference |= want[lane] ^ got[lane];
    if (difference != 0) errors += CountDifferent(bytes.subspan(at, kStride), want.data());
  }
  pattern.Next(want.data());
  return errors + CountDifferent(bytes.subspan(at), want.data());
}

void BuildRecord(const RecordIdentity& identity, uint32_t flags, int64_t created_ms, Bytes record) {
  RP_CHECK(record.size() == RecordBytesFor(identity.payload_bytes));
  FillPattern(PatternSeed(KeyOf(*identity.block_hash)), record.first(identity.payload_bytes));
  const size_t tail = record.size() - kRecordTailBytes;
  std::memset(record.data() + identity.payload_bytes, 0, tail - identity.payload_bytes);
  std::memcpy(record.data() + record.size() - kRecordTokenBytes, identity.tokens,
              kRecordTokenBytes);
  RecordHeader header;
  header.flags = flags;
  header.name_space = *identity.name_space;
  header.block_hash = *identity.block_hash;
  header.parent_hash = *identity.parent_hash;
  header.block_index = identity.block_index;
  header.payload_bytes = identity.payload_bytes;
  header.record_bytes = static_cast<uint32_t>(record.size());
  header.token_count = kBlockTokens;
  header.created_ms = created_ms;
  SealRecord(record, header);
}

uint64_t CountRecordErrors(const RecordIdentity& identity, ConstBytes record) {
  if (record.size() != RecordBytesFor(identity.payload_bytes)) return record.size();
  uint64_t errors = CountPatternErrors(PatternSeed(KeyOf(*identity.block_hash)),
                                       record.first(identity.payload_bytes));
  errors += CountNonZero(RecordBody(record).subspan(identity.payload_bytes));
  errors += CountDifferent(RecordTokens(record), identity.tokens);
  // What drive did not choose, or what was chosen when another request stored the block, is taken
  // over.
  const RecordHeader got = LoadRecordHeader(record);
  RecordHeader want;
  want.flags = got.flags & kReplayDerived;
  want.name_space = *identity.name_space;
  want.block_hash = *identity.block_hash;
  want.parent_hash = *identity.parent_hash;
  want.block_index = identity.block_index;
  want.payload_bytes = identity.payload_bytes;
  want.record_bytes = static_cast<uint32_t>(record.size());
  want.token_count = kBlockTokens;
  want.created_ms = got.created_ms;
  want.payload_crc = got.payload_crc;
  want.header_crc = got.header_crc;
  return errors + CountDifferent(AsBytes(got), &want);
}

}  // namespace reprise
