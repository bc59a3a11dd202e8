#include "client/bench/bench_chain.h"

#include <algorithm>

#include "client/drive/pattern.h"
#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"

namespace reprise::bench {
namespace {

constexpr uint32_t kPutRecords = 64;
constexpr uint32_t kVocabulary = 100'000;

}  // namespace

BenchChain::BenchChain(const Hash256& name_space, uint32_t payload_bytes, uint64_t seed,
                       uint32_t blocks)
    : name_space_(name_space),
      payload_bytes_(payload_bytes),
      tokens_(size_t{blocks} * kBlockTokens) {
  Prng prng(seed);
  for (TokenId& token : tokens_) token = static_cast<TokenId>(prng.Below(kVocabulary));
  hashes_ = PrefixChain(name_space, tokens_);
  keys_.reserve(hashes_.size());
  for (const Hash256& hash : hashes_) keys_.push_back(KeyOf(hash));
}

namespace {

RecordIdentity IdentityOf(const Hash256& name_space, std::span<const Hash256> hashes,
                          std::span<const TokenId> tokens, uint32_t payload_bytes, uint32_t i) {
  return {.name_space = &name_space,
          .block_hash = &hashes[i],
          .parent_hash = i == 0 ? &name_space : &hashes[i - 1],
          .block_index = i,
          .payload_bytes = payload_bytes,
          .tokens = tokens.data() + size_t{i} * kBlockTokens};
}

}  // namespace

void BenchChain::Build(uint32_t i, int64_t created_ms, Bytes record) const {
  BuildRecord(IdentityOf(name_space_, hashes_, tokens_, payload_bytes_, i), 0, created_ms, record);
}

uint64_t BenchChain::CountErrors(uint32_t i, ConstBytes record) const {
  return CountRecordErrors(IdentityOf(name_space_, hashes_, tokens_, payload_bytes_, i), record);
}

absl::StatusOr<BenchNamespace> OpenBenchNamespace(Client* client) {
  RP_ASSIGN(const KvGeometry geometry, KvGeometry::Preset(client->model()));
  RP_ASSIGN(Manifest manifest, Manifest::For(geometry));
  manifest.tenant_salt = "reprise bench";
  RP_ASSIGN(const uint32_t id, client->OpenNamespace(manifest));
  return BenchNamespace{.id = id, .payload_bytes = manifest.payload_bytes};
}

absl::StatusOr<uint32_t> StoreChain(Client* client, const BenchNamespace& name_space,
                                    const BenchChain& chain, wire::Durability durability,
                                    const Clock& clock) {
  const auto size = static_cast<uint32_t>(chain.keys().size());
  RP_ASSIGN(const Verdict verdict, client->Lookup(name_space.id, chain.keys()));
  const uint32_t staged = std::min(client->staging_slots(), kPutRecords);
  std::vector<std::byte> own(staged == 0 ? size_t{kPutRecords} * client->record_bytes() : 0);
  const uint32_t batch_max = staged == 0 ? kPutRecords : staged;
  uint32_t stored = 0;
  for (uint32_t first = verdict.hit_blocks; first < size; first += batch_max) {
    const uint32_t count = std::min(batch_max, size - first);
    std::vector<ConstBytes> records;
    for (uint32_t i = 0; i < count; ++i) {
      const Bytes record = staged > 0 ? client->staging(i).first(client->record_bytes())
                                      : Bytes(own).subspan(size_t{i} * client->record_bytes(),
                                                           client->record_bytes());
      chain.Build(first + i, clock.WallMillis(), record);
      records.push_back(record);
    }
    std::vector<Outcome> outcomes(count);
    RP_TRY(client->Put(name_space.id, records, durability, outcomes));
    for (const Outcome outcome : outcomes) {
      if (outcome == Outcome::kExists) continue;
      if (outcome != Outcome::kOk) {
        return ResourceExhausted(
            "the daemon did not store a record: " + std::string(OutcomeName(outcome)) +
            "; give its tiers room for the working set, or ask for less");
      }
      ++stored;
    }
  }
  return stored;
}

}  // namespace reprise::bench
