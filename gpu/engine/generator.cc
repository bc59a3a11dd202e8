#include "gpu/engine/generator.h"

#include <algorithm>
#include <utility>

namespace reprise::engine {
namespace {

class Generation {
 public:
  Generation(Sequence* sequence, std::vector<float> logits, const GenerateOptions& options,
             const Clock& clock, const std::function<bool(TokenId)>& give)
      : sequence_(*sequence),
        engine_(sequence->engine()),
        vocab_(engine_.geometry().config.vocab_size),
        options_(options),
        clock_(clock),
        give_(give),
        sampler_(options.sampling),
        logits_(std::move(logits)) {}

  absl::StatusOr<GenerateReport> Run() {
    const Instant begin = clock_.Now();
    const bool can_draft =
        options_.draft && options_.drafts_max > 0 && engine_.geometry().config.draft_stages > 0;
    TokenId token = sampler_.Choose(logits_);
    bool more = Give(token);
    while (more) {
      const uint32_t room = RoomForDrafts();
      if (can_draft && room > 0 && scheduler_.WorthDrafting()) {
        RP_ASSIGN(more, DraftedStep(room, &token));
      } else {
        RP_ASSIGN(more, PlainStep(&token));
      }
    }
    report_.elapsed_ns = clock_.Now() - begin;
    return report_;
  }

 private:
  // False: that was the last one.
  bool Give(TokenId token) {
    ++report_.tokens;
    const bool wanted = give_(token);
    const bool stop = std::find(options_.stop_tokens.begin(), options_.stop_tokens.end(), token) !=
                      options_.stop_tokens.end();
    report_.stopped = stop || !wanted;
    return !report_.stopped && report_.tokens < options_.tokens_max &&
           sequence_.length() + 1 < engine_.geometry().config.max_positions &&
           sequence_.length() + 1 < sequence_.memory().blocks.size() * kBlockTokens;
  }

  uint32_t RoomForDrafts() const {
    const size_t positions = std::min<size_t>(engine_.geometry().config.max_positions,
                                              sequence_.memory().blocks.size() * kBlockTokens);
    const size_t free = positions - sequence_.length() - 1;
    return static_cast<uint32_t>(
        std::min<size_t>({free, options_.drafts_max, options_.tokens_max - report_.tokens,
                          DraftScheduler::kDraftsMax}));
  }

  absl::Status Step(const std::vector<TokenId>& tokens) {
    logits_.resize(tokens.size() * vocab_);
    const Instant begin = clock_.Now();
    RP_TRY(sequence_.Extend(tokens, logits_));
    const auto rows = static_cast<uint32_t>(tokens.size());
    scheduler_.RecordStep(rows, static_cast<double>(clock_.Now() - begin) / kSecond);
    ++report_.steps;
    return absl::OkStatus();
  }
  std::span<const float> Row(size_t row) const {
    return std::span(logits_).subspan(row * vocab_, vocab_);
  }

  absl::StatusOr<bool> PlainStep(TokenId* token) {
    RP_TRY(Step({*token}));
    *token = sampler_.Choose(Row(0));
    return Give(*token);
  }

  absl::StatusOr<bool> DraftedStep(uint32_t room, TokenId* token) {
    std::vector<std::vector<double>> draft_distributions;
    DraftRequest request = sequence_.DraftAfter(*token);
    if (!sampler_.greedy()) {
      request.choose = [&](uint32_t, std::span<const float> logits) {
        draft_distributions.push_back(sampler_.Distribution(logits));
        return sampler_.Draw(draft_distributions.back());
      };
    }
    DraftResult drafts;
    const Instant begin = clock_.Now();
    RP_TRY(engine_.Draft({&request, 1}, {&drafts, 1}));
    scheduler_.RecordDraft(static_cast<double>(clock_.Now() - begin) / kSecond);
    const uint32_t count = std::min(room, scheduler_.Choose(drafts.confidences));
    if (count == 0) return PlainStep(token);

    std::vector<TokenId> rows = {*token};
    rows.insert(rows.end(), drafts.tokens.begin(), drafts.tokens.begin() + count);
    const uint32_t first = sequence_.length();
    const uint32_t given_before = report_.tokens;
    RP_TRY(Step(rows));
    report_.drafted += count;
    uint32_t kept = 0;
    bool more = true, right = true;
    while (more && right && kept < count) {
      right = Verify(kept, drafts.tokens[kept], draft_distributions, token);
      kept += right ? 1 : 0;
      more = Give(*token);
    }
    report_.accepted += kept;
    if (more && right) {  // Every draft was right: the last row gives one more.
      *token = sampler_.Choose(Row(count));
      more = Give(*token);
    }
    // The sequence keeps the rows whose tokens were given, but for the last one's.
    sequence_.Rewind(first + report_.tokens - given_before);
    scheduler_.RecordYield(kept + 1);
    return more;
  }

  bool Verify(uint32_t index, TokenId drafted,
              const std::vector<std::vector<double>>& draft_distributions, TokenId* token) {
    if (sampler_.greedy()) {
      *token = LikeliestToken(Row(index));
      return *token == drafted;
    }
    return sampler_.Verify(drafted, sampler_.Distribution(Row(index)), draft_distributions[index],
                           token);
  }

  Sequence& sequence_;
  Engine& engine_;
  size_t vocab_;
  const GenerateOptions& options_;
  const Clock& clock_;
  const std::function<bool(TokenId)>& give_;
  Sampler sampler_;
  std::vector<float> logits_;
  DraftScheduler scheduler_;
  GenerateReport report_;
};

}  // namespace

absl::StatusOr<GenerateReport> Generate(Sequence* sequence, std::vector<float> logits,
                                        const GenerateOptions& options, const Clock& clock,
                                        const std::function<bool(TokenId)>& give) {
  RP_TRY(Validate(options.sampling));
  if (logits.size() != sequence->engine().geometry().config.vocab_size) {
    return InvalidArgument("generate needs the logits of the sequence's last token");
  }
  if (options.tokens_max == 0) return GenerateReport{};
  return Generation(sequence, std::move(logits), options, clock, give).Run();
}

}  // namespace reprise::engine
