#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::storage {

// Small durable facts, off the data path: regions' contents (the durable index), namespaces,
// quotas, the ledger, and rows of others (sessions). RocksMetaStore in the daemon (a thread of its
// own), MemoryMetaStore in tests and simulation.
//
// The store is a hint: what it says of a region is used only when its sequence equals the one in
// the region itself, so a lost or older store costs a scan, never wrong bytes.
struct RegionRow {
  uint32_t shard = 0;
  uint32_t region = 0;
  uint64_t sequence = 0;
  std::string entries;  // The region's trailer entries, as on disk (format.h, TrailerEntry[]).
};

struct NamespaceRow {
  Hash256 name_space;
  std::string manifest;      // Canonical encoding; empty when only the hash is known.
  uint64_t quota_bytes = 0;  // 0: none.
};

class MetaStore {
 public:
  virtual ~MetaStore() = default;

  // Written soon, in order; never blocks the caller, and may be called from any shard's thread.
  // When the queue is full the write is dropped and counted: the row goes stale, and is rebuilt at
  // the next start.
  virtual void PutRegion(RegionRow row) = 0;
  virtual void DeleteRegion(uint32_t shard, uint32_t region) = 0;
  virtual void PutNamespace(NamespaceRow row) = 0;
  // Adds to the named counters of the ledger.
  virtual void AddLedger(std::vector<std::pair<std::string, uint64_t>> counters) = 0;
  // Rows of whoever names them: `key` begins with a word for its kind ("session/").
  virtual void PutRow(std::string key, std::string value) = 0;
  virtual void DeleteRow(std::string key) = 0;

  // Blocking; called at start, before the shards run.
  virtual absl::StatusOr<std::vector<RegionRow>> LoadRegions(uint32_t shard) = 0;
  virtual absl::StatusOr<std::vector<NamespaceRow>> LoadNamespaces() = 0;
  // Keys that begin with `prefix`, in order, with their values.
  virtual std::vector<std::pair<std::string, std::string>> LoadRows(const std::string& prefix) = 0;
  // Blocking but short; any thread.
  virtual std::vector<std::pair<std::string, uint64_t>> Ledger() = 0;

  // Waits until everything queued is written and synced. Called when the daemon drains.
  virtual void Flush() = 0;
  virtual uint64_t dropped_writes() const = 0;
};

}  // namespace reprise::storage
