#include "gpu/engine/sequence.h"

#include <cstring>
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
}

absl::Status Sequence::RunStep(const PrefillStep& step, std::span<float> logits) {
  const Segment segment{.memory = memory_,
                        .tokens = std::span(tokens_).first(step.end),
                        .first = step.first,
                        .write_from = step.write_from,
                        .encoder_from = step.encoder_from,
                        .decoder_first = step.decoder_first,
                        .decoder_from = step.decoder_from,
                        .logits_from = logits.empty() ? step.end : step.end - 1};
  if (!step.keep_encoder_windows) return engine_->Forward({&segment, 1}, logits);
  // The encoder's rings, and the tails behind all rings.
  const LiveWindowLayout& layout = engine_->window_layout();
  const size_t rings = engine_->geometry().encoder_layers * layout.layer_stride;
  const std::vector<std::byte> kept(memory_.window, memory_.window + layout.bytes);
  const absl::Status status = engine_->Forward({&segment, 1}, logits);
  std::memcpy(memory_.window, kept.data(), rings);
  std::memcpy(memory_.window + layout.tails_offset, kept.data() + layout.tails_offset,
              layout.bytes - layout.tails_offset);
  return status;
}

absl::Status Sequence::Prefill(std::span<const TokenId> tokens, PrefillMode mode,
                               std::span<float> logits) {
  if (tokens.empty()) {
    return InvalidArgument("prefill needs a token: give the last token of the prefix again");
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const PrefillPlan plan =
      PlanPrefill(engine_->geometry(), held_, length(), mode, engine_->rows_max());
  for (const PrefillStep& step : plan.steps) {
    const bool last = &step == &plan.steps.back();
    RP_TRY(RunStep(step, last ? logits : std::span<float>()));
  }
  held_ = {.hit = length(),
           .encoder_window = true,
           .encoder_from = plan.encoder_from,
           .decoder_window = true,
           .decoder_from = plan.decoder_from};
  encoder_exact_ = encoder_exact_ && !plan.encoder_replayed;
  decoder_exact_ = decoder_exact_ && !plan.decoder_replayed;
  replayed_rows_ += plan.replayed_rows;
  return absl::OkStatus();
}

absl::Status Sequence::Extend(std::span<const TokenId> tokens, std::span<float> logits) {
  if (!held_.encoder_window || !held_.decoder_window || held_.hit != length()) {
    return FailedPrecondition("the sequence has no windows at its end; prefill it first");
  }
  if (tokens.empty() || tokens.size() > LiveWindowLayout::kDraftRowsMax) {
    return InvalidArgument("extend takes 1 to " + std::to_string(LiveWindowLayout::kDraftRowsMax) +
                           " tokens");
  }
  const uint32_t first = length();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const Segment segment{.memory = memory_,
                        .tokens = tokens_,
                        .first = first,
                        .write_from = first,
                        .encoder_from = held_.encoder_from,
                        .decoder_first = first,
                        .decoder_from = held_.decoder_from,
                        .logits_from = first};
  RP_TRY(engine_->Forward({&segment, 1}, logits));
  held_.hit = length();
  return absl::OkStatus();
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
          .choose = nullptr};
}

}  // namespace reprise::engine
