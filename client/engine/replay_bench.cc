#include "client/engine/replay_bench.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/engine/sequence_memory.h"
#include "gpu/engine/sampler.h"
#include "gpu/engine/sequence.h"

namespace reprise::bench {
namespace {

using engine::Engine;
using engine::PrefillMode;
using engine::Segment;
using engine::Sequence;

using Rows = std::vector<std::vector<float>>;

class SampleRun {
 public:
  SampleRun(Engine& engine, const ReplaySample& sample)
      : engine_(engine), sample_(sample), ids_(sample.ids) {}

  // Logits before each token of the rest, for the four ways.
  absl::StatusOr<std::vector<Rows>> Run() {
    RP_ASSIGN(const SequenceBuffers start, MakeBuffers());
    RP_ASSIGN(SequenceBuffers memory, MakeBuffers());
    Sequence base(&engine_, start.lent());
    std::vector<float> logits(vocab());
    RP_TRY(base.Prefill(Prefix(), PrefillMode::kOracle, logits));
    std::vector<Rows> out;
    for (size_t mode = 0; mode < std::size(kReplayModes); ++mode) {
      RP_TRY(memory.CopyFrom(start));  // Every way starts from the same state.
      Sequence sequence(&engine_, memory.lent());
      RP_TRY(Reach(mode, base, &sequence, memory.lent(), logits));
      RP_ASSIGN(Rows rows, Follow(&sequence, logits));
      out.push_back(std::move(rows));
    }
    return out;
  }

 private:
  absl::StatusOr<SequenceBuffers> MakeBuffers() const {
    return SequenceBuffers::Make(engine_, static_cast<uint32_t>(ids_.size()));
  }
  size_t vocab() const { return engine_.geometry().config.vocab_size; }
  std::span<const TokenId> Prefix() const { return std::span(ids_).first(sample_.prefix); }
  std::span<const TokenId> Suffix() const {
    return std::span(ids_).subspan(sample_.prefix, sample_.suffix);
  }

  // Brings the sequence to the end of the suffix.
  absl::Status Reach(size_t mode, const Sequence& base, Sequence* sequence,
                     const engine::SequenceMemory& memory, std::span<float> logits) {
    const std::vector<TokenId> prefix(Prefix().begin(), Prefix().end());
    switch (mode) {
      case 0:
        sequence->Resume(prefix, base.held());
        return sequence->Prefill(Suffix(), PrefillMode::kOracle, logits);
      case 1: {
        const uint32_t hit = sample_.prefix;
        const uint32_t from = hit - std::min(hit, engine_.geometry().config.window);
        const Segment replay{.memory = memory,
                             .tokens = Prefix(),
                             .first = from,
                             .write_from = hit,
                             .encoder_from = from,
                             .decoder_first = hit,
                             .decoder_from = hit,
                             .logits_from = hit};
        RP_TRY(engine_.Forward({&replay, 1}, {}));
        engine::ResumePoint held = base.held();
        held.encoder_from = from;
        sequence->Resume(prefix, held);
        return sequence->Prefill(Suffix(), PrefillMode::kOracle, logits);
      }
      case 2:
        return sequence->Prefill(std::span(ids_).first(sample_.prefix + sample_.suffix),
                                 PrefillMode::kBounded, logits);
      default:
        sequence->Resume(prefix, {.hit = sample_.prefix});
        return sequence->Prefill(Suffix(), PrefillMode::kBounded, logits);
    }
  }

  absl::StatusOr<Rows> Follow(Sequence* sequence, const std::vector<float>& last) {
    constexpr size_t kAtATime = engine::LiveWindowLayout::kDraftRowsMax;
    Rows rows = {last};
    const auto rest = std::span<const TokenId>(ids_).subspan(sample_.prefix + sample_.suffix);
    for (size_t at = 0; at + 1 < rest.size(); at += kAtATime) {
      const auto part = rest.subspan(at, std::min(kAtATime, rest.size() - 1 - at));
      std::vector<float> logits(part.size() * vocab());
      RP_TRY(sequence->Extend(part, logits));
      for (size_t i = 0; i < part.size(); ++i) {
        const auto begin = logits.begin() + static_cast<ptrdiff_t>(i * vocab());
        rows.emplace_back(begin, begin + static_cast<ptrdiff_t>(vocab()));
      }
    }
    return rows;
  }

