#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "gpu/engine/live_window.h"

namespace reprise::engine {

// Decides how many drafts of a step to verify: as many as make the expected tokens per second
// largest, by the drafts' confidences and by the times that steps took. Verifying k drafts costs a
// step of k + 1 rows and yields 1 + c1 + c1 c2 + ... tokens.
class DraftScheduler {
 public:
  static constexpr uint32_t kDraftsMax = LiveWindowLayout::kDraftRowsMax - 1;

  // Seconds that a draft took, and that a step of `rows` rows took.
  void RecordDraft(double seconds);
  void RecordStep(uint32_t rows, double seconds);

  // 0: verify none. `confidences` in order, each given that those before were accepted.
  uint32_t Choose(std::span<const float> confidences) const;
  // Whether drafting pays at all, by the recent steps; tried again now and then when it did not.
  bool WorthDrafting();
  // What came of a step that verified drafts: tokens that it gave.
  void RecordYield(uint32_t tokens);

  // Estimated seconds of a step; the nearest measured one, scaled, for row counts not yet seen.
  double StepSeconds(uint32_t rows) const;

 private:
  std::array<double, kDraftsMax + 2> step_seconds_{};  // By rows; 0: not measured.
  double draft_seconds_ = 0;
  double tokens_per_second_ = 0;  // Of steps with drafts, smoothed.
  uint32_t last_rows_ = 1;
  uint32_t skipped_ = 0;
};

}  // namespace reprise::engine
