#include "tests/sim/corpus.h"

#include <algorithm>
#include <cstring>

#include "protocol/base/check.h"
#include "protocol/identity/block_hash.h"

namespace reprise::sim {
namespace {

constexpr uint32_t kChains = 7;
constexpr uint32_t kDepthMax = 10;

void FillFrom(uint64_t seed, std::string* bytes, size_t count) {
  Prng prng(seed);
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = prng.Next();
    std::memcpy(bytes->data() + at, &word, std::min(sizeof(word), count - at));
  }
}

}  // namespace

Corpus::Corpus(Prng* prng) {
  for (uint32_t i = 0; i < kNamespaces; ++i) {
    manifests_.push_back({.model_config = "sim",
                          .record_layout = std::to_string(kRecordLayoutVersion),
                          .payload_bytes = kPayloadBytes,
                          .tenant_salt = "tenant-" + std::to_string(i)});
    hashes_.push_back(NamespaceOf(manifests_.back()));
  }
  for (uint32_t chain = 0; chain < kChains; ++chain) {
    const auto blocks = static_cast<uint32_t>(1 + prng->Below(kDepthMax));
    std::vector<TokenId> tokens(blocks * kBlockTokens);
    for (TokenId& token : tokens) token = static_cast<TokenId>(prng->Below(50'000));
    if (chain > 0 && prng->Chance(600)) {  // Forks from an earlier one.
      const std::vector<TokenId>& other = tokens_[prng->Below(chain)];
      const size_t shared = std::min(tokens.size(), other.size()) / kBlockTokens;
      std::copy_n(other.begin(), prng->Below(shared + 1) * kBlockTokens, tokens.begin());
    }
    tokens_.push_back(std::move(tokens));
  }
  chains_.resize(kNamespaces);
  for (uint32_t i = 0; i < kNamespaces; ++i) {
    for (uint32_t chain = 0; chain < kChains; ++chain) {
      chains_[i].push_back(PrefixChain(hashes_[i], tokens_[chain]));
      for (uint32_t block = 0; block < chains_[i][chain].size(); ++block) {
        blocks_.try_emplace(KeyOf(chains_[i][chain][block]), BlockRef{i, chain, block});
      }
    }
  }
}

std::vector<BlockKey> Corpus::Keys(uint32_t name_space, uint32_t chain, uint32_t first,
                                   uint32_t count) const {
  std::vector<BlockKey> keys;
  for (uint32_t i = 0; i < count; ++i) keys.push_back(key({name_space, chain, first + i}));
  return keys;
}

const Corpus::BlockRef* Corpus::Find(const BlockKey& key) const {
  const auto found = blocks_.find(key);
  return found == blocks_.end() ? nullptr : &found->second;
}

const std::string& Corpus::Record(const BlockRef& block, uint32_t version) {
  auto [place, added] = records_.try_emplace({key(block), version});
  if (added) place->second = MakeRecord(block, version);
  return place->second;
}

std::string Corpus::MakeRecord(const BlockRef& block, uint32_t version) const {
  const std::vector<Hash256>& chain = chains_[block.name_space][block.chain];
  const Hash256& name_space = hashes_[block.name_space];
  std::string record(kRecordBytes, '\0');
  FillFrom(KeyOf(chain[block.index]).low + version, &record, kPayloadBytes);
  std::memcpy(record.data() + kRecordBytes - kRecordTokenBytes,
              tokens_[block.chain].data() + size_t{block.index} * kBlockTokens, kRecordTokenBytes);
  SealRecord({reinterpret_cast<std::byte*>(record.data()), record.size()},
             {.flags = version % 2 == 1 ? uint32_t{kReplayDerived} : 0,
              .name_space = name_space,
              .block_hash = chain[block.index],
              .parent_hash = block.index == 0 ? name_space : chain[block.index - 1],
              .block_index = block.index,
              .payload_bytes = kPayloadBytes,
              .record_bytes = kRecordBytes,
              .token_count = kBlockTokens,
              .created_ms = 1'700'000'000'000 + version});
  return record;
}

Corpus::WindowRef Corpus::Window(uint32_t name_space, uint32_t chain, uint32_t position) const {
  const Hash256 prefix =
      ExactPrefixHash(hashes_[name_space], chains_[name_space][chain], tokens_[chain], position);
  return {name_space, {.prefix = KeyOf(prefix), .position = position}};
}

// From 1 byte to a little more than three slots.
std::string Corpus::Snapshot(const WindowRef& window, uint32_t version) {
  Prng prng(window.key.prefix.low ^ (window.key.position << 8) ^ version);
  constexpr uint32_t kSizes[] = {1, 4'000, kRecordBytes, kRecordBytes + 1, 3 * kRecordBytes + 500};
  std::string bytes(kSizes[prng.Below(std::size(kSizes))], '\0');
  FillFrom(prng.Next(), &bytes, bytes.size());
  return bytes;
}

}  // namespace reprise::sim
