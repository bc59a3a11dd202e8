#include "gpu/cuda/shard.h"

namespace reprise::engine::cuda {

absl::Status StepGate::Meet(const absl::Status& own) {
  std::unique_lock lock(mutex_);
  failed_ = failed_ || !own.ok();
  const uint64_t turn = turn_;
  if (++came_ == ranks_) {
    came_ = 0;
    turn_failed_ = failed_;
    failed_ = false;
    ++turn_;
    all_came_.notify_all();
  } else {
    // The next turn cannot end before this thread comes to it: turn_failed_ is this turn's.
    all_came_.wait(lock, [&] { return turn_ != turn; });
  }
  if (!own.ok()) return own;
  return turn_failed_ ? absl::AbortedError("another GPU could not prepare the step")
                      : absl::OkStatus();
}

}  // namespace reprise::engine::cuda
