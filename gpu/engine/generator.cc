#include "gpu/engine/generator.h"

namespace reprise::engine {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(const Clock& clock) : clock_(clock), begin_(clock.Now()) {}
  Nanos elapsed_ns() const { return clock_.Now() - begin_; }
  double seconds() const { return static_cast<double>(elapsed_ns()) / kSecond; }

 private:
  const Clock& clock_;
  Instant begin_;
};

absl::Status Draft(const Sequence& sequence, const Clock& clock, Generation* generation) {
  const DraftRequest request = generation->draft_request();
  DraftResult drafts;
  const Stopwatch watch(clock);
  RP_TRY(sequence.engine().Draft({&request, 1}, {&drafts, 1}));
  generation->RecordDraft(watch.seconds());
  generation->TakeDraft(std::move(drafts));
  return absl::OkStatus();
}

absl::Status Step(Sequence* sequence, const Clock& clock, Generation* generation) {
  RP_TRY(generation->BeginStep());
  const uint32_t rows = sequence->rows_left();
  const size_t vocab = sequence->engine().geometry().config.vocab_size;
  std::vector<LogitRow> wanted(rows);
  std::vector<float> logits(generation->give_logits() ? rows * vocab : 0);
  generation->Ask(sequence->next_row(), logits, wanted);
  RP_ASSIGN(const Segment segment, sequence->NextRows(rows));
  const Stopwatch watch(clock);
  RP_TRY(sequence->engine().ForwardRows({&segment, 1}, wanted));
  const double seconds = watch.seconds();
  RP_TRY(sequence->RowsDone());
  generation->EndStep(wanted);
  generation->RecordStep(seconds);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerateReport> Generate(Sequence* sequence, const std::vector<float>& logits,
                                        const GenerateOptions& options, const Clock& clock,
                                        const GiveToken& give) {
  RP_TRY(Validate(options.sampling));
  if (logits.size() != sequence->engine().geometry().config.vocab_size) {
    return InvalidArgument("generate needs the logits of the sequence's last token");
  }
  Generation generation(sequence, options, give);
  const Stopwatch watch(clock);
  generation.Begin(logits);
  while (!generation.done()) {
    if (generation.WantsDraft()) RP_TRY(Draft(*sequence, clock, &generation));
    RP_TRY(Step(sequence, clock, &generation));
  }
  GenerateReport report = generation.report();
  report.elapsed_ns = watch.elapsed_ns();
  return report;
}

}  // namespace reprise::engine
