// `reprise trace`: what a trace holds, and the same trace in another form.
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "client/simulate/trace_blocks.h"
#include "client/simulate/trace_options.h"
#include "client/trace/trace_writer.h"
#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

using economics::BlockRequest;
using economics::ReferencePolicy;
using economics::ReuseIntervals;
using economics::Tally;

constexpr const char* kTraceInspectFooter =
    R"(Whether every id always follows the same id is checked: a trace where one does not is no chain of
prefixes, and its hit rates mean little.

Exit codes: 0 done, 2 an option or the trace is wrong (by its line).)";

constexpr const char* kTraceConvertFooter =
    R"(Writes to stdout. With --anonymise every id becomes the start of the SHA-256 of the key and the id,
sessions are numbered as they appear, and time begins at 0: with one key two traces still share
prefixes, without the key nobody can tell of what. Token ids become hashed blocks of 128.

Exit codes: 0 done, 2 an option or the trace is wrong (by its line).)";

struct TraceCommand {
  std::string trace;
  TraceOptions options;
};

// ---- inspect -----------------------------------------------------------------------------------

// Is an id always behind the same id? Ids are small numbers here.
class ChainCheck {
 public:
  void Add(std::span<const uint32_t> blocks) {
    uint32_t parent = kRoot;
    for (const uint32_t block : blocks) {
      if (block >= parents_.size()) parents_.resize(size_t{block} + 1, kUnseen);
      if (parents_[block] == kUnseen) parents_[block] = parent;
      if (parents_[block] != parent) ++breaks_;
      parent = block;
    }
  }
  uint64_t breaks() const { return breaks_; }

 private:
  static constexpr uint32_t kRoot = UINT32_MAX, kUnseen = UINT32_MAX - 1;
  std::vector<uint32_t> parents_;
  uint64_t breaks_ = 0;
};

struct Lengths {
  std::vector<uint32_t> values;
  Json Show() {
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
      return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
    };
    return {{"p50", at(0.5)}, {"p90", at(0.9)}, {"p99", at(0.99)}, {"max", values.back()}};
  }
};

void AddLine(const std::string& key, const Json& value, std::string* text) {
  char line[256];
  std::snprintf(line, sizeof(line), "%-26s %s\n", key.c_str(),
                (value.is_string() ? value.get<std::string>() : value.dump()).c_str());
  *text += line;
}

absl::StatusOr<Result> RunInspect(const TraceCommand& command) {
  RP_ASSIGN(const std::string fingerprint, TraceFingerprint(command.trace));
  RP_ASSIGN(auto reader, OpenTrace(command.trace, command.options));
  TraceRequest row;
  economics::BlockNumbers numbers;
  ChainCheck chains;
  Lengths inputs, outputs;
  std::unordered_map<int64_t, uint64_t> sessions;
  uint64_t input = 0, output = 0, ids = 0;
  Nanos first = 0, last = 0;
  uint32_t block_tokens = 0;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&row));
    if (!found) break;
    if (inputs.values.empty()) first = row.time_ns;
    last = row.time_ns;
    inputs.values.push_back(row.input_tokens);
    outputs.values.push_back(row.output_tokens);
    input += row.input_tokens;
    output += row.output_tokens;
    ids += row.hash_ids.size();
    block_tokens = row.block_tokens;
    if (row.session != kNoSession) ++sessions[row.session];
    // A partial tail's id may come with other lengths: whole blocks only.
    const size_t whole = block_tokens == 0 ? 0 : row.input_tokens / block_tokens;
    chains.Add(numbers.Of(row.hash_ids.first(std::min(row.hash_ids.size(), whole))));
  }
  const auto requests = static_cast<double>(inputs.values.size());
  Result result;
  result.json = {{"trace", command.trace},
                 {"sha256", fingerprint.empty() ? Json() : Json(fingerprint)},
                 {"format", TraceFormatName(reader->format())},
                 {"requests", inputs.values.size()},
                 {"sessions", sessions.empty() ? Json() : Json(sessions.size())},
                 {"span_seconds", static_cast<double>(last - first) / kSecond},
                 {"input_tokens", input},
                 {"output_tokens", output},
                 {"mean_input_tokens", static_cast<double>(input) / requests},
                 {"mean_output_tokens", static_cast<double>(output) / requests},
                 {"input_lengths", inputs.Show()},
                 {"output_lengths", outputs.Show()},
                 {"block_tokens", block_tokens},
                 {"block_references", ids},
                 {"distinct_blocks", numbers.size()},
                 {"chain_breaks", chains.breaks()},
                 {"skipped_lines", reader->skipped_lines()},
                 {"longest_visible_interval_seconds", static_cast<double>(last - first) / kSecond}};
  for (const auto& [key, value] : result.json.items()) AddLine(key, value, &result.text);
  result.text += "a reuse after more than " + FormatDuration(last - first) +
                 " cannot show in this trace; what comes near it shows too seldom\n";
  if (chains.breaks() > 0) {
    result.text += "an id has more than one parent: these ids do not name prefixes\n";
  }
  return result;
}

