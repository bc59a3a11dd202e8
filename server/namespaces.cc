#include "server/namespaces.h"

#include <algorithm>

namespace reprise::server {

NamespaceTable::NamespaceTable(Options options)
    : options_(std::move(options)), quota_blocks_(kNamespacesMax) {}

absl::StatusOr<NamespaceTable::Opened> NamespaceTable::Open(const Manifest& manifest) {
  if (manifest.payload_bytes > options_.payload_bytes_max) {
    return InvalidArgument("namespace: a block has " + std::to_string(manifest.payload_bytes) +
                           " payload bytes, but this daemon's records hold " +
                           std::to_string(options_.payload_bytes_max) +
                           "; start a daemon whose `model` or `payload_bytes` fits");
  }
  const Hash256 name_space = NamespaceOf(manifest);
  const std::lock_guard lock(mutex_);
  const BlockKey prefix = KeyOf(name_space);
  const bool full = rows_.size() >= kNamespacesMax;
  const bool known =
      std::any_of(rows_.begin(), rows_.end(), [&](const Row& row) { return row.prefix == prefix; });
  if (full && !known) {
    return ResourceExhausted("namespace: the table of " + std::to_string(kNamespacesMax) +
                             " namespaces is full; restart with a new data directory");
  }
  const uint16_t index = FindOrAdd(prefix);
  Row& row = rows_[index];
  if (!row.manifest.has_value()) {
    row.name_space = name_space;
    row.manifest = manifest;
    quota_blocks_[index].store(QuotaBlocks(manifest), std::memory_order_relaxed);
    if (options_.meta != nullptr) {
      options_.meta->PutNamespace({.name_space = name_space, .manifest = EncodeManifest(manifest)});
    }
  }
  return Opened{index, name_space};
}

uint16_t NamespaceTable::Recovered(const BlockKey& name_space_prefix) {
  const std::lock_guard lock(mutex_);
  // A full table can only come from a damaged directory: its blocks are then accounted to row 0.
  if (rows_.size() >= kNamespacesMax) return 0;
  return FindOrAdd(name_space_prefix);
}

void NamespaceTable::Restore(const storage::NamespaceRow& row) {
  auto manifest = DecodeManifest(row.manifest);
  if (!manifest.ok() || NamespaceOf(*manifest) != row.name_space) return;
  const std::lock_guard lock(mutex_);
  if (rows_.size() >= kNamespacesMax) return;
  const uint16_t index = FindOrAdd(KeyOf(row.name_space));
  rows_[index].name_space = row.name_space;
  rows_[index].manifest = *std::move(manifest);
  quota_blocks_[index].store(QuotaBlocks(*rows_[index].manifest), std::memory_order_relaxed);
}

uint64_t NamespaceTable::QuotaBlocksPerShard(uint16_t index) const {
  return index < kNamespacesMax ? quota_blocks_[index].load(std::memory_order_relaxed) : 0;
}

std::vector<NamespaceTable::Known> NamespaceTable::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<Known> known;
  for (size_t i = 0; i < rows_.size(); ++i) {
    known.push_back({static_cast<uint16_t>(i), rows_[i].name_space, rows_[i].manifest});
  }
  return known;
}

uint32_t NamespaceTable::size() const {
  const std::lock_guard lock(mutex_);
  return static_cast<uint32_t>(rows_.size());
}

uint16_t NamespaceTable::FindOrAdd(const BlockKey& prefix) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].prefix == prefix) return static_cast<uint16_t>(i);
  }
  rows_.push_back({.prefix = prefix});
  return static_cast<uint16_t>(rows_.size() - 1);
}

uint64_t NamespaceTable::QuotaBlocks(const Manifest& manifest) const {
  const auto found = options_.quota_bytes.find(manifest.tenant_salt);
  if (found == options_.quota_bytes.end() || found->second == 0) return 0;
  const uint64_t blocks = found->second / options_.record_bytes / options_.shard_count;
  return std::max<uint64_t>(1, blocks);
}

}  // namespace reprise::server
