#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "client/client.h"
#include "protocol/identity/manifest.h"

namespace reprise::test {

// A token sequence of whole blocks, drawn from a seed, and the one right record of each: whatever a
// daemon gives for a key is compared with it byte by byte.
class Chain {
 public:
  Chain(const Manifest& manifest, uint64_t seed, uint32_t blocks);

  uint32_t size() const { return static_cast<uint32_t>(keys_.size()); }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  const std::vector<BlockKey>& keys() const { return keys_; }
  const Manifest& manifest() const { return manifest_; }
  uint32_t record_bytes() const { return RecordBytesFor(manifest_.payload_bytes); }

  // Sealed. `out` is record_bytes() long.
  void WriteRecord(uint32_t index, Bytes out) const;
  std::vector<std::byte> Record(uint32_t index) const;
  bool IsRecord(uint32_t index, ConstBytes bytes) const;

 private:
  Manifest manifest_;
  Hash256 name_space_;
  std::vector<TokenId> tokens_;
  std::vector<Hash256> hashes_;
  std::vector<BlockKey> keys_;
};

Manifest NanoManifest();

// Puts blocks [first, first + count); the outcomes, in their order. Fails the test on an error.
std::vector<Outcome> PutBlocks(Client* client, const Chain& chain, uint32_t first, uint32_t count,
                               wire::Durability durability);
// All of them; true when every block was stored or had been.
bool PutChain(Client* client, const Chain& chain,
              wire::Durability durability = wire::Durability::kRelaxed);

// One block asked for on its own: its outcome. Wrong bytes fail the test.
Outcome GetBlock(Client* client, const Chain& chain, uint32_t index);
// How many of all blocks are held, each with the right bytes.
uint32_t CountHeld(Client* client, const Chain& chain);
// The leading run of the chain in one request, each block compared.
uint32_t GetRun(Client* client, const Chain& chain);

}  // namespace reprise::test