// ---- ceiling -----------------------------------------------------------------------------------

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
  result.json = {{"requests", tally.requests},
                 {"input_tokens", tally.input_tokens},
                 {"hit_tokens", tally.hit_tokens},
                 {"hit_requests", tally.hit_requests},
                 {"hit_rate", tally.hit_rate()}};
  result.text = "hit tokens    " + std::to_string(tally.hit_tokens) + " of " +
                std::to_string(tally.input_tokens) + "  " + PercentOf(tally.hit_rate()) + "\n";
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
    result.text += "reused within " + FormatDuration(bounds[i]) + ": " + PercentOf(tokens) +
                   " of tokens, " + PercentOf(tips) + " of hits' ends\n";
  }
  result.json["reuse"] = std::move(reuse);
  return result;
}

// ---- convert -----------------------------------------------------------------------------------

struct ConvertCommand : TraceCommand {
  std::string to = "mooncake";
  std::string key_file;
  bool anonymise = false;
};

absl::StatusOr<std::string> AnonymiserKey(const ConvertCommand& command) {
  if (command.key_file.empty()) {
    std::array<unsigned char, 32> random;
    if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
      return ErrnoStatus(errno, "no random bytes for a key");
    }
    return std::string(random.begin(), random.end());
  }
  std::ifstream file(command.key_file, std::ios::binary);
  std::ostringstream key;
  if (!file || !(key << file.rdbuf()) || key.str().size() < 16) {
    return InvalidArgument("--key-file " + command.key_file +
                           " must be a readable file of 16 bytes or more");
  }
  return key.str();
}

absl::StatusOr<Result> RunConvert(const ConvertCommand& command) {
  RP_ASSIGN(auto reader, OpenTrace(command.trace, command.options));
  std::unique_ptr<TraceAnonymiser> anonymiser;
  if (command.anonymise || !command.key_file.empty()) {
    RP_ASSIGN(const std::string key, AnonymiserKey(command));
    anonymiser = std::make_unique<TraceAnonymiser>(key);
  }
  const std::unique_ptr<TraceWriter> writer =
      command.to == "delta" ? MakeDeltaWriter() : MakeMooncakeWriter();
  TraceRequest row;
  std::vector<uint64_t> ids;
  for (;;) {
    RP_ASSIGN(const bool found, reader->Next(&row));
    if (!found) break;
    if (!row.tokens.empty()) HashTokens(&row, &ids);
    if (row.block_tokens == 0) {
      return InvalidArgument("a trace of lengths alone has no ids to convert");
    }
    if (anonymiser != nullptr) anonymiser->Anonymise(&row);
    RP_ASSIGN(const std::string lines, writer->Lines(row));
    if (std::fwrite(lines.data(), 1, lines.size(), stdout) != lines.size()) {
      return ErrnoStatus(errno, "cannot write to stdout");
    }
  }
  return Result{};
}

}  // namespace

std::string PercentOf(double share) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f %%", 100 * share);
  return text;
}

void AddTraceOptions(CLI::App* verb, std::string* trace, TraceOptions* options) {
  verb->add_option("trace", *trace, "A file, plain, .gz or .zst; - for stdin; or generated:...");
  verb->add_option("--format", options->format, "mooncake, qwen, delta, azure or tokens");
  verb->add_option("--trace-block", options->block_tokens, "Tokens of a block of the trace");
  verb->add_flag("--lenient", options->lenient, "Leave broken lines out and count them");
}

CLI::Option* AddDuration(CLI::App* verb, const std::string& name, Nanos* duration_ns,
                         const std::string& help) {
  return verb
      ->add_option_function<std::string>(
          name, [duration_ns](const std::string& text) { *duration_ns = *ParseDuration(text); },
          help)
      ->check([](const std::string& text) { return Message(ParseDuration(text).status()); })
      ->type_name("DURATION");
}

void AddTrace(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("trace", "What a trace holds");
  verb->require_subcommand(1);
  const auto command = std::make_shared<TraceCommand>();
  const auto add = [&](const char* name, const char* help,
                       absl::StatusOr<Result> (*run)(const TraceCommand&)) {
    CLI::App* sub = verb->add_subcommand(name, help);
    AddTraceOptions(sub, &command->trace, &command->options);
    sub->get_option("trace")->required();
    OnRun(sub, globals, [command, run] { return run(*command); });
    return sub;
  };
  add("inspect", "Format, span, lengths, chain, and what its span cannot show", RunInspect)
      ->footer(kTraceInspectFooter);
  add("ceiling", "Hits of a cache without limit, and how soon blocks are used again", RunCeiling);

  CLI::App* convert = verb->add_subcommand("convert", "The same as another format on stdout");
  const auto conversion = std::make_shared<ConvertCommand>();
  AddTraceOptions(convert, &conversion->trace, &conversion->options);
  convert->get_option("trace")->required();
  convert->add_option("--to", conversion->to, "mooncake, or delta, which is smaller")
      ->check(CLI::IsMember({"mooncake", "delta"}))
      ->capture_default_str();
  convert->add_flag("--anonymise", conversion->anonymise,
                    "Ids, sessions and time that tell nothing; with a key nobody keeps");
  convert->add_option("--key-file", conversion->key_file,
                      "The same with this file's bytes as the key, so that traces fit together");
  convert->footer(kTraceConvertFooter);
  OnRun(convert, globals, [conversion] { return RunConvert(*conversion); });
}

}  // namespace reprise::cli
