#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "storage/meta_store.h"

namespace reprise::storage {

// A MetaStore in memory, for tests and the simulation: written at once, forgotten with the object.
// Thread-safe.
class MemoryMetaStore final : public MetaStore {
 public:
  void PutRegion(RegionRow row) override {
    const std::lock_guard lock(mutex_);
    const auto key = std::pair(row.shard, row.region);
    regions_[key] = std::move(row);
  }
  void DeleteRegion(uint32_t shard, uint32_t region) override {
    const std::lock_guard lock(mutex_);
    regions_.erase({shard, region});
  }
  void PutNamespace(NamespaceRow row) override {
    const std::lock_guard lock(mutex_);
    const Hash256 key = row.name_space;
    namespaces_[key] = std::move(row);
  }
  void AddLedger(std::vector<std::pair<std::string, uint64_t>> counters) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, value] : counters) ledger_[name] += value;
  }

  void PutRow(std::string key, std::string value) override {
    const std::lock_guard lock(mutex_);
    rows_[std::move(key)] = std::move(value);
  }
  void DeleteRow(std::string key) override {
    const std::lock_guard lock(mutex_);
    rows_.erase(key);
  }

  absl::StatusOr<std::vector<RegionRow>> LoadRegions(uint32_t shard) override {
    const std::lock_guard lock(mutex_);
    std::vector<RegionRow> rows;
    for (const auto& [key, row] : regions_) {
      if (key.first == shard) rows.push_back(row);
    }
    return rows;
  }
  absl::StatusOr<std::vector<NamespaceRow>> LoadNamespaces() override {
    const std::lock_guard lock(mutex_);
    std::vector<NamespaceRow> rows;
    for (const auto& [name_space, row] : namespaces_) rows.push_back(row);
    return rows;
  }
  std::vector<std::pair<std::string, std::string>> LoadRows(const std::string& prefix) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<std::string, std::string>> rows;
    for (auto row = rows_.lower_bound(prefix);
         row != rows_.end() && row->first.compare(0, prefix.size(), prefix) == 0; ++row) {
      rows.push_back(*row);
    }
    return rows;
  }
  std::vector<std::pair<std::string, uint64_t>> Ledger() override {
    const std::lock_guard lock(mutex_);
    return {ledger_.begin(), ledger_.end()};
  }

  void Flush() override {}
  uint64_t dropped_writes() const override { return 0; }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint32_t>, RegionRow> regions_;
  std::map<Hash256, NamespaceRow> namespaces_;
  std::map<std::string, uint64_t> ledger_;
  std::map<std::string, std::string> rows_;
};

}  // namespace reprise::storage
