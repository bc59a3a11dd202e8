#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gpu/engine/generation.h"
#include "gpu/engine/sequence.h"
#include "protocol/base/clock.h"

namespace reprise::engine {

// One sequence's share of a batch: what is left of its prompt is run, then tokens are generated.
// Advanced by BatchRunner. One thread.
class Turn {
 public:
  enum class Phase : uint8_t { kPrefill, kGenerate, kDone };

  Turn(Sequence sequence, const GenerateOptions& options, GiveToken give);
  Turn(const Turn&) = delete;  // The generation points into it.
  Turn& operator=(const Turn&) = delete;

  // The tokens after those that the sequence holds, at least one.
  absl::Status Begin(std::span<const TokenId> rest, PrefillMode mode);
  // Generates from where the prefill of `other` ended: `sequence` is a copy of other's from then,
  // with memory of its own. REQUIRES: `other` was told to KeepPromptLogits.
  void BeginAfter(const Turn& other);
  void KeepPromptLogits() { keep_logits_ = true; }
  // Rows of the prompt before and after this position are not run in one step: so the caller finds
  // the windows there. Only while the position is ahead.
  void StopAt(uint32_t position) { stop_at_ = position; }

  Phase phase() const { return phase_; }
  const Sequence& sequence() const { return sequence_; }
  Sequence& sequence() { return sequence_; }
  const GenerateReport& report() const { return generation_.report(); }
  // Rows of this turn that were run in the prompt's part.
  uint64_t prefill_rows() const { return prefill_rows_; }

 private:
  friend class BatchRunner;

  uint32_t RowsWanted() const;  // Of the next step, at most.
  bool wants_logits() const;    // Beside the tokens, of rows that give them.
  absl::Status EndStep(std::span<const LogitRow> rows);

  Sequence sequence_;
  Generation generation_;
  Phase phase_ = Phase::kPrefill;
  uint32_t stop_at_ = 0;
  uint64_t prefill_rows_ = 0;
  bool keep_logits_ = false;
  std::vector<float> prompt_logits_;  // Of the prompt's last row.
};

// Runs turns of several sequences together: in each step one Forward over rows of all of them, and
// before it one Draft for those that generate. What a turn computes does not depend on the others.
//
// Fair: turns that generate have their rows in every step; the rest of the step is shared equally
// by the turns in their prompts, at most `prefill_rows_beside` of it while others generate, so that
// a long prompt does not stop them.
class BatchRunner {
 public:
  struct Options {
    uint32_t prefill_rows_beside = 256;
  };
  BatchRunner(Engine* engine, const Clock* clock, const Options& options);

  struct StepReport {
    uint32_t prefill_rows = 0;
    uint32_t generate_rows = 0;
    uint32_t turns = 0;
    double forward_seconds = 0;
    double draft_seconds = 0;
  };
  // One step of the turns that are not done. After an error, all of them must be given up.
  absl::StatusOr<StepReport> Step(std::span<Turn* const> turns);

 private:
  struct Share {
    Turn* turn;
    uint32_t rows;
  };
  absl::Status Draft(std::span<Turn* const> turns, StepReport* report);
  std::vector<Share> ShareOut(std::span<Turn* const> turns, StepReport* report);
  absl::Status Forward(const std::vector<Share>& shares, StepReport* report);

  Engine* engine_;
  const Clock* clock_;
  Options options_;
  uint32_t first_ = 0;         // Which turn comes first in this step.
  std::vector<float> logits_;  // Of the step, for those who want them.
};

}  // namespace reprise::engine
