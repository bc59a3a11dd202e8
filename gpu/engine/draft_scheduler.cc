#include "gpu/engine/draft_scheduler.h"

#include <algorithm>

namespace reprise::engine {
namespace {

constexpr double kNewWeight = 0.1;         // Of a measurement in a running mean.
constexpr uint32_t kStepsUntilRetry = 64;  // Without drafts, before drafting is tried again.

void Smooth(double value, double* mean) {
  *mean = *mean == 0 ? value : *mean + kNewWeight * (value - *mean);
}

}  // namespace

void DraftScheduler::RecordDraft(double seconds) { Smooth(seconds, &draft_seconds_); }

void DraftScheduler::RecordStep(uint32_t rows, double seconds) {
  if (rows == 0 || rows >= step_seconds_.size()) return;
  Smooth(seconds, &step_seconds_[rows]);
  last_rows_ = rows;
}

void DraftScheduler::RecordYield(uint32_t tokens) {
  Smooth(tokens / (StepSeconds(last_rows_) + draft_seconds_), &tokens_per_second_);
}

double DraftScheduler::StepSeconds(uint32_t rows) const {
  if (rows < step_seconds_.size() && step_seconds_[rows] != 0) return step_seconds_[rows];
  // Between one row's time and that of so many rows run one by one: half of each.
  for (uint32_t distance = 1; distance < step_seconds_.size(); ++distance) {
    for (const uint32_t near : {rows - std::min(rows, distance), rows + distance}) {
      if (near == 0 || near >= step_seconds_.size() || step_seconds_[near] == 0) continue;
      return step_seconds_[near] * (0.5 + 0.5 * rows / near);
    }
  }
  return 1.0 + 0.1 * rows;  // Nothing measured: rows are cheap, steps are not.
}

uint32_t DraftScheduler::Choose(std::span<const float> confidences) const {
  const auto count = static_cast<uint32_t>(std::min<size_t>(confidences.size(), kDraftsMax));
  uint32_t best = 0;
  double expected = 1, survival = 1;
  double best_rate = expected / StepSeconds(1);
  for (uint32_t k = 1; k <= count; ++k) {
    survival *= confidences[k - 1];
    expected += survival;
    const double rate = expected / StepSeconds(k + 1);
    if (rate > best_rate) {
      best_rate = rate;
      best = k;
    }
  }
  return best;
}

bool DraftScheduler::WorthDrafting() {
  const double plain = step_seconds_[1];
  if (plain == 0 || tokens_per_second_ == 0 || tokens_per_second_ > 1 / plain) return true;
  if (++skipped_ < kStepsUntilRetry) return false;
  skipped_ = 0;
  return true;
}

}  // namespace reprise::engine
