#include "gpu/engine/batch.h"

#include <algorithm>
#include <utility>

#include "protocol/base/check.h"

namespace reprise::engine {

// ---- Turn --------------------------------------------------------------------------------------

Turn::Turn(Sequence sequence, const GenerateOptions& options, GiveToken give)
    : sequence_(std::move(sequence)), generation_(&sequence_, options, std::move(give)) {}

absl::Status Turn::Begin(std::span<const TokenId> rest, PrefillMode mode) {
  phase_ = Phase::kPrefill;
  return sequence_.BeginPrefill(rest, mode);
}

void Turn::BeginAfter(const Turn& other) {
  RP_CHECK(!other.prompt_logits_.empty());
  generation_.Begin(other.prompt_logits_);
  phase_ = generation_.done() ? Phase::kDone : Phase::kGenerate;
}

uint32_t Turn::RowsWanted() const {
  const uint32_t left = sequence_.rows_left();
  if (left == 0 || sequence_.next_row() >= stop_at_) return left;
  return std::max(sequence_.rows_min(), std::min(left, stop_at_ - sequence_.next_row()));
}

bool Turn::wants_logits() const {
  return generation_.give_logits() || (phase_ == Phase::kPrefill && keep_logits_);
}

absl::Status Turn::EndStep(std::span<const LogitRow> rows) {
  RP_TRY(sequence_.RowsDone());
  if (phase_ == Phase::kGenerate) {
    generation_.EndStep(rows);
  } else if (sequence_.rows_left() == 0) {
    if (keep_logits_) {
      const size_t vocab = sequence_.engine().geometry().config.vocab_size;
      prompt_logits_.assign(rows[0].logits, rows[0].logits + vocab);
    }
    generation_.Begin(rows[0]);
    phase_ = Phase::kGenerate;
  }
  if (phase_ == Phase::kGenerate && generation_.done()) phase_ = Phase::kDone;
  return absl::OkStatus();
}

// ---- BatchRunner -------------------------------------------------------------------------------

namespace {

double Seconds(Nanos duration_ns) { return static_cast<double>(duration_ns) / kSecond; }

}  // namespace

BatchRunner::BatchRunner(Engine* engine, const Clock* clock, const Options& options)
    : engine_(engine), clock_(clock), options_(options) {
  // A step that cannot be cut has up to a window of rows.
  RP_CHECK(engine->rows_max() > engine->geometry().config.window);
}

absl::StatusOr<BatchRunner::StepReport> BatchRunner::Step(std::span<Turn* const> turns) {
  StepReport report;
  RP_TRY(Draft(turns, &report));
  for (Turn* turn : turns) {
    if (turn->phase_ == Turn::Phase::kGenerate && turn->sequence_.rows_left() == 0) {
      RP_TRY(turn->generation_.BeginStep());
    }
  }
  RP_TRY(Forward(ShareOut(turns, &report), &report));
  return report;
}

absl::Status BatchRunner::Draft(std::span<Turn* const> turns, StepReport* report) {
  std::vector<Turn*> drafting;
  std::vector<DraftRequest> requests;
  for (Turn* turn : turns) {
    const bool between_steps =
        turn->phase_ == Turn::Phase::kGenerate && turn->sequence_.rows_left() == 0;
    if (!between_steps || !turn->generation_.WantsDraft()) continue;
    drafting.push_back(turn);
    requests.push_back(turn->generation_.draft_request());
  }
  if (requests.empty()) return absl::OkStatus();
  std::vector<DraftResult> results(requests.size());
  const Instant begin = clock_->Now();
  RP_TRY(engine_->Draft(requests, results));
  report->draft_seconds = Seconds(clock_->Now() - begin);
  for (size_t i = 0; i < drafting.size(); ++i) {
    drafting[i]->generation_.RecordDraft(report->draft_seconds);
    drafting[i]->generation_.TakeDraft(std::move(results[i]));
  }
  return absl::OkStatus();
}

std::vector<BatchRunner::Share> BatchRunner::ShareOut(std::span<Turn* const> turns,
                                                      StepReport* report) {
  std::vector<Share> shares;
  std::vector<Turn*> prompts;
  uint32_t room = engine_->rows_max();
  const size_t count = turns.size();
  for (size_t i = 0; i < count; ++i) {
    Turn* turn = turns[(first_ + i) % count];
    const uint32_t rows = turn->sequence_.rows_left();
    if (turn->phase_ == Turn::Phase::kPrefill && rows > 0) prompts.push_back(turn);
    if (turn->phase_ != Turn::Phase::kGenerate || rows > room) continue;
    shares.push_back({turn, rows});
    room -= rows;
    report->generate_rows += rows;
  }
  ++first_;
  if (!shares.empty()) room = std::min(room, options_.prefill_rows_beside);
  // What cannot be cut may have more than its share; what is left over goes to who comes first.
  const size_t prompts_begin = shares.size();
  for (size_t i = 0; i < prompts.size(); ++i) {
    const uint32_t share = room / static_cast<uint32_t>(prompts.size() - i);
    const uint32_t rows =
        std::max(prompts[i]->sequence_.rows_min(), std::min(prompts[i]->RowsWanted(), share));
    if (rows > room) continue;
    shares.push_back({prompts[i], rows});
    room -= rows;
  }
  for (size_t i = prompts_begin; i < shares.size(); ++i) {
    const uint32_t more = std::min(room, shares[i].turn->RowsWanted() - shares[i].rows);
    shares[i].rows += more;
    room -= more;
    report->prefill_rows += shares[i].rows;
  }
  report->turns = static_cast<uint32_t>(shares.size());
  return shares;
}

absl::Status BatchRunner::Forward(const std::vector<Share>& shares, StepReport* report) {
  if (shares.empty()) return absl::OkStatus();
  const size_t vocab = engine_->geometry().config.vocab_size;
  std::vector<Segment> segments;
  std::vector<size_t> logit_rows;
  size_t total = 0, copied = 0;
  for (const Share& share : shares) {
    RP_ASSIGN(Segment segment, share.turn->sequence_.NextRows(share.rows));
    segments.push_back(std::move(segment));
    logit_rows.push_back(segments.back().tokens.size() - segments.back().logits_from);
    total += logit_rows.back();
    copied += share.turn->wants_logits() ? logit_rows.back() : 0;
  }
  logits_.resize(copied * vocab);
  std::vector<LogitRow> rows(total);
  std::span<LogitRow> rows_left = rows;
  std::span<float> room_left = logits_;
  for (size_t i = 0; i < shares.size(); ++i) {
    const Turn& turn = *shares[i].turn;
    const size_t room = turn.wants_logits() ? logit_rows[i] * vocab : 0;
    turn.generation_.Ask(segments[i].logits_from, room_left.first(room),
                         rows_left.first(logit_rows[i]));
    room_left = room_left.subspan(room);
    rows_left = rows_left.subspan(logit_rows[i]);
  }
  const Instant begin = clock_->Now();
  RP_TRY(engine_->ForwardRows(segments, rows));
  report->forward_seconds = Seconds(clock_->Now() - begin);
  size_t at = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    Turn* turn = shares[i].turn;
    const bool generated = turn->phase_ == Turn::Phase::kGenerate;
    if (!generated) turn->prefill_rows_ += shares[i].rows;
    RP_TRY(turn->EndStep(std::span(rows).subspan(at, logit_rows[i])));
    at += logit_rows[i];
    // Steps beside a prompt's rows say nothing about what a draft costs.
    if (generated && report->prefill_rows == 0) {
      turn->generation_.RecordStep(report->forward_seconds);
    }
  }
  return absl::OkStatus();
}

}  // namespace reprise::engine
