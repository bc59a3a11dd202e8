#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "protocol/base/prng.h"
#include "protocol/identity/manifest.h"
#include "protocol/record/record.h"
#include "protocol/wire/messages.h"

namespace reprise::sim {

// Everything that clients store: prefix chains that fork from each other, the same tokens in both
// namespaces, and for every block and window a few versions of its bytes. All of it follows from
// the seed, so the bytes that may come back are known without remembering any.
class Corpus {
 public:
  static constexpr uint32_t kNamespaces = 2;
  static constexpr uint32_t kPayloadBytes = 4'000;
  static constexpr uint32_t kRecordBytes = RecordBytesFor(kPayloadBytes);
  static_assert(kRecordBytes == 8'192);
  // Versions of a block: odd ones are replay-derived.
  static constexpr uint32_t kVersions = 4;

  struct BlockRef {
    uint32_t name_space = 0;
    uint32_t chain = 0;
    uint32_t index = 0;
  };
  struct WindowRef {
    uint32_t name_space = 0;
    wire::WindowKey key;
  };

  explicit Corpus(Prng* prng);

  const Manifest& manifest(uint32_t name_space) const { return manifests_[name_space]; }
  const Hash256& name_space_hash(uint32_t name_space) const { return hashes_[name_space]; }
  uint32_t chain_count() const { return static_cast<uint32_t>(tokens_.size()); }
  uint32_t depth(uint32_t chain) const {
    return static_cast<uint32_t>(tokens_[chain].size() / kBlockTokens);
  }
  const std::vector<TokenId>& tokens(uint32_t chain) const { return tokens_[chain]; }
  BlockKey key(const BlockRef& block) const {
    return KeyOf(chains_[block.name_space][block.chain][block.index]);
  }
  // The keys of [first, first + count) of a chain.
  std::vector<BlockKey> Keys(uint32_t name_space, uint32_t chain, uint32_t first,
                             uint32_t count) const;
  // The block that a key names; null when no block of either namespace has it.
  const BlockRef* Find(const BlockKey& key) const;
  const std::map<BlockKey, BlockRef>& blocks() const { return blocks_; }

  // The record of one version of a block: made once, then remembered.
  const std::string& Record(const BlockRef& block, uint32_t version);

  // The window at `position` tokens of a chain.
  WindowRef Window(uint32_t name_space, uint32_t chain, uint32_t position) const;
  static std::string Snapshot(const WindowRef& window, uint32_t version);

 private:
  std::string MakeRecord(const BlockRef& block, uint32_t version) const;

  std::vector<Manifest> manifests_;
  std::vector<Hash256> hashes_;
  std::vector<std::vector<TokenId>> tokens_;               // By chain.
  std::vector<std::vector<std::vector<Hash256>>> chains_;  // By namespace and chain.
  std::map<BlockKey, BlockRef> blocks_;                    // A shared prefix: its first chain.
  std::map<std::pair<BlockKey, uint32_t>, std::string> records_;  // By key and version.
};

}  // namespace reprise::sim
