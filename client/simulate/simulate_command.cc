// `reprise simulate`: what machines of some size would hit of a trace, and what that is worth.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/cli/progress.h"
#include "client/simulate/reference_command.h"
#include "client/simulate/study_page.h"
#include "client/simulate/study_report.h"
#include "client/simulate/trace_options.h"
#include "client/trace/trace_writer.h"
#include "protocol/base/units.h"
#include "storage/economics/reference.h"

namespace reprise::cli {
namespace {

constexpr const char* kSimulateFooter =
    R"(Serves the trace as a daemon of that configuration would, with the daemon's own policies and a
virtual clock, in blocks of 128 tokens: lookup, load, window or replay, put of what was missing. The
figures are those of `reprise drive`, and the defaults those of the daemon.

--sweep NAME=VALUE,VALUE,.. runs every combination, over all cores; sizes and durations may be
FIRST..LAST:COUNT. Names are those of the options above: --sweep dram=64GiB,256GiB,1TiB.

--reference, --window-reference and --curve answer by definition instead, in the trace's own blocks:
a hit is the longest prefix of whole blocks that are resident before the request; afterwards all of
its blocks are. Outputs are not stored, and a prompt may hit whole.

Exit codes: 0 done, 2 an option, the profile or the trace is wrong (by its line).)";

struct SimulateCommand {
  ReferenceOptions reference_options;  // TRACE and how it is read, among others.
  bool reference = false;
  bool window_reference = false;
  bool curve = false;
  bool print_profile = false;

  SimulationSettings settings;
  std::vector<std::string> policies;  // --policy, for either meaning.
  TraceScale scale;
  std::string warm_up = "0%";
  std::vector<std::string> sweep;
  std::string profile_file;
  std::vector<std::string> profile_values;
  uint32_t threads = std::max(1u, std::thread::hardware_concurrency());
  std::string csv, html;
  bool belady = false;
};

absl::StatusOr<double> ParseShare(const std::string& text) {
  double percent = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, percent);
  if (error != std::errc() || std::string(rest, end) != "%" || percent < 0 || percent >= 100) {
    return InvalidArgument("--warm-up " + text + ": write a share of the requests, 0% to 99%");
  }
  return percent / 100;
}

// As it was typed.
std::string CommandLine() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line, word;
  while (std::getline(file, word, '\0')) {
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return absl::OkStatus();
  }
  std::ofstream file(path, std::ios::binary);
  if (!(file << text) || !file.flush()) return ErrnoStatus(errno, "cannot write " + path);
  return absl::OkStatus();
}

absl::StatusOr<economics::BlockTrace> ReadWithProgress(const SimulateCommand& command,
                                                       uint64_t* skipped_lines) {
  const SystemClock clock;
  Progress progress("reading", 0, Progress::Unit::kCount, clock);
  return ReadStoreTrace(
      command.reference_options.trace, command.reference_options.options, command.scale,
      [&progress](uint64_t requests) { progress.Update(requests); }, skipped_lines);
}

absl::StatusOr<std::string> FormatOf(const SimulateCommand& command) {
  if (command.reference_options.trace == "-") return std::string("stdin");
  RP_ASSIGN(const auto reader,
            OpenTrace(command.reference_options.trace, command.reference_options.options));
  return std::string(TraceFormatName(reader->format()));
}

