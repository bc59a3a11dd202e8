#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "gpu/engine/draft_scheduler.h"
#include "gpu/engine/sampler.h"
#include "gpu/engine/sequence.h"
#include "protocol/base/clock.h"

namespace reprise::engine {

struct GenerateOptions {
  uint32_t tokens_max = 256;
  std::vector<TokenId> stop_tokens;  // Given out, and then the end.
  SamplingOptions sampling;
  bool draft = true;         // Where the model has draft stages. Changes speed, never the text.
  uint32_t drafts_max = 5;   // Verified in a step at most.
  bool give_logits = false;  // With each token. They are then copied from where they are computed.
  // Given first, one after the other, in place of what would be chosen; nothing is drafted then.
  std::vector<TokenId> forced;
};

struct GenerateReport {
  uint32_t tokens = 0;
  uint32_t steps = 0;     // Calls of the backbone.
  uint32_t drafted = 0;   // Drafts that were verified,
  uint32_t accepted = 0;  // and that were right.
  bool stopped = false;   // By a stop token or by the callback, not by tokens_max.
  Nanos elapsed_ns = 0;   // By Generate alone.
};

// A token that is certain, and the logits that it was chosen from, when they are wanted
// (GenerateOptions::give_logits) or at hand anyway; else none. False: no more tokens are wanted.
using GiveToken = std::function<bool(TokenId token, std::span<const float> logits)>;

// Chooses the tokens that follow a sequence, one or several a step, with drafts or without. It runs
// nothing itself, so that steps of many generations can be one batch:
//
//   Begin(the sequence's last row, once it has run, as Ask says)
//   until done():
//     when WantsDraft(): TakeDraft(what the engine drafts for draft_request())
//     BeginStep(): the sequence has rows to run; when they are done as Ask says, EndStep
//
// The last token given is not run: it is the next turn's first. The text is the same with and
// without drafts. The sequence and `give` must outlive it. One thread.
class Generation {
 public:
  Generation(Sequence* sequence, GenerateOptions options, GiveToken give);
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // What is wanted of rows of the sequence, the first of them at `position`. Their logits are to
  // have room in `logits`, [rows][vocab_size], when give_logits(); else it may be empty.
  void Ask(uint32_t position, std::span<float> logits, std::span<LogitRow> rows) const;
  bool give_logits() const { return options_.give_logits; }

  void Begin(const LogitRow& last);
  // With the token that is chosen from them.
  void Begin(std::span<const float> logits);
  bool done() const { return done_; }

  bool WantsDraft();
  // Valid until the next call.
  DraftRequest draft_request();
  void TakeDraft(DraftResult drafts);
  absl::Status BeginStep();
  void EndStep(std::span<const LogitRow> rows);

  // What the scheduler of drafts learns from: seconds that a draft took, and the last step.
  void RecordDraft(double seconds) { scheduler_.RecordDraft(seconds); }
  void RecordStep(double seconds);

  const GenerateReport& report() const { return report_; }

 private:
  // The token that was chosen, or the one that takes its place; false: that was the last one.
  bool Give(TokenId chosen, std::span<const float> logits);
  bool Give(const LogitRow& row);
  uint32_t RoomForDrafts() const;

  Sequence& sequence_;
  size_t vocab_;
  GenerateOptions options_;
  GiveToken give_;
  Sampler sampler_;
  DraftScheduler scheduler_;
  GenerateReport report_;
  bool done_ = false;
  TokenId token_ = 0;            // Chosen and given, not yet run.
  std::vector<TokenId> drafts_;  // To be verified in the next step.
  uint32_t step_first_ = 0;      // Length before the step.
};

}  // namespace reprise::engine
