#include "server/serving/live_windows.h"

#include <utility>

#include "server/log.h"

namespace reprise::server {

LiveWindows::LiveWindows(engine::Engine* the_engine) : engine_(*the_engine) {
  if (engine_.memory().host()) return;
  host_window_.resize(engine_.window_layout().bytes);
  auto pinned = engine_.memory().Pin(host_window_);
  if (pinned.ok()) {
    pinned_ = *std::move(pinned);
  } else {
    LogWarning("not_pinned", {{"what", "the host's copy of a window"},
                              {"why", pinned.status()},
                              {"action", "its copies are slower"}});
  }
}

absl::StatusOr<std::byte*> LiveWindows::Take() {
  if (free_.empty()) {
    RP_ASSIGN(engine::EngineBuffer window,
              engine_.memory().Allocate(engine_.window_layout().bytes));
    free_.push_back(window.data());
    windows_.push_back(std::move(window));
  }
  std::byte* window = free_.back();
  free_.pop_back();
  return window;
}

absl::Status LiveWindows::CopyTo(std::byte* window, const std::byte* from) {
  const engine::MemoryCopy copy{window, from, engine_.window_layout().bytes};
  return engine_.memory().Copy({&copy, 1});
}

absl::Status LiveWindows::Save(const std::byte* window, const engine::SnapshotInfo& info,
                               Bytes out) {
  if (!engine_.memory().host()) {
    RP_TRY(CopyTo(host_window_.data(), window));
    window = host_window_.data();
  }
  engine::SaveSnapshot(engine_.geometry(), engine_.window_layout(), window, info, out);
  return absl::OkStatus();
}

absl::StatusOr<engine::SnapshotInfo> LiveWindows::Restore(ConstBytes snapshot, std::byte* window) {
  const bool host = engine_.memory().host();
  RP_ASSIGN(const engine::SnapshotInfo info,
            engine::RestoreSnapshot(engine_.geometry(), engine_.window_layout(), snapshot,
                                    host ? window : host_window_.data()));
  if (!host) RP_TRY(CopyTo(window, host_window_.data()));
  return info;
}

}  // namespace reprise::server
