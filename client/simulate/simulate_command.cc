// `reprise simulate`: hit rates of a trace by definition, without a daemon.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "client/cli/commands.h"
#include "client/simulate/trace_blocks.h"
#include "protocol/base/units.h"
#include "protocol/record/record_layout.h"
#include "storage/economics/lru_curve.h"

namespace reprise::cli {
namespace {

using economics::BeladyRun;
using economics::BlockRequest;
using economics::ReferenceCache;
using economics::ReferencePolicy;
using economics::ReuseIntervals;
using economics::Tally;
using economics::WindowReference;

constexpr const char* kSimulateFooter =
    R"(In the trace's own blocks: a hit is the longest prefix of whole blocks that are resident before the request; afterwards
all of its blocks are. Outputs are not stored, and a prompt may hit whole.

Exit codes: 0 done, 2 an option or the trace is wrong (by its line).)";

struct SimulateCommand {
  std::string trace;
  TraceOptions options;
  bool reference = false;
  bool window_reference = false;
  bool curve = false;
  std::string model = "v4.1-flash";
  bool partial_tails = false;
  std::string policy = "lru";
  uint64_t capacity_blocks = 0;
  Nanos window_ttl_ns = 300 * kSecond;
};

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f %%", 100 * share);
  return text;
}

Json TallyJson(const Tally& tally) {
  return {{"requests", tally.requests},
          {"input_tokens", tally.input_tokens},
          {"hit_tokens", tally.hit_tokens},
          {"hit_requests", tally.hit_requests},
          {"hit_rate", tally.hit_rate()}};
}

// What was asked and answered, and of the second half of the requests alone: the first warms it.
struct Outcomes {
  std::vector<Tally> of_requests;

  void Add(const BlockRequest& request, uint64_t hit_blocks) {
    of_requests.emplace_back();
    of_requests.back().Add(request, hit_blocks);
  }
  Tally From(size_t first) const {
    Tally sum;
    for (size_t i = first; i < of_requests.size(); ++i) {
      sum.requests += of_requests[i].requests;
      sum.input_tokens += of_requests[i].input_tokens;
      sum.hit_tokens += of_requests[i].hit_tokens;
      sum.hit_requests += of_requests[i].hit_requests;
    }
    return sum;
  }
};

absl::StatusOr<Result> RunReference(const SimulateCommand& command) {
  RP_ASSIGN(const ReferencePolicy policy, economics::ParseReferencePolicy(command.policy));
  const bool belady = policy == ReferencePolicy::kBelady && command.capacity_blocks != 0;
  std::unique_ptr<ReferenceCache> cache;
  if (!belady) cache = economics::MakeReferenceCache(policy, command.capacity_blocks);
  BeladyRun run;
  std::vector<BlockRequest> requests;  // For Belady: without their blocks, which the run keeps.
  Outcomes outcomes;
  uint32_t distinct = 0, block_tokens = 0;
  RP_TRY(ForEachRequest(command.trace, command.options, command.partial_tails,
                        [&](const BlockRequest& request, const TraceBlocks& blocks) {
                          distinct = blocks.distinct_blocks();
                          block_tokens = request.block_tokens;
                          if (belady) {
                            run.Add(request.blocks);
                            requests.push_back(request);
                            requests.back().blocks = {};
                          } else {
                            outcomes.Add(request, cache->Serve(request.blocks));
                          }
                        }));
  if (belady) {
    const std::vector<uint32_t> hits = run.Run(command.capacity_blocks);
    for (size_t i = 0; i < requests.size(); ++i) outcomes.Add(requests[i], hits[i]);
  }
  const Tally all = outcomes.From(0);
  const Tally half = outcomes.From(outcomes.of_requests.size() / 2);
  Result result;
  result.json = TallyJson(all);
  result.json["policy"] = command.capacity_blocks == 0 ? "infinite" : command.policy;
  result.json["capacity_blocks"] = command.capacity_blocks;
  result.json["block_tokens"] = block_tokens;
  result.json["distinct_blocks"] = distinct;
  result.json["definition"] =
      command.partial_tails ? "listed_blocks_incl_partial_tail" : "complete_blocks_only";
  result.json["last_half"] = TallyJson(half);
  result.text =
      "policy        " + result.json["policy"].get<std::string>() + "\n" + "requests      " +
      std::to_string(all.requests) + "\n" + "input tokens  " + std::to_string(all.input_tokens) +
      "\n" + "hit tokens    " + std::to_string(all.hit_tokens) + "  " + Percent(all.hit_rate()) +
      "\nlast half     " + std::to_string(half.hit_tokens) + "  " + Percent(half.hit_rate()) + "\n";
  return result;
}

