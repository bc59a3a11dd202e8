#include "gpu/engine/sequence.h"

#include <limits>
#include <string>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::engine {

void Sequence::Resume(std::vector<TokenId> tokens, const ResumePoint& held) {
  tokens_ = std::move(tokens);
  held_ = held;
  RP_CHECK(held_.hit == tokens_.size());
  encoder_exact_ = decoder_exact_ = true;
  replayed_rows_ = 0;
  plan_ = {};
  step_ = 0;
  kept_.in_use = false;
}

// ---- Rows for a batch --------------------------------------------------------------------------

absl::Status Sequence::BeginPrefill(std::span<const TokenId> tokens, PrefillMode mode) {
  RP_CHECK(rows_left() == 0);
  if (tokens.empty()) {
    return InvalidArgument("prefill needs a token: give the last token of the prefix again");
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  plan_ =
      PlanPrefill(engine_->geometry(), held_, length(), mode, std::numeric_limits<uint32_t>::max());
  step_ = 0;
  extends_ = false;
  encoder_exact_ = encoder_exact_ && !plan_.encoder_replayed;
  decoder_exact_ = decoder_exact_ && !plan_.decoder_replayed;
  replayed_rows_ += plan_.replayed_rows;
  return absl::OkStatus();
}

absl::Status Sequence::BeginExtend(std::span<const TokenId> tokens) {
  RP_CHECK(rows_left() == 0);
  if (!held_.encoder_window || !held_.decoder_window || held_.hit != length()) {
    return FailedPrecondition("the sequence has no windows at its end; prefill it first");
  }
  if (tokens.empty() || tokens.size() > LiveWindowLayout::kDraftRowsMax) {
    return InvalidArgument("extend takes 1 to " + std::to_string(LiveWindowLayout::kDraftRowsMax) +
                           " tokens");
  }
  const uint32_t first = length();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  plan_ = {.steps = {{.first = first,
                      .end = length(),
                      .write_from = first,
                      .encoder_from = held_.encoder_from,
                      .decoder_first = first,
                      .decoder_from = held_.decoder_from}},
           .encoder_from = held_.encoder_from,
           .decoder_from = held_.decoder_from};
  step_ = 0;
  extends_ = true;
  return absl::OkStatus();
}

uint32_t Sequence::rows_left() const {
  uint32_t rows = 0;
  for (size_t i = step_; i < plan_.steps.size(); ++i) {
    rows += plan_.steps[i].end - plan_.steps[i].first;
  }
  return rows;
}

uint32_t Sequence::rows_min() const {
  if (step_ == plan_.steps.size()) return 0;
  const PrefillStep& step = plan_.steps[step_];
  return step.keep_encoder_windows || extends_ ? step.end - step.first : 1;
}

uint32_t Sequence::next_row() const { return plan_.steps[step_].first; }

absl::StatusOr<Segment> Sequence::NextRows(uint32_t rows) {
  RP_CHECK(rows >= rows_min() && rows_min() > 0);
  PrefillStep& rest = plan_.steps[step_];
  const bool last_step = step_ + 1 == plan_.steps.size();
  const PrefillStep step = TakeRows(&rest, rows);
  if (step.keep_encoder_windows) RP_TRY(KeepEncoderWindows());
  const bool last_row = last_step && step.end == rest.end;
  return Segment{.memory = memory_,
                 .tokens = std::span(tokens_).first(step.end),
                 .first = step.first,
                 .write_from = step.write_from,
                 .encoder_from = step.encoder_from,
                 .decoder_first = step.decoder_first,
                 .decoder_from = step.decoder_from,
                 .logits_from = extends_   ? step.first
                                : last_row ? step.end - 1
                                           : step.end};
}

absl::Status Sequence::RowsDone() {
  if (kept_.in_use) RP_TRY(PutEncoderWindowsBack());
  if (plan_.steps[step_].first < plan_.steps[step_].end) return absl::OkStatus();
  if (++step_ < plan_.steps.size()) return absl::OkStatus();
  held_ = {.hit = length(),
           .encoder_window = true,
           .encoder_from = plan_.encoder_from,
           .decoder_window = true,
           .decoder_from = plan_.decoder_from};
  return absl::OkStatus();
}

// The encoder's rings, and the tails behind all rings.
absl::Status Sequence::KeepEncoderWindows() {
  const LiveWindowLayout& layout = engine_->window_layout();
  const uint64_t rings = engine_->geometry().encoder_layers * layout.layer_stride;
  const uint64_t tails = layout.bytes - layout.tails_offset;
  if (kept_.buffer.empty()) {
    RP_ASSIGN(kept_.buffer, engine_->memory().Allocate(rings + tails));
  }
  kept_.in_use = true;
  std::byte* kept = kept_.buffer.data();
  const MemoryCopy copies[] = {{kept, memory_.window, rings},
                               {kept + rings, memory_.window + layout.tails_offset, tails}};
  return engine_->memory().Copy(copies);
}

absl::Status Sequence::PutEncoderWindowsBack() {
  const LiveWindowLayout& layout = engine_->window_layout();
  const uint64_t rings = engine_->geometry().encoder_layers * layout.layer_stride;
  const uint64_t tails = layout.bytes - layout.tails_offset;
  kept_.in_use = false;
  const std::byte* kept = kept_.buffer.data();
  const MemoryCopy copies[] = {{memory_.window, kept, rings},
                               {memory_.window + layout.tails_offset, kept + rings, tails}};
  return engine_->memory().Copy(copies);
}

// ---- Alone -------------------------------------------------------------------------------------

absl::Status Sequence::RunRows(std::span<float> logits) {
  while (rows_left() > 0) {
    RP_ASSIGN(const Segment segment, NextRows(engine_->rows_max()));
    const bool gives_logits = segment.logits_from < segment.tokens.size();
    RP_TRY(engine_->Forward({&segment, 1}, gives_logits ? logits : std::span<float>()));
    RP_TRY(RowsDone());
  }
  return absl::OkStatus();
}

absl::Status Sequence::Prefill(std::span<const TokenId> tokens, PrefillMode mode,
                               std::span<float> logits) {
  RP_TRY(BeginPrefill(tokens, mode));
  return RunRows(logits);
}

absl::Status Sequence::Extend(std::span<const TokenId> tokens, std::span<float> logits) {
  RP_TRY(BeginExtend(tokens));
  return RunRows(logits);
}

void Sequence::Rewind(uint32_t length) {
  RP_CHECK(length <= tokens_.size() && tokens_.size() - length < LiveWindowLayout::kDraftRowsMax);
  tokens_.resize(length);
  held_.hit = length;
}

DraftRequest Sequence::DraftAfter(TokenId token) const {
  return {.memory = memory_,
          .length = length(),
          .decoder_from = held_.decoder_from,
          .token = token,
          .draws = {}};
}

}  // namespace reprise::engine