absl::StatusOr<Result> RunSimulation(const SimulateCommand& command) {
  std::vector<SweepAxis> axes;
  for (const std::string& text : command.sweep) {
    RP_ASSIGN(SweepAxis axis, ParseSweepAxis(text));
    axes.push_back(std::move(axis));
  }
  RP_ASSIGN(const std::vector<SimulationSettings> points, SweepPoints(command.settings, axes));
  RP_ASSIGN(const CostProfile profile,
            CostProfile::LoadAndSet(command.profile_file, command.profile_values));
  RP_ASSIGN(const ModelCosts model, ModelCosts::For(command.settings.model));
  const Costs costs(model, profile);
  if (command.scale.repeat > 1 && command.reference_options.trace == "-") {
    return InvalidArgument("--repeat reads the trace again, which stdin cannot");
  }
  Study study;
  study.trace = command.reference_options.trace;
  study.command = CommandLine();
  study.scale = command.scale;
  study.run.settings = command.settings;
  RP_ASSIGN(study.warm_up, ParseShare(command.warm_up));
  RP_ASSIGN(study.format, FormatOf(command));
  RP_ASSIGN(const economics::BlockTrace trace, ReadWithProgress(command, &study.skipped_lines));

  if (!axes.empty()) {
    const SystemClock clock;
    Progress progress("simulating", points.size(), Progress::Unit::kCount, clock);
    RP_ASSIGN(study.sweep, RunPoints(trace, points, profile, study.warm_up, command.threads,
                                     [&progress](uint64_t done) { progress.Update(done); }));
  }
  Result result;
  const bool page = !command.html.empty();
  std::optional<economics::ReuseStudy> reuse;
  WindowEconomics windows;
  if (page || axes.empty()) {
    reuse.emplace(trace);
    windows = WeighWindows(trace, *reuse, command.settings.window_ttl_ns, costs);
  }
  if (page) {
    RP_ASSIGN(study.fingerprint, TraceFingerprint(study.trace));
    RP_TRY(RunWithSeries(trace, costs, &study));
    AddCurves(trace, costs, command.belady, command.threads, &study);
    RP_TRY(WriteFile(command.html, StudyPage(study, *reuse, windows, costs)));
    result.json = StudyJson(study, costs);
    result.text = StudyVerdict(study, costs) + "\n";
  } else if (axes.empty()) {
    RP_ASSIGN(std::vector<SimulatedRun> runs,
              RunPoints(trace, points, profile, study.warm_up, 1, {}));
    study.run = runs.front();
    result.json = StudyJson(study, costs);
    result.json.erase("ceiling");
  } else {
    result.json = {{"runs", Json::array()}, {"trace", study.trace}};
    for (const SimulatedRun& run : study.sweep) {
      RP_ASSIGN(const ModelCosts own, ModelCosts::For(run.settings.model));
      result.json["runs"].push_back(RunJson(run, Costs(own, profile)));
    }
  }
  if (reuse) result.json["windows"] = WindowEconomicsJson(windows);
  result.text +=
      axes.empty() ? RunText(study.run, costs) + RulesText(costs, windows) : SweepText(study.sweep);
  if (!command.csv.empty()) {
    const std::vector<SimulatedRun> one = {study.run};
    RP_TRY(WriteFile(command.csv, SweepCsv(axes.empty() ? one : study.sweep)));
    if (command.csv == "-") result.text.clear();
  }
  if (study.skipped_lines > 0) {
    result.text +=
        "skipped " + std::to_string(study.skipped_lines) + " broken lines of the trace\n";
  }
  return result;
}

absl::StatusOr<Result> RunSimulate(SimulateCommand command) {
  if (command.print_profile) {
    RP_ASSIGN(const CostProfile profile,
              CostProfile::LoadAndSet(command.profile_file, command.profile_values));
    return Result{.json = {{"profile", profile.ToToml()}}, .text = profile.ToToml()};
  }
  ReferenceOptions& reference = command.reference_options;
  if (reference.trace.empty()) return InvalidArgument("name a trace; --help says what one is");
  reference.model = command.settings.model;
  reference.window_ttl_ns = command.settings.window_ttl_ns;
  if (command.curve) return RunCurve(reference);
  if (command.window_reference) return RunWindowReference(reference);
  const std::string policy = command.policies.empty() ? "lru" : command.policies.back();
  if (command.reference) {
    reference.policy = policy;
    return RunReference(reference);
  }
  RP_ASSIGN(const Setting* setting, FindSetting("policy"));
  if (const absl::Status status = setting->set(&command.settings, policy); !status.ok()) {
    return InvalidArgument("--policy: " + Message(status) +
                           (economics::ParseReferencePolicy(policy).ok()
                                ? "; " + policy + " is a policy of --reference"
                                : ""));
  }
  return RunSimulation(command);
}