absl::StatusOr<Result> RunWindows(const SimulateCommand& command) {
  WindowReference windows(command.window_ttl_ns);
  RP_TRY(ForEachRequest(
      command.trace, command.options, false,
      [&](const BlockRequest& request, const TraceBlocks&) { windows.Add(request); }));
  const WindowReference::Figures& f = windows.figures();
  Result result;
  result.json = {{"window_ttl_seconds", static_cast<double>(command.window_ttl_ns) / kSecond},
                 {"adopted_hits", f.adopted_hits},
                 {"found", f.found},
                 {"replays", f.replays},
                 {"replay_tokens", f.replay_tokens},
                 {"forks", f.forks},
                 {"found_every_position", f.found_every_position},
                 {"live_checkpoints_peak", f.live_checkpoints_peak}};
  for (const auto& [key, value] : result.json.items()) {
    result.text += key + " " + value.dump() + "\n";
  }
  return result;
}

// All capacities in one pass, shown at steps of a quarter of a power of two.
absl::StatusOr<Result> RunCurve(const SimulateCommand& command) {
  RP_ASSIGN(const KvGeometry geometry, KvGeometry::Preset(command.model));
  RP_ASSIGN(const RecordLayout layout, RecordLayout::For(geometry));
  economics::LruCurve curve;
  uint32_t block_tokens = 0;
  RP_TRY(ForEachRequest(command.trace, command.options, command.partial_tails,
                        [&](const BlockRequest& request, const TraceBlocks&) {
                          block_tokens = request.block_tokens;
                          curve.Add(request);
                        }));
  Result result;
  result.json = {{"policy", "lru"},
                 {"input_tokens", curve.input_tokens()},
                 {"block_tokens", block_tokens},
                 {"bytes_per_token", layout.bytes_per_token()},
                 {"curve", Json::array()}};
  const auto input = static_cast<double>(curve.input_tokens());
  for (double step = 64;; step *= std::pow(2.0, 0.25)) {
    const auto capacity = std::min<uint64_t>(static_cast<uint64_t>(step), curve.capacity_max());
    const uint64_t hit = curve.HitTokens(capacity);
    const uint64_t bytes = capacity * block_tokens * layout.bytes_per_token();
    const double rate = input == 0 ? 0 : static_cast<double>(hit) / input;
    result.json["curve"].push_back({{"capacity_blocks", capacity},
                                    {"capacity_bytes", bytes},
                                    {"hit_tokens", hit},
                                    {"hit_rate", rate}});
    char line[96];
    std::snprintf(line, sizeof(line), "%12llu blocks %12s  %s\n",
                  static_cast<unsigned long long>(capacity), FormatBytes(bytes).c_str(),
                  Percent(rate).c_str());
    result.text += line;
    if (capacity == curve.capacity_max()) return result;
  }
}

absl::StatusOr<Result> RunSimulate(const SimulateCommand& command) {
  if (command.curve) return RunCurve(command);
  if (command.window_reference) return RunWindows(command);
  if (command.reference) return RunReference(command);
  return InvalidArgument("give --reference, --window-reference or --curve");
}

// ---- trace -------------------------------------------------------------------------------------

struct TraceCommand {
  std::string trace;
  TraceOptions options;
};

absl::StatusOr<Result> RunInspect(const TraceCommand& command) {
  RP_ASSIGN(auto reader, OpenTrace(command.trace, command.options));
  TraceRequest row;
  uint64_t requests = 0, input = 0, output = 0, ids = 0, longest = 0;
  Nanos first = 0, last = 0;
  uint32_t block_tokens = 0;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&row));
    if (!found) break;
    if (requests++ == 0) first = row.time_ns;
    last = row.time_ns;
    input += row.input_tokens;
    output += row.output_tokens;
    ids += row.hash_ids.size();
    longest = std::max<uint64_t>(longest, row.input_tokens);
    block_tokens = row.block_tokens;
  }
  const double span = static_cast<double>(last - first) / kSecond;
  Result result;
  result.json = {{"trace", command.trace},
                 {"format", TraceFormatName(reader->format())},
                 {"requests", requests},
                 {"input_tokens", input},
                 {"output_tokens", output},
                 {"mean_input_tokens", static_cast<double>(input) / static_cast<double>(requests)},
                 {"longest_input_tokens", longest},
                 {"block_tokens", block_tokens},
                 {"block_references", ids},
                 {"span_seconds", span},
                 {"skipped_lines", reader->skipped_lines()}};
  for (const auto& [key, value] : result.json.items()) {
    result.text += key + " " + (value.is_string() ? value.get<std::string>() : value.dump()) + "\n";
  }
  result.text +=
      "a reuse after more than " + FormatDuration(last - first) + " cannot show in this trace\n";
  return result;
}

