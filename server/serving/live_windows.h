#pragma once

#include <cstdint>
#include <vector>

#include "gpu/engine/engine.h"
#include "gpu/engine/snapshot.h"

namespace reprise::server {

// Live windows of sequences, kept for reuse, and snapshots of them. The engine's thread.
class LiveWindows {
 public:
  explicit LiveWindows(engine::Engine* the_engine);
  LiveWindows(const LiveWindows&) = delete;
  LiveWindows& operator=(const LiveWindows&) = delete;

  // Content unspecified. RESOURCE_EXHAUSTED when the engine's memory is full.
  absl::StatusOr<std::byte*> Take();
  void Return(std::byte* window) { free_.push_back(window); }

  absl::Status CopyTo(std::byte* window, const std::byte* from);
  // As engine::SaveSnapshot and engine::RestoreSnapshot. An error of the engine's is none of the
  // snapshot's: DATA_LOSS is.
  absl::Status Save(const std::byte* window, const engine::SnapshotInfo& info, Bytes out);
  absl::StatusOr<engine::SnapshotInfo> Restore(ConstBytes snapshot, std::byte* window);

 private:
  engine::Engine& engine_;
  std::vector<engine::EngineBuffer> windows_;
  std::vector<std::byte*> free_;
  // Where snapshots are taken and restored when windows are not in host memory.
  std::vector<std::byte> host_window_;
  engine::EngineBuffer pinned_;  // After what it pins: it ends first.
};

}  // namespace reprise::server