void AddReferenceOptions(CLI::App* verb, SimulateCommand* command) {
  verb->add_flag("--reference", command->reference, "Hit tokens by definition");
  verb->add_option("--policy", command->policies,
                   "Which block leaves DRAM: lru, s3fifo or fifo; of --reference: lru, lru-naive, "
                   "fifo or belady")
      ->default_str("lru");
  verb->add_option("--capacity-blocks", command->reference_options.capacity_blocks,
                   "Of --reference: the trace's blocks that fit; 0: all")
      ->capture_default_str();
  verb->add_flag("--partial-tails", command->reference_options.partial_tails,
                 "Of --reference: last blocks that are not full count too");
  verb->add_flag("--window-reference", command->window_reference,
                 "Windows found and replayed by definition");
  verb->add_flag("--curve", command->curve, "Hit rates of LRU caches of every size, in one pass");
  verb->add_option("--sample", command->reference_options.sample,
                   "Of --curve: from this share of the blocks, with an error estimate (SHARDS)")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
}

void AddSettings(CLI::App* verb, SimulateCommand* command,
                 const std::shared_ptr<SimulateCommand>& owner) {
  for (const Setting& setting : AllSettings()) {
    if (setting.name == "policy") continue;  // Means something to --reference too.
    verb->add_option_function<std::string>(
            "--" + std::string(setting.name),
            [owner, &setting](const std::string& text) {
              (void)setting.set(&owner->settings, text);
            },
            std::string(setting.help))
        ->check([&setting](const std::string& text) {
          SimulationSettings scratch;
          return Message(setting.set(&scratch, text));
        })
        ->type_name(std::string(setting.type))
        ->default_str(setting.get(command->settings));
  }
  verb->add_flag("--durable", command->settings.durable,
                 "Puts ask for SSD, whatever admission says");
}

}  // namespace

void AddSimulate(CLI::App* app, Globals* globals) {
  CLI::App* verb =
      app->add_subcommand("simulate", "What a cache would hit of a trace, and its worth");
  const auto command = std::make_shared<SimulateCommand>();
  AddTraceOptions(verb, &command->reference_options.trace, &command->reference_options.options);
  AddSettings(verb, command.get(), command);
  AddReferenceOptions(verb, command.get());
  verb->add_option("--warm-up", command->warm_up, "Share of the requests that are not counted")
      ->capture_default_str();
  verb->add_option("--repeat", command->scale.repeat,
                   "The trace so many times, one after the other")
      ->check(CLI::Range(1, 1000));
  verb->add_option("--sessions-times", command->scale.sessions,
                   "So many sessions in each one's place, which share nothing")
      ->check(CLI::Range(1, 10'000));
  verb->add_option("--context-times", command->scale.context, "Prompts so many times as long")
      ->check(CLI::Range(1, 1000));
  verb->add_option("--speed", command->scale.speed, "Requests come so many times as fast")
      ->check(CLI::Range(1e-6, 1e6));
  verb->add_option("--sweep", command->sweep,
                   "NAME=VALUE,VALUE,..; more than one: all combinations");
  verb->add_option("--threads", command->threads, "Configurations simulated at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  verb->add_option("--profile", command->profile_file, "Prices and bandwidths: a TOML file");
  verb->add_option("--set", command->profile_values, "One of them: gpu.usd_per_hour=2.5");
  verb->add_flag("--print-profile", command->print_profile, "Show the profile, with its sources");
  verb->add_option("--csv", command->csv, "Write a line for each configuration; - for stdout");
  verb->add_option("--html", command->html, "Write a report for people: one page, self-contained");
  verb->add_flag("--belady", command->belady, "Of --html: the optimum too, which takes a minute");
  verb->footer(kSimulateFooter);
  OnRun(verb, globals, [command] { return RunSimulate(*command); });
}

}  // namespace reprise::cli
