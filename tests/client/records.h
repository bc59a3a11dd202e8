#pragma once

#include <cstring>
#include <vector>

#include "protocol/base/prng.h"
#include "protocol/identity/block_hash.h"
#include "protocol/identity/manifest.h"
#include "protocol/record/record.h"

namespace reprise::test {

inline std::vector<TokenId> MakeTokens(uint64_t seed, size_t count) {
  Prng prng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(prng.Below(65'536));
  return tokens;
}

inline std::vector<BlockKey> KeysOf(const Hash256& name_space, std::span<const TokenId> tokens) {
  std::vector<BlockKey> keys;
  for (const Hash256& hash : PrefixChain(name_space, tokens)) keys.push_back(KeyOf(hash));
  return keys;
}

// The sealed record of block `index` of `tokens`, its payload drawn from the block's hash.
inline std::vector<std::byte> MakeRecord(const Manifest& manifest, std::span<const TokenId> tokens,
                                         uint32_t index) {
  const Hash256 name_space = NamespaceOf(manifest);
  const std::vector<Hash256> chain = PrefixChain(name_space, tokens);
  RecordHeader header{.name_space = name_space,
                      .block_hash = chain[index],
                      .parent_hash = index == 0 ? name_space : chain[index - 1],
                      .block_index = index,
                      .payload_bytes = manifest.payload_bytes,
                      .record_bytes = RecordBytesFor(manifest.payload_bytes),
                      .token_count = kBlockTokens,
                      .created_ms = 1'700'000'000'000};
  std::vector<std::byte> record(header.record_bytes);
  Prng prng(KeyOf(header.block_hash).low);
  for (uint32_t i = 0; i + 8 <= header.payload_bytes; i += 8) StoreLe(&record[i], prng.Next());
  std::memcpy(record.data() + record.size() - kRecordTokenBytes, &tokens[index * kBlockTokens],
              kRecordTokenBytes);
  SealRecord(record, header);
  return record;
}

inline Manifest NanoManifest() { return Manifest::For(KvGeometry::Nano()).value(); }

}  // namespace reprise::test
