#include "gpu/engine/generation.h"

#include <algorithm>
#include <utility>

namespace reprise::engine {

Generation::Generation(Sequence* sequence, GenerateOptions options, GiveToken give)
    : sequence_(*sequence),
      vocab_(sequence->engine().geometry().config.vocab_size),
      options_(std::move(options)),
      give_(std::move(give)),
      sampler_(options_.sampling) {}

void Generation::Begin(std::span<const float> logits) {
  done_ = options_.tokens_max == 0;
  if (done_) return;
  token_ = Choose(logits, sequence_.length());
  done_ = !Give(token_, logits);
}

TokenId Generation::Choose(std::span<const float> logits, uint32_t position) {
  if (report_.tokens < options_.forced.size()) return options_.forced[report_.tokens];
  return sampler_.Choose(logits, position);
}

// False: that was the last one.
bool Generation::Give(TokenId token, std::span<const float> logits) {
  ++report_.tokens;
  const bool wanted = give_(token, logits);
  const bool stop = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
                    options_.stop_tokens.end();
  report_.stopped = stop || !wanted;
  return !report_.stopped && report_.tokens < options_.tokens_max &&
         sequence_.length() + 1 < sequence_.engine().geometry().config.max_positions &&
         sequence_.length() + 1 < sequence_.memory().blocks.size() * kBlockTokens;
}

// ---- Drafts ------------------------------------------------------------------------------------

uint32_t Generation::RoomForDrafts() const {
  const size_t positions = std::min<size_t>(sequence_.engine().geometry().config.max_positions,
                                            sequence_.memory().blocks.size() * kBlockTokens);
  const size_t free = positions - sequence_.length() - 1;
  return static_cast<uint32_t>(
      std::min<size_t>({free, options_.drafts_max, options_.tokens_max - report_.tokens,
                        DraftScheduler::kDraftsMax}));
}

bool Generation::WantsDraft() {
  drafts_.clear();
  return options_.draft && report_.tokens >= options_.forced.size() &&
         sequence_.engine().geometry().config.draft_stages > 0 && RoomForDrafts() > 0 &&
         scheduler_.WorthDrafting();
}

DraftRequest Generation::draft_request() {
  DraftRequest request = sequence_.DraftAfter(token_);
  if (!sampler_.greedy()) {
    request.choose = [this](uint32_t k, std::span<const float> logits) {
      return sampler_.Choose(logits, sequence_.length() + 1 + k);
    };
  }
  return request;
}

void Generation::TakeDraft(DraftResult drafts) {
  drafts_ = std::move(drafts.tokens);
  drafts_.resize(std::min(RoomForDrafts(), scheduler_.Choose(drafts.confidences)));
}

// ---- Steps -------------------------------------------------------------------------------------

absl::Status Generation::BeginStep() {
  std::vector<TokenId> rows = {token_};
  rows.insert(rows.end(), drafts_.begin(), drafts_.end());
  step_first_ = sequence_.length();
  ++report_.steps;
  return sequence_.BeginExtend(rows);
}

void Generation::EndStep(std::span<const float> logits) {
  const auto row = [&](size_t index) { return logits.subspan(index * vocab_, vocab_); };
  const auto count = static_cast<uint32_t>(drafts_.size());
  const uint32_t given_before = report_.tokens;
  uint32_t kept = 0;
  bool more = true, right = true;
  while (more && right && kept < count) {
    token_ = Choose(row(kept), step_first_ + kept + 1);
    right = token_ == drafts_[kept];
    more = Give(token_, row(kept));
    kept += right ? 1 : 0;
  }
  if (more && right) {  // Every draft was right: the last row gives one more.
    token_ = Choose(row(count), step_first_ + count + 1);
    more = Give(token_, row(count));
  }
  report_.drafted += count;
  report_.accepted += kept;
  // The sequence keeps the rows whose tokens were given, but for the last one's.
  sequence_.Rewind(step_first_ + report_.tokens - given_before);
  done_ = !more;
}

void Generation::RecordStep(double seconds) {
  const auto count = static_cast<uint32_t>(drafts_.size());
  scheduler_.RecordStep(count + 1, seconds);
  if (count > 0) scheduler_.RecordYield(sequence_.length() - step_first_);
}

}  // namespace reprise::engine
