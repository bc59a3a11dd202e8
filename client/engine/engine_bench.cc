#include "client/engine/engine_bench.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/engine/sequence_memory.h"
#include "gpu/engine/generator.h"

namespace reprise::bench {
namespace {

using engine::Engine;
using engine::LoadedModel;
using engine::Segment;
using engine::Sequence;

double Seconds(Nanos duration_ns) { return static_cast<double>(duration_ns) / kSecond; }

// English sentences with numbers that go on, the same each time: what drafts can guess a part of.
std::vector<TokenId> Text(uint32_t count) {
  std::vector<TokenId> tokens;
  tokens.reserve(count);
  for (uint32_t n = 1; tokens.size() < count; ++n) {
    const std::string sentence = "Entry " + std::to_string(n * 37) +
                                 " of the list names the file that was read, the time it took and "
                                 "the number of lines in it.\n";
    for (const char c : sentence) tokens.push_back(static_cast<unsigned char>(c));
  }
  tokens.resize(count);
  return tokens;
}

constexpr uint32_t kShortTokens = 2048;

double Median(std::vector<double>* values) {
  const auto middle = values->begin() + static_cast<ptrdiff_t>(values->size() / 2);
  std::nth_element(values->begin(), middle, values->end());
  return *middle;
}

class EngineBench {
 public:
  EngineBench(LoadedModel* model, SequenceBuffers memory, const EngineBenchOptions& options,
              const Clock& clock)
      : engine_(*model->engine),
        options_(options),
        clock_(clock),
        memory_(std::move(memory)),
        logits_(engine_.geometry().config.vocab_size) {}

  absl::StatusOr<EngineBenchFigures> Run() {
    EngineBenchFigures figures{
        .backend = std::string(engine_.backend()), .note = {}, .threads = options_.threads};
    RP_ASSIGN(const double prefill, Best([&] { return Prefill(options_.prefill_tokens); }));
    figures.prefill_tokens_per_second = options_.prefill_tokens / prefill;
    RP_ASSIGN(const double decode, Best([&] { return Decode(); }));
    figures.decode_tokens_per_second = options_.decode_tokens / decode;
    RP_TRY(Drafted(&figures));
    RP_ASSIGN(figures.cold_seconds, Prefill(options_.long_tokens));
    RP_TRY(DecoderShares(&figures));
    RP_ASSIGN(figures.encoder_replay_seconds, Best([&] { return Replay(); }));
    return figures;
  }

 private:
  template <typename Measure>
  absl::StatusOr<double> Best(Measure&& measure) {
    double best = 0;
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      RP_ASSIGN(const double seconds, measure());
      if (round == 0 || seconds < best) best = seconds;
    }
    return best;
  }

  absl::StatusOr<double> Prefill(uint32_t tokens) {
    Sequence sequence(&engine_, memory_.lent());
    const std::vector<TokenId> text = Text(tokens);
    const Instant begin = clock_.Now();
    RP_TRY(sequence.Prefill(text, engine::PrefillMode::kBounded, logits_));
    return Seconds(clock_.Now() - begin);
  }

  absl::StatusOr<double> Decode() {
    Sequence sequence(&engine_, memory_.lent());
    RP_TRY(sequence.Prefill(Text(512), engine::PrefillMode::kBounded, logits_));
    const std::vector<TokenId> text = Text(options_.decode_tokens);
    const Instant begin = clock_.Now();
    for (const TokenId token : text) RP_TRY(sequence.Extend({&token, 1}, logits_));
    return Seconds(clock_.Now() - begin);
  }

  absl::Status Drafted(EngineBenchFigures* figures) {
    if (engine_.geometry().config.draft_stages == 0) return absl::OkStatus();
    Sequence sequence(&engine_, memory_.lent());
    RP_TRY(sequence.Prefill(Text(512), engine::PrefillMode::kBounded, logits_));
    RP_ASSIGN(const engine::GenerateReport report,
              engine::Generate(&sequence, logits_, {.tokens_max = options_.decode_tokens}, clock_,
                               [](TokenId, std::span<const float>) { return true; }));
    figures->draft_decode_tokens_per_second = report.tokens / Seconds(report.elapsed_ns);
    figures->accepted_drafts_per_step = static_cast<double>(report.accepted) / report.steps;
    return absl::OkStatus();
  }

  // The last 128 rows of both prefixes of the text just prefilled, with and without the decoder.
  // All four go by turns, so that they see the same machine; the median difference is its share.
  absl::Status DecoderShares(EngineBenchFigures* figures) {
    constexpr uint32_t kTurnsOfRound = 40;
    std::vector<double> shares_short, shares_long;
    for (uint32_t turn = 0; turn < kTurnsOfRound * options_.rounds; ++turn) {
      RP_ASSIGN(const double share_short, DecoderShare(kShortTokens));
      RP_ASSIGN(const double share_long, DecoderShare(options_.long_tokens));
      shares_short.push_back(share_short);
      shares_long.push_back(share_long);
    }
    figures->decoder_short_seconds = Median(&shares_short);
    figures->decoder_long_seconds = Median(&shares_long);
    return absl::OkStatus();
  }
  absl::StatusOr<double> DecoderShare(uint32_t length) {
    RP_ASSIGN(const double encoder, Tail(length, false));
    RP_ASSIGN(const double both, Tail(length, true));
    return both - encoder;
  }
  absl::StatusOr<double> Replay() { return Tail(options_.long_tokens, false); }

  absl::StatusOr<double> Tail(uint32_t length, bool decoder) {
    const std::vector<TokenId> text = Text(length);
    const uint32_t first = length - std::min(length, engine_.geometry().config.window);
    const Segment segment{.memory = memory_.lent(),
                          .tokens = text,
                          .first = first,
                          .write_from = length,
                          .encoder_from = first,
                          .decoder_first = decoder ? first : length,
                          .decoder_from = decoder ? first : length,
                          .logits_from = length};
    const Instant begin = clock_.Now();
    RP_TRY(engine_.Forward({&segment, 1}, {}));
    return Seconds(clock_.Now() - begin);
  }

  Engine& engine_;
  const EngineBenchOptions& options_;
  const Clock& clock_;
  SequenceBuffers memory_;
  std::vector<float> logits_;
};

}  // namespace

absl::StatusOr<EngineBenchFigures> RunEngineBench(const EngineBenchOptions& options,
                                                  const Clock& clock) {
  RP_ASSIGN(const std::string folder, engine::FindModelFolder(options.model));
  RP_ASSIGN(LoadedModel model,
            engine::LoadModel(
                folder, {.device = options.device, .threads = options.threads, .kernels = {}}));
  const uint32_t longest = std::max(options.long_tokens, options.prefill_tokens);
  if (longest + options.decode_tokens > model.geometry.config.max_positions) {
    return InvalidArgument("the model has " + std::to_string(model.geometry.config.max_positions) +
                           " positions; ask for shorter texts");
  }
  RP_ASSIGN(SequenceBuffers memory,
            SequenceBuffers::Make(*model.engine, longest + options.decode_tokens + 256));
  RP_ASSIGN(EngineBenchFigures figures,
            EngineBench(&model, std::move(memory), options, clock).Run());
  figures.note = model.note;
  return figures;
}

}  // namespace reprise::bench
