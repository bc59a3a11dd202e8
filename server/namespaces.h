#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"
#include "protocol/identity/manifest.h"
#include "storage/meta_store.h"

namespace reprise::server {

// The namespaces that this daemon knows, by a small index that never changes while it runs. Opening
// one is rare, so a mutex guards it; the data path carries the index.
class NamespaceTable {
 public:
  struct Options {
    uint32_t payload_bytes_max = 0;
    uint32_t record_bytes = 0;
    uint32_t shard_count = 1;
    std::map<std::string, uint64_t> quota_bytes;  // By tenant salt.
    storage::MetaStore* meta = nullptr;           // May be null.
  };

  explicit NamespaceTable(Options options);

  struct Opened {
    uint16_t index = 0;
    Hash256 name_space;
  };
  // Registers the manifest, or finds it. Refuses a payload that this daemon's records cannot hold.
  absl::StatusOr<Opened> Open(const Manifest& manifest);
  // For recovery: the index of a namespace of which only the hash prefix is known; a new row when
  // it is not known yet, completed when somebody opens it.
  uint16_t Recovered(const BlockKey& name_space_prefix);
  // A row of the MetaStore.
  void Restore(const storage::NamespaceRow& row);

  // Blocks that one shard may hold of a namespace; 0: no quota. Cheap and lock-free.
  uint64_t QuotaBlocksPerShard(uint16_t index) const;

  struct Known {
    uint16_t index = 0;
    Hash256 name_space;
    std::optional<Manifest> manifest;
  };
  std::vector<Known> List() const;
  uint32_t size() const;

 private:
  static constexpr uint32_t kNamespacesMax = 4096;

  struct Row {
    BlockKey prefix;
    Hash256 name_space;  // Zero until opened, when only the prefix was recovered.
    std::optional<Manifest> manifest;
  };

  uint16_t FindOrAdd(const BlockKey& prefix);
  uint64_t QuotaBlocks(const Manifest& manifest) const;

  Options options_;
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::vector<std::atomic<uint64_t>> quota_blocks_;  // Fixed size, so that it may be read unlocked.
};

}  // namespace reprise::server
