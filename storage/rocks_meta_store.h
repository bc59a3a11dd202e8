#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/meta_store.h"

namespace reprise::storage {

// The MetaStore of the daemon: RocksDB in the directory `meta/`, behind one thread and a bounded
// queue. Thread-safe. storage/FORMAT.md, "meta/", lists the keys.
class RocksMetaStore final : public MetaStore {
 public:
  struct Options {
    std::string path;
    uint32_t queue_writes_max = 65'536;
    uint64_t queue_bytes_max = 64 << 20;  // Of region rows and manifests that wait.
  };

  // Blocks. A missing database is made; one that RocksDB cannot open for damage is moved to
  // `<path>.damaged` (replacing an earlier one) and made anew, since all of it but quotas, the
  // ledger and others' rows can be rebuilt. Fails when the directory is locked, not writable or
  // full.
  static absl::StatusOr<std::unique_ptr<RocksMetaStore>> Open(const Options& options);
  ~RocksMetaStore() override;  // Writes what is queued.

  void PutRegion(RegionRow row) override;
  void DeleteRegion(uint32_t shard, uint32_t region) override;
  void PutNamespace(NamespaceRow row) override;
  void AddLedger(std::vector<std::pair<std::string, uint64_t>> counters) override;
  void PutRow(std::string key, std::string value) override;
  void DeleteRow(std::string key) override;
  // Rows that cannot be read are left out and told in rebuilt_reason().
  absl::StatusOr<std::vector<RegionRow>> LoadRegions(uint32_t shard) override;
  absl::StatusOr<std::vector<NamespaceRow>> LoadNamespaces() override;
  std::vector<std::pair<std::string, std::string>> LoadRows(const std::string& prefix) override;
  std::vector<std::pair<std::string, uint64_t>> Ledger() override;
  void Flush() override;
  uint64_t dropped_writes() const override;

  // The database was made by Open: it was missing, or damaged. The reason is for the start-up log.
  bool rebuilt() const;
  std::string rebuilt_reason() const;

 private:
  class Impl;
  explicit RocksMetaStore(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace reprise::storage
