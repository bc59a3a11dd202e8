#include <algorithm>
#include <memory>

#include "client/bench/report.h"
#include "client/bench/started_daemon.h"
#include "client/cli/commands.h"
#include "protocol/base/units.h"

// `reprise bench`: one verb for each part that is measured.
namespace reprise::cli {
namespace {

using bench::DaemonBenchOptions;
using bench::SsdBenchOptions;
using bench::StartedDaemon;

// An option that is a size ("2GiB"), checked as it is parsed.
template <typename Integer>
void AddBytes(CLI::App* verb, const std::string& name, Integer* value, const std::string& help) {
  const auto set = [value](const std::string& text) {
    *value = static_cast<Integer>(*ParseBytes(text));
  };
  verb->add_option_function<std::string>(name, set, help)
      ->check([](const std::string& text) { return Message(ParseBytes(text).status()); })
      ->type_name("SIZE")
      ->default_str(FormatBytes(*value));
}

void AddSeconds(CLI::App* verb, Nanos* duration_ns, const std::string& help) {
  const auto set = [duration_ns](double seconds) {
    *duration_ns = static_cast<Nanos>(seconds * static_cast<double>(kSecond));
  };
  verb->add_option_function<double>("--seconds", set, help)
      ->check(CLI::Range(0.01, 3600.0))
      ->default_str(std::to_string(*duration_ns / kSecond));
}

// ---- bench ssd

absl::StatusOr<Result> RunSsd(SsdBenchOptions* options, const std::string& only) {
  if (!only.empty()) {
    options->append = only == "append";
    options->append_durable = only == "append-durable";
    options->read = only == "read";
  }
  const SystemClock clock;
  RP_ASSIGN(const bench::SsdBenchFigures figures, bench::RunSsdBench(*options, clock));
  return bench::Report(*options, figures);
}

void AddSsd(CLI::App* bench_verb, Globals* globals) {
  CLI::App* verb = bench_verb->add_subcommand(
      "ssd", "The SSD tier by itself, without a daemon: appends, durable appends, random reads");
  const auto options = std::make_shared<SsdBenchOptions>();
  const auto only = std::make_shared<std::string>();
  const auto no_check = std::make_shared<bool>(false);
  verb->add_option("--dir", options->dir, "Folder for its file, on the disk to be measured")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  AddBytes(verb, "--size", &options->size_bytes, "Size of the file");
  AddBytes(verb, "--region-size", &options->region_bytes, "Bytes of a region");
  verb->add_option("--queue-depth", options->queue_depth, "Records at a time")
      ->capture_default_str();
  verb->add_option("--record-bytes", options->record_bytes, "Bytes of a record")
      ->capture_default_str();
  AddSeconds(verb, &options->duration_ns, "Length of each phase");
  verb->add_option("--only", *only, "One phase: append, append-durable or read")
      ->check(CLI::IsMember({"append", "append-durable", "read"}));
  verb->add_option("--seed", options->seed,
                   "Names the records that are written, and the order of reads")
      ->capture_default_str();
  verb->add_flag("--no-check", *no_check, "Do not check the records that are read");
  verb->add_flag("--keep", options->keep, "Leave the file, and use the one that is there");
  OnRun(verb, globals, [options, only, no_check] {
    options->check = !*no_check;
    return RunSsd(options.get(), *only);
  });
}

// ---- Benchmarks of a daemon

struct DaemonVerb {
  DaemonBenchOptions options;
  bool start = false;
  std::string dir = ".";
  std::string model = "v4.1-flash";
  std::vector<uint64_t> fills = {200'000, 8'000'000};
};

void AddDaemonOptions(CLI::App* verb, DaemonVerb* daemon) {
  verb->add_flag("--start", daemon->start,
                 "Start a reprised for this run instead of using the one at --address");
  verb->add_option("--dir", daemon->dir, "--start: where the folder of its socket is made")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  verb->add_option("--model", daemon->model, "--start: v4.1-flash or nano")->capture_default_str();
  AddSeconds(verb, &daemon->options.duration_ns, "Length of each measure, all rounds together");
  verb->add_option("--rounds", daemon->options.rounds, "The measures take turns this often")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
}

void AddWorkingSet(CLI::App* verb, DaemonVerb* daemon) {
  verb->add_option("--records", daemon->options.records, "Records in the working set")
      ->check(CLI::Range(1, 65'000))
      ->capture_default_str();
  verb->add_option("--batch", daemon->options.batch, "Records in a request")
      ->check(CLI::Range(1, 65'000))
      ->capture_default_str();
}

// Starts a daemon if asked to, and fills in the addresses.
absl::StatusOr<std::unique_ptr<StartedDaemon>> FindDaemon(const Globals& globals,
                                                          DaemonVerb* daemon) {
  DaemonBenchOptions& options = daemon->options;
  if (globals.deadline_set) options.deadline_ns = globals.deadline_ns;
  if (!daemon->start) {
    options.address = globals.address;
    return nullptr;
  }
  // Room for the working set, and for what a policy keeps aside.
  const uint64_t records = std::max(options.records, bench::kLookupChainBlocks);
  RP_ASSIGN(auto started,
            StartedDaemon::Start({.parent_dir = daemon->dir,
                                  .model = daemon->model,
                                  .dram_bytes = (records + records / 4 + 64) * kV41RecordBytes}));
  options.address = started->unix_address();
  options.tcp_address = started->tcp_address();
  return started;
}

absl::StatusOr<Result> RunDram(const Globals& globals, DaemonVerb* daemon) {
  RP_ASSIGN(const auto started, FindDaemon(globals, daemon));
  const SystemClock clock;
  RP_ASSIGN(const auto figures, bench::RunDramBench(daemon->options, clock));
  return bench::Report(daemon->options, figures);
}

absl::StatusOr<Result> RunWire(const Globals& globals, DaemonVerb* daemon) {
  RP_ASSIGN(const auto started, FindDaemon(globals, daemon));
  const SystemClock clock;
  DaemonBenchOptions options = daemon->options;
  if (options.address.rfind("tcp:", 0) == 0) {  // --address names the TCP route itself.
    options.tcp_address = options.address;
    options.address.clear();
  }
  options.transport = globals.transport;
  options.rdma_device = globals.rdma_device;
  RP_ASSIGN(const auto figures, bench::RunWireBench(options, clock));
  return bench::Report(options, figures);
}

absl::StatusOr<Result> RunLookup(const Globals& globals, DaemonVerb* daemon, bool in_process_only) {
  const SystemClock clock;
  bench::LookupBenchFigures figures;
  RP_TRY(bench::RunIndexLookups(daemon->options, daemon->fills, clock, &figures));
  if (!in_process_only) {
    RP_ASSIGN(const auto started, FindDaemon(globals, daemon));
    RP_TRY(bench::RunDaemonLookups(daemon->options, clock, &figures));
  }
  return bench::Report(daemon->options, figures);
}

void AddDaemonBenches(CLI::App* bench_verb, Globals* globals) {
  CLI::App* dram = bench_verb->add_subcommand(
      "dram", "Leases on records in a daemon's memory, and copies, beside memcpy");
  const auto dram_options = std::make_shared<DaemonVerb>();
  AddDaemonOptions(dram, dram_options.get());
  AddWorkingSet(dram, dram_options.get());
  OnRun(dram, globals, [globals, dram_options] { return RunDram(*globals, dram_options.get()); });

  CLI::App* wire = bench_verb->add_subcommand(
      "wire", "Records from and to a daemon, by every transport or the one of --transport");
  const auto wire_options = std::make_shared<DaemonVerb>();
  AddDaemonOptions(wire, wire_options.get());
  AddWorkingSet(wire, wire_options.get());
  wire->add_option("--tcp", wire_options->options.tcp_address,
                   "The daemon's tcp:host:port, beside the Unix socket of --address");
  wire->add_option("--verb", wire_options->options.verb, "get or put; both otherwise")
      ->check(CLI::IsMember({"get", "put"}));
  OnRun(wire, globals, [globals, wire_options] { return RunWire(*globals, wire_options.get()); });

  CLI::App* lookup = bench_verb->add_subcommand(
      "lookup", "Chains of 1024 known blocks: the index in this process, then a daemon");
  const auto lookup_options = std::make_shared<DaemonVerb>();
  const auto in_process_only = std::make_shared<bool>(false);
  AddDaemonOptions(lookup, lookup_options.get());
  lookup->add_option("--blocks", lookup_options->fills, "Sizes of the index in this process")
      ->delimiter(',')
      ->capture_default_str();
  lookup->add_flag("--in-process", *in_process_only, "Ask no daemon");
  OnRun(lookup, globals, [globals, lookup_options, in_process_only] {
    return RunLookup(*globals, lookup_options.get(), *in_process_only);
  });
}

}  // namespace

void AddBench(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand(
      "bench", "Measure a part by itself; tests/bench/compare sets it beside other programs");
  verb->require_subcommand(1);
  AddSsd(verb, globals);
  AddDaemonBenches(verb, globals);
}

}  // namespace reprise::cli
