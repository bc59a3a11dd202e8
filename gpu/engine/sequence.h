#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "gpu/engine/engine.h"
#include "gpu/engine/prefill_plan.h"

namespace reprise::engine {

// A sequence that is being run: its tokens, what its memory holds of them, and how exact that is.
// Does not own the memory. One thread.
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

  DraftRequest DraftAfter(TokenId token) const;

  Engine& engine() const { return *engine_; }
  const SequenceMemory& memory() const { return memory_; }
  const std::vector<TokenId>& tokens() const { return tokens_; }
  uint32_t length() const { return static_cast<uint32_t>(tokens_.size()); }
  const ResumePoint& held() const { return held_; }

  // Nothing in it derives from a bounded replay: of the encoder (its global KV), and at all.
  bool encoder_exact() const { return encoder_exact_; }
  bool exact() const { return encoder_exact_ && decoder_exact_; }
  uint64_t replayed_rows() const { return replayed_rows_; }

 private:
  absl::Status RunStep(const PrefillStep& step, std::span<float> logits);

  Engine* engine_;
  SequenceMemory memory_;
  std::vector<TokenId> tokens_;
  ResumePoint held_;
  bool encoder_exact_ = true;
  bool decoder_exact_ = true;
  uint64_t replayed_rows_ = 0;
};

}  // namespace reprise::engine
