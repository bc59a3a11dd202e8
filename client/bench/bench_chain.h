#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "client/client.h"

namespace reprise::bench {

// A prefix chain of made-up tokens and its records: all of it follows from the namespace and the
// seed, so a later run finds what an earlier one has stored.
class BenchChain {
 public:
  BenchChain(const Hash256& name_space, uint32_t payload_bytes, uint64_t seed, uint32_t blocks);

  std::span<const BlockKey> keys() const { return keys_; }
  // Writes the whole, sealed record of block `i`.
  void Build(uint32_t i, int64_t created_ms, Bytes record) const;
  // How many of the record's bytes are not what Build wrote.
  uint64_t CountErrors(uint32_t i, ConstBytes record) const;

 private:
  Hash256 name_space_;
  uint32_t payload_bytes_;
  std::vector<TokenId> tokens_;
  std::vector<Hash256> hashes_;
  std::vector<BlockKey> keys_;
};

// The benchmarks' own namespace, with the geometry of the model that the daemon is configured for.
struct BenchNamespace {
  uint32_t id = 0;
  uint32_t payload_bytes = 0;
};
absl::StatusOr<BenchNamespace> OpenBenchNamespace(Client* client);

// Puts the blocks of the chain that the daemon lacks. Returns how many it put.
absl::StatusOr<uint32_t> StoreChain(Client* client, const BenchNamespace& name_space,
                                    const BenchChain& chain, wire::Durability durability,
                                    const Clock& clock);

}  // namespace reprise::bench
