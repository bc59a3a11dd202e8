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

void Generation::Ask(uint32_t position, std::span<float> logits, std::span<LogitRow> rows) const {
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i] = {.draw = sampler_.DrawAt(position + i + 1),
               .logits = logits.empty() ? nullptr : &logits[i * vocab_]};
  }
}

void Generation::Begin(const LogitRow& last) { done_ = options_.tokens_max == 0 || !Give(last); }

void Generation::Begin(std::span<const float> logits) {
  done_ = options_.tokens_max == 0 || !Give(sampler_.Choose(logits, sequence_.length()), logits);
}

bool Generation::Give(const LogitRow& row) {
  return Give(row.token, row.logits == nullptr ? std::span<const float>()
                                               : std::span<const float>(row.logits, vocab_));
}

bool Generation::Give(TokenId chosen, std::span<const float> logits) {
  const bool forced = report_.tokens < options_.forced.size();
  token_ = forced ? options_.forced[report_.tokens] : chosen;
  ++report_.tokens;
  const bool wanted = give_(token_, logits);
  const bool stop = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token_) !=
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
  const uint32_t drafts = sequence_.engine().geometry().config.draft_block;
  for (uint32_t k = 0; k < drafts && !sampler_.greedy(); ++k) {
    request.draws.push_back(sampler_.DrawAt(sequence_.length() + 1 + k));
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

void Generation::EndStep(std::span<const LogitRow> rows) {
  const auto count = static_cast<uint32_t>(drafts_.size());
  const uint32_t given_before = report_.tokens;
  uint32_t kept = 0;
  bool more = true, right = true;
  while (more && right && kept < count) {
    more = Give(rows[kept]);
    right = token_ == drafts_[kept];
    kept += right ? 1 : 0;
  }
  // Every draft was right: the last row gives one more.
  if (more && right) more = Give(rows[count]);
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