absl::StatusOr<Result> RunCeiling(const TraceCommand& command) {
  const std::vector<Nanos> bounds = {60 * kSecond, 300 * kSecond, 900 * kSecond, 3600 * kSecond};
  ReuseIntervals intervals(bounds);
  const auto cache = economics::MakeReferenceCache(ReferencePolicy::kFifo, 0);
  Tally tally;
  RP_TRY(ForEachRequest(command.trace, command.options, false,
                        [&](const BlockRequest& request, const TraceBlocks&) {
                          tally.Add(request, cache->Serve(request.blocks));
                          intervals.Add(request);
                        }));
  Result result;
  result.json = TallyJson(tally);
  result.text = "hit tokens    " + std::to_string(tally.hit_tokens) + " of " +
                std::to_string(tally.input_tokens) + "  " + Percent(tally.hit_rate()) + "\n";
  Json reuse = Json::array();
  const auto share = [](uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  for (size_t i = 0; i < bounds.size(); ++i) {
    const double tokens = share(intervals.tokens_within()[i], intervals.reused_tokens());
    const double tips = share(intervals.tips_within()[i], intervals.tips());
    reuse.push_back({{"within_seconds", bounds[i] / kSecond},
                     {"share_of_reused_tokens", tokens},
                     {"share_of_hit_ends", tips},
                     {"hit_tokens_with_this_ttl", intervals.tokens_within()[i]}});
    result.text += "reused within " + FormatDuration(bounds[i]) + ": " + Percent(tokens) +
                   " of tokens, " + Percent(tips) + " of hits' ends\n";
  }
  result.json["reuse"] = std::move(reuse);
  return result;
}

absl::StatusOr<Result> RunConvert(const TraceCommand& command) {
  RP_ASSIGN(auto reader, OpenTrace(command.trace, command.options));
  TraceRequest row;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&row));
    if (!found) break;
    if (row.block_tokens == 0) {
      return InvalidArgument("only a trace with hash ids can become one of format mooncake");
    }
    const std::string line = MooncakeRow(row) + "\n";
    std::fwrite(line.data(), 1, line.size(), stdout);
  }
  return Result{};
}

void AddTraceOptions(CLI::App* verb, std::string* trace, TraceOptions* options) {
  verb->add_option("trace", *trace, "A file, plain, .gz or .zst, or generated:...")->required();
  verb->add_option("--format", options->format, "mooncake, qwen, delta, azure or tokens");
  verb->add_option("--trace-block", options->block_tokens, "Tokens of a block of the trace");
  verb->add_flag("--lenient", options->lenient, "Leave broken lines out and count them");
}

}  // namespace

void AddSimulate(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("simulate", "What a cache would hit of a trace");
  const auto command = std::make_shared<SimulateCommand>();
  AddTraceOptions(verb, &command->trace, &command->options);
  verb->add_flag("--reference", command->reference, "Hit tokens by definition");
  verb->add_option("--policy", command->policy, "lru, lru-naive, fifo or belady")
      ->capture_default_str();
  verb->add_option("--capacity-blocks", command->capacity_blocks,
                   "The trace's blocks that fit; 0: all")
      ->capture_default_str();
  verb->add_flag("--partial-tails", command->partial_tails,
                 "Last blocks that are not full count too");
  verb->add_flag("--window-reference", command->window_reference,
                 "Windows found and replayed by definition");
  verb->add_flag("--curve", command->curve, "Hit rates of LRU caches of every size, in one pass");
  verb->add_option("--model", command->model, "Whose bytes a token has: v4.1-flash or nano")
      ->capture_default_str();
  verb->add_option_function<std::string>(
          "--window-ttl",
          [command](const std::string& text) { command->window_ttl_ns = *ParseDuration(text); },
          "How long a window is kept: 300s")
      ->check([](const std::string& text) { return Message(ParseDuration(text).status()); })
      ->type_name("DURATION");
  verb->footer(kSimulateFooter);
  OnRun(verb, globals, [command] { return RunSimulate(*command); });
}

void AddTrace(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("trace", "What a trace holds");
  verb->require_subcommand(1);
  const auto command = std::make_shared<TraceCommand>();
  const auto add = [&](const char* name, const char* help,
                       absl::StatusOr<Result> (*run)(const TraceCommand&)) {
    CLI::App* sub = verb->add_subcommand(name, help);
    AddTraceOptions(sub, &command->trace, &command->options);
    OnRun(sub, globals, [command, run] { return run(*command); });
  };
  add("inspect", "Format, span, lengths, and what its span cannot show", RunInspect);
  add("ceiling", "Hits of a cache without limit, and how soon blocks are used again", RunCeiling);
  add("convert", "The same as mooncake rows on stdout", RunConvert);
}

}  // namespace reprise::cli