  Engine& engine_;
  const ReplaySample& sample_;
  const std::vector<TokenId>& ids_;
};

void Add(const Rows& exact, const Rows& rows, std::span<const TokenId> rest, ReplayFigures* sums) {
  double bits = 0, kl = 0, agree = 0;
  bool all_right = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    bits -= engine::LogProbability(rows[i], rest[i]) / std::log(2.0);
    const double row_kl = engine::KlNats(exact[i], rows[i]);
    kl += row_kl;
    sums->kl_max = std::max(sums->kl_max, row_kl);
    const TokenId likeliest = engine::LikeliestToken(rows[i]);
    agree += likeliest == engine::LikeliestToken(exact[i]) ? 1 : 0;
    all_right = all_right && likeliest == rest[i];
  }
  const auto count = static_cast<double>(rows.size());
  ++sums->samples;
  sums->bits += bits / count;
  sums->kl_nats += kl / count;
  sums->agreement += agree / count;
  sums->exact_match += all_right ? 1 : 0;
}

}  // namespace

absl::StatusOr<std::vector<ReplaySample>> ReadReplaySamples(const std::string& path) {
  std::ifstream file(path);
  if (!file)
    return InvalidArgument("cannot read " + path + "; replay_samples.py writes such a file");
  std::vector<ReplaySample> samples;
  std::string line;
  for (uint32_t number = 1; std::getline(file, line); ++number) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    const auto bad = [&](const std::string& why) {
      return InvalidArgument(path + ":" + std::to_string(number) + ": " + why);
    };
    if (!json.is_object() || !json.value("kind", nlohmann::json()).is_string() ||
        !json.value("ids", nlohmann::json()).is_array() ||
        !json.value("prefix", nlohmann::json()).is_number_unsigned() ||
        !json.value("suffix", nlohmann::json()).is_number_unsigned()) {
      return bad("not an object with kind, prefix, suffix and ids");
    }
    ReplaySample sample{
        .kind = json["kind"], .prefix = json["prefix"], .suffix = json["suffix"], .ids = {}};
    for (const auto& id : json["ids"]) {
      if (!id.is_number_integer()) return bad("an id is not an integer");
      sample.ids.push_back(id);
    }
    if (sample.prefix == 0 || sample.suffix == 0 ||
        uint64_t{sample.prefix} + sample.suffix >= sample.ids.size()) {
      return bad("prefix and suffix must leave an id of the rest");
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

absl::StatusOr<ReplayReport> RunReplayBench(Engine& engine,
                                            const std::vector<ReplaySample>& samples,
                                            const std::function<void(uint64_t)>& progress) {
  ReplayReport report;
  for (size_t i = 0; i < samples.size(); ++i) {
    RP_ASSIGN(const std::vector<Rows> runs, SampleRun(engine, samples[i]).Run());
    const auto rest =
        std::span(samples[i].ids).subspan(size_t{samples[i].prefix} + samples[i].suffix);
    std::vector<ReplayFigures>& sums = report[samples[i].kind];
    sums.resize(std::size(kReplayModes));
    for (size_t mode = 0; mode < runs.size(); ++mode) Add(runs[0], runs[mode], rest, &sums[mode]);
    progress(i + 1);
  }
  for (auto& [kind, modes] : report) {
    for (ReplayFigures& f : modes) {
      const auto count = static_cast<double>(f.samples);
      f.bits /= count;
      f.kl_nats /= count;
      f.agreement /= count;
      f.exact_match /= count;
    }
  }
  return report;
}

}  // namespace reprise::bench
