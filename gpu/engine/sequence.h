#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine/engine.h"
#include "gpu/engine/prefill_plan.h"

namespace reprise::engine {

// A sequence that is being run: its tokens, what its memory holds of them, and how exact that is.
// Does not own the memory. One thread.
//
// Rows are run in two ways: by Prefill and Extend, which call the engine; or a batch takes them
// (BeginPrefill or BeginExtend, then NextRows), runs them beside those of other sequences, and says
// RowsDone. A copy of a sequence needs memory of its own before either goes on.
class Sequence {
 public:
  // `memory` must have room for every token that will be appended; more blocks may be lent later.
  Sequence(Engine* engine, SequenceMemory memory) : engine_(engine), memory_(memory) {}

  // The memory's blocks hold the global KV of `tokens`, and windows as said; nothing is run.
  void Resume(std::vector<TokenId> tokens, const ResumePoint& held);
  void SetMemory(SequenceMemory memory) { memory_ = memory; }

  // Appends the tokens and runs them, and what must be replayed for them. `logits` takes the last
  // row's, vocab_size. After an error only Resume may follow.
  absl::Status Prefill(std::span<const TokenId> tokens, PrefillMode mode, std::span<float> logits);

  // Appends the tokens, at most LiveWindowLayout::kDraftRowsMax, and runs them through all layers;
  // logits of every row. Needs both windows, which Prefill leaves.
  absl::Status Extend(std::span<const TokenId> tokens, std::span<float> logits);
  // Takes the last tokens of one Extend back.
  void Rewind(uint32_t length);

  // ---- Rows for a batch -----------------------------------------------------------------------
  // Append the tokens. The last row of a prefill gives logits, and every row of an extension.
  absl::Status BeginPrefill(std::span<const TokenId> tokens, PrefillMode mode);
  absl::Status BeginExtend(std::span<const TokenId> tokens);

  uint32_t rows_left() const;  // 0: nothing is begun, or all of it is done.
  // Rows that the next call must take at least: 1, or all of a step that cannot be cut.
  uint32_t rows_min() const;
  uint32_t next_row() const;  // Position of the next row. REQUIRES: rows_left() > 0.
  // At most `rows` rows, as a segment of Engine::Forward; valid until RowsDone, which must follow.
  // An error of either is the engine's, of a copy: only Resume may follow.
  // REQUIRES: rows >= rows_min() > 0.
  absl::StatusOr<Segment> NextRows(uint32_t rows);
  absl::Status RowsDone();

  DraftRequest DraftAfter(TokenId token) const;

  Engine& engine() const { return *engine_; }
  const SequenceMemory& memory() const { return memory_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  uint32_t length() const { return static_cast<uint32_t>(tokens_.size()); }
  const ResumePoint& held() const { return held_; }

  // Nothing in it derives from a bounded replay: of the encoder (its global KV), and at all. What a
  // prefill replays counts from its beginning.
  bool encoder_exact() const { return encoder_exact_; }
  bool exact() const { return encoder_exact_ && decoder_exact_; }
  uint64_t replayed_rows() const { return replayed_rows_; }

 private:
  // The encoder's windows as they were before a step that keeps them. A copy of a sequence is made
  // between steps, and has a place of its own when it needs one.
  struct KeptWindows {
    KeptWindows() = default;
    KeptWindows(const KeptWindows&) {}
    KeptWindows& operator=(const KeptWindows&) { return *this; }
    KeptWindows(KeptWindows&&) = default;
    KeptWindows& operator=(KeptWindows&&) = default;

    EngineBuffer buffer;
    bool in_use = false;
  };

  absl::Status RunRows(std::span<float> logits);
  absl::Status KeepEncoderWindows();
  absl::Status PutEncoderWindowsBack();

  Engine* engine_;
  SequenceMemory memory_;
  std::vector<TokenId> tokens_;
  ResumePoint held_;
  bool encoder_exact_ = true;
  bool decoder_exact_ = true;
  uint64_t replayed_rows_ = 0;

  PrefillPlan plan_;  // Its steps from step_ on are still to be run.
  size_t step_ = 0;
  bool extends_ = false;  // Every row gives logits.
  KeptWindows kept_;
};

}  // namespace reprise::engine
