#include "tests/integration/chain.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/record/record.h"

namespace reprise::test {
namespace {

uint32_t Open(Client* client, const Chain& chain) {
  const auto id = client->OpenNamespace(chain.manifest());
  EXPECT_TRUE(id.ok()) << Message(id.status());
  return id.ok() ? *id : UINT32_MAX;
}

}  // namespace

Chain::Chain(const Manifest& manifest, uint64_t seed, uint32_t blocks)
    : manifest_(manifest), name_space_(NamespaceOf(manifest)) {
  Prng prng(seed);
  tokens_.resize(uint64_t{blocks} * kBlockTokens);
  for (TokenId& token : tokens_) token = static_cast<TokenId>(prng.Below(129'280));
  hashes_ = PrefixChain(name_space_, tokens_);
  for (const Hash256& hash : hashes_) keys_.push_back(KeyOf(hash));
}

void Chain::WriteRecord(uint32_t index, Bytes out) const {
  const RecordHeader header{.name_space = name_space_,
                            .block_hash = hashes_[index],
                            .parent_hash = index == 0 ? name_space_ : hashes_[index - 1],
                            .block_index = index,
                            .payload_bytes = manifest_.payload_bytes,
                            .record_bytes = record_bytes(),
                            .token_count = kBlockTokens,
                            .created_ms = 1'700'000'000'000};
  std::fill(out.begin(), out.end(), std::byte{0});
  Prng prng(keys_[index].low);
  for (uint32_t at = 0; at + 8 <= header.payload_bytes; at += 8) StoreLe(&out[at], prng.Next());
  std::memcpy(out.last(kRecordTokenBytes).data(), &tokens_[size_t{index} * kBlockTokens],
              kRecordTokenBytes);
  SealRecord(out, header);
}

std::vector<std::byte> Chain::Record(uint32_t index) const {
  std::vector<std::byte> record(record_bytes());
  WriteRecord(index, record);
  return record;
}

bool Chain::IsRecord(uint32_t index, ConstBytes bytes) const {
  const std::vector<std::byte> record = Record(index);
  return bytes.size() == record.size() &&
         std::memcmp(bytes.data(), record.data(), record.size()) == 0;
}

Manifest NanoManifest() { return Manifest::For(KvGeometry::Nano()).value(); }

std::vector<Outcome> PutBlocks(Client* client, const Chain& chain, uint32_t first, uint32_t count,
                               wire::Durability durability) {
  constexpr uint32_t kBatch = 64;
  const uint32_t id = Open(client, chain);
  std::vector<Outcome> outcomes(count, Outcome::kClosed);
  std::vector<std::byte> storage(size_t{kBatch} * chain.record_bytes());
  for (uint32_t done = 0; done < count; done += kBatch) {
    const uint32_t batch = std::min(kBatch, count - done);
    std::vector<ConstBytes> records;
    for (uint32_t i = 0; i < batch; ++i) {
      const Bytes record =
          Bytes(storage).subspan(size_t{i} * chain.record_bytes(), chain.record_bytes());
      chain.WriteRecord(first + done + i, record);
      records.push_back(record);
    }
    const absl::Status status =
        client->Put(id, records, durability, std::span(outcomes).subspan(done, batch));
    EXPECT_TRUE(status.ok()) << Message(status);
    if (!status.ok()) break;
  }
  return outcomes;
}

bool PutChain(Client* client, const Chain& chain, wire::Durability durability) {
  const auto outcomes = PutBlocks(client, chain, 0, chain.size(), durability);
  for (const Outcome outcome : outcomes) {
    if (outcome == Outcome::kOk || outcome == Outcome::kExists) continue;
    ADD_FAILURE() << "a put ended with " << OutcomeName(outcome);
    return false;
  }
  return true;
}

Outcome GetBlock(Client* client, const Chain& chain, uint32_t index) {
  const auto lease = client->Acquire(Open(client, chain), {&chain.keys()[index], 1});
  EXPECT_TRUE(lease.ok()) << Message(lease.status());
  if (!lease.ok()) return Outcome::kClosed;
  if (lease->size() == 0) return lease->stopped_by();
  std::vector<std::byte> record(chain.record_bytes());
  const Outcome copied = lease->CopyTo(0, record);
  EXPECT_EQ(copied, Outcome::kOk) << OutcomeName(copied);
  EXPECT_TRUE(chain.IsRecord(index, record)) << "wrong bytes in block " << index;
  return copied;
}

uint32_t CountHeld(Client* client, const Chain& chain) {
  uint32_t held = 0;
  for (uint32_t i = 0; i < chain.size(); ++i) {
    held += GetBlock(client, chain, i) == Outcome::kOk ? 1 : 0;
  }
  return held;
}

uint32_t GetRun(Client* client, const Chain& chain) {
  const auto lease = client->Acquire(Open(client, chain), chain.keys());
  EXPECT_TRUE(lease.ok()) << Message(lease.status());
  if (!lease.ok()) return 0;
  for (uint32_t i = 0; i < lease->size(); ++i) {
    EXPECT_TRUE(chain.IsRecord(i, lease->record(i))) << "wrong bytes in block " << i;
  }
  return lease->size();
}

}  // namespace reprise::test
