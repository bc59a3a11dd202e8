#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "protocol/base/clock.h"
#include "server/namespaces.h"
#include "server/shard.h"

namespace reprise::server {

// The window pool's way from a daemon that stops to the next one on the same data directory: a file
// in shared memory (/dev/shm), which the next start reads and removes. Snapshots keep the rest of
// their TTL. Nothing depends on it: without it, or where it is damaged, windows are replayed.
//
// The file: a header (magic "RPWINDS1", the directory's UUID, the monotonic time), then for each
// snapshot a fixed part and its bytes; a fixed part of zeros ends it.
class WindowHandover {
 public:
  explicit WindowHandover(const std::array<std::byte, 16>& uuid, std::string folder = "/dev/shm");

  // One shard after the other: on its own thread, or while it does not run.
  absl::Status Begin(Instant now);
  absl::Status Append(Shard& shard, const NamespaceTable& namespaces, Instant now);
  absl::Status Finish();  // Until then the next start finds nothing.

  // Puts what the file has into the shards, which must not run. Removes the file. Returns how many.
  uint32_t Take(const std::function<Shard&(const BlockKey& prefix)>& owner,
                NamespaceTable* namespaces, Instant now);

  const std::string& path() const { return path_; }

 private:
  std::array<std::byte, 16> uuid_;
  std::string path_;
  int fd_ = -1;
};

}  // namespace reprise::server
