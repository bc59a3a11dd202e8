#include "client/drive/drive_command.h"

#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "client/cli/progress.h"
#include "client/drive/client_store.h"
#include "client/drive/report.h"
#include "protocol/record/record_layout.h"

namespace reprise {
namespace {

// A durable put of many records waits for the disk.
constexpr Nanos kDriveDeadline = 60 * kSecond;

constexpr const char* kDriveFooter =
    R"(For each request of the trace: lookup, load of the blocks that hit (every byte is compared with
what its block's hash derives), load of the window or a replay counted, put of the blocks that
were missing, put of the window at the end of the prompt's last whole trace block.

hit_tokens are complete blocks of 128 tokens that were found and loaded, times 128; hit_rate is
hit_tokens over input_tokens; hits_by_tier splits hit_tokens. A request is an exact hit (blocks
and window), a replayed hit (blocks, no window; 128 tokens are replayed) or a miss (no block).
Output tokens are not stored. Figures of the SSD and of the window pool's peak are the daemon's
own: run drive alone on a fresh daemon for exact ones. TTLs of the daemon run by the clock, so
use --speed trace to see what they do.

TRACE "generated" needs no file; these are its options with their defaults:
generated:sessions=16,turns=12,seed=1,block=64,kinds=3,system=6000,append=1200,output=350,
think_ms=12000,fork_per_mille=40,pause_per_mille=30,input_max=200000)";

// Writes to SSD go on after the puts were acknowledged: waits, within reason, for the counters to
// stand.
constexpr Nanos kSettlePause = 200 * kMillisecond;
constexpr uint32_t kSettlePausesMax = 50;

absl::StatusOr<StoreCounters> SettledCounters(DriveStore* store, const WaitingClock& clock) {
  RP_ASSIGN(StoreCounters counters, store->Counters());
  for (uint32_t i = 0; i < kSettlePausesMax; ++i) {
    clock.Sleep(kSettlePause);
    RP_ASSIGN(const StoreCounters later, store->Counters());
    const bool stands = later.ssd_written_bytes == counters.ssd_written_bytes;
    counters = later;
    if (stands) break;
  }
  return counters;
}

class ProgressObserver final : public DriveObserver {
 public:
  ProgressObserver(uint64_t requests_max, const Clock& clock)
      : progress_("drive", requests_max, cli::Progress::Unit::kCount, clock) {}
  void OnSent(uint64_t requests) override { progress_.Update(requests); }

 private:
  cli::Progress progress_;
};

absl::StatusOr<cli::Result> WriteTrace(TraceReader* trace, const DriveCommand& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen(command.write_trace.c_str(), "we"), &std::fclose);
  if (file == nullptr) return ErrnoStatus(errno, "cannot write " + command.write_trace);
  uint64_t requests = 0, input_tokens = 0;
  TraceRequest request;
  while (command.options.requests_max == 0 || requests < command.options.requests_max) {
    RP_ASSIGN(const bool found, trace->Next(&request));
    if (!found) break;
    if (request.hash_ids.empty() && request.input_tokens >= request.block_tokens) {
      return InvalidArgument(
          "--write-trace writes the mooncake format, which needs hash ids; a trace "
          "of format " +
          std::string(TraceFormatName(trace->format())) + " has none");
    }
    const std::string row = MooncakeRow(request) + "\n";
    if (std::fwrite(row.data(), 1, row.size(), file.get()) != row.size()) {
      return ErrnoStatus(errno, "cannot write " + command.write_trace);
    }
    ++requests;
    input_tokens += request.input_tokens;
  }
  if (std::fflush(file.get()) != 0)
    return ErrnoStatus(errno, "cannot write " + command.write_trace);
  cli::Result result;
  result.json = {
      {"requests", requests}, {"input_tokens", input_tokens}, {"file", command.write_trace}};
  result.text = command.write_trace + ": " + std::to_string(requests) + " requests, " +
                std::to_string(input_tokens) + " input tokens\n";
  return result;
}

cli::Json ConfigJson(const DriveCommand& command, const TraceReader& trace) {
  return {{"trace", command.trace},
          {"format", TraceFormatName(trace.format())},
          {"skipped_lines", trace.skipped_lines()},
          {"model", command.model},
          {"speed", command.speed},
          {"connections", command.options.connections},
          {"durable", command.options.request.durable},
          {"verify", command.options.request.verify},
          {"window_bytes", command.options.request.window_bytes},
          {"limit", command.options.requests_max},
          {"sessions", command.options.sessions_max}};
}

absl::Status Resolve(const Manifest& manifest, DriveCommand* command) {
  RP_ASSIGN(command->options.speed, ParseSpeed(command->speed));
  RequestDriverOptions& request = command->options.request;
  request.name_space = NamespaceOf(manifest);
  request.payload_bytes = manifest.payload_bytes;
  if (command->window_bytes < 0) {
    RP_ASSIGN(request.window_bytes, WindowBytesOf(command->model));
  } else if (command->window_bytes > static_cast<int64_t>(wire::kDataBytesMax)) {
    return InvalidArgument("--window-bytes " + std::to_string(command->window_bytes) +
                           ": a snapshot is at most " + std::to_string(wire::kDataBytesMax) +
                           " bytes");
  } else {
    request.window_bytes = static_cast<uint32_t>(command->window_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint32_t> WindowBytesOf(const std::string& model) {
  if (model == "v4.1-flash") return 2'703'360u;  // 40 layers of 128 rows of 528 bytes.
  if (model == "nano") return 202'752u;          // 12 layers of 128 rows of 132 bytes.
  return InvalidArgument("unknown model \"" + model + "\": use v4.1-flash or nano");
}

absl::StatusOr<double> ParseSpeed(const std::string& text) {
  if (text == "max") return 0.0;
  if (text == "trace") return 1.0;
  double speed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), speed);
  if (error != std::errc() || end != text.data() + text.size() ||
      !(speed >= 1e-3 && speed <= 1e9)) {
    return InvalidArgument("--speed " + text +
                           ": use max, trace, or how many times as fast as the " +
                           "trace, 0.001 to 1000000000");
  }
  return speed;
}

absl::StatusOr<cli::Result> RunDriveCommand(DriveCommand command, const cli::Globals& globals) {
  const auto trace_or = OpenTrace(command.trace, command.trace_options);
  if (!trace_or.ok())
    return InvalidArgument(Message(trace_or.status()));  // The user's, whatever it was.
  const std::unique_ptr<TraceReader>& trace = *trace_or;
  if (!command.write_trace.empty()) return WriteTrace(trace.get(), command);
  RP_ASSIGN(const Manifest manifest, DriveManifest(command.model, command.salt));
  RP_TRY(Resolve(manifest, &command));

  ClientOptions client = cli::ClientOptionsOf(globals, "drive");
  client.deadline_ns = globals.deadline_set ? globals.deadline_ns : kDriveDeadline;
  ClientStoreMaker stores(client, manifest);
  RP_ASSIGN(const auto status_store, stores.Connect());
  const SystemWaitingClock clock;
  RP_ASSIGN(const StoreCounters before, SettledCounters(status_store.get(), clock));
  std::optional<ProgressObserver> observer(std::in_place, command.options.requests_max, clock);
  RP_ASSIGN(const DriveFigures figures,
            Drive(trace.get(), &stores, command.options, &clock, &*observer));
  observer.reset();  // Erases its line.
  // The daemon may have restarted on the way: a new connection.
  RP_ASSIGN(const auto last_store, stores.Connect());
  RP_ASSIGN(const StoreCounters after, SettledCounters(last_store.get(), clock));

  cli::Result result;
  result.json = DriveJson(figures, before, after);
  result.json["config"] = ConfigJson(command, *trace);
  result.text = DriveTable(figures, before, after);
  if (trace->skipped_lines() > 0) {
    result.text +=
        "skipped " + std::to_string(trace->skipped_lines()) + " broken lines of the trace\n";
  }
  if (figures.wrong_bytes > 0) result.exit_code = cli::kExitMiss;
  return result;
}

namespace cli {

void AddDrive(CLI::App* app, Globals* globals) {
  CLI::App* const verb =
      app->add_subcommand("drive", "Play a trace against the daemon, and check every byte");
  const auto command = std::make_shared<DriveCommand>();
  verb->footer(kDriveFooter);
  verb->add_option("TRACE", command->trace,
                   "A file (plain, .gz or .zst), or generated[:option=value,...]")
      ->required();
  verb->add_option(
      "--format", command->trace_options.format,
      "mooncake, qwen, delta, azure or tokens; found out from the first line otherwise");
  verb->add_option("--trace-block", command->trace_options.block_tokens,
                   "Tokens behind a hash id (mooncake 512, qwen 16)");
  verb->add_flag("--lenient", command->trace_options.lenient,
                 "Leave broken lines out and count them");
  verb->add_option("--limit", command->options.requests_max, "Only the first N requests");
  verb->add_option("--sessions", command->options.sessions_max,
                   "Only the requests of the first N sessions");
  verb->add_option(
          "--speed", command->speed,
          "max: as fast as the daemon answers; trace: at the trace's times; N: N times as fast")
      ->capture_default_str();
  verb->add_option("--connections", command->options.connections,
                   "Threads with a connection each; a session stays on one")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  verb->add_flag("--durable", command->options.request.durable,
                 "Puts are acknowledged when they are on SSD");
  verb->add_option("--window-bytes", command->window_bytes,
                   "Bytes of a window snapshot; 0: no windows (v4.1-flash 2703360, nano 202752)")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("--model", command->model,
                   "v4.1-flash or nano: what the daemon is configured for")
      ->capture_default_str();
  verb->add_flag("--verify,!--no-verify", command->options.request.verify,
                 "Compare every byte that is loaded (on unless --no-verify)");
  verb->add_option("--salt", command->salt, "Tenant salt: runs with different salts share nothing");
  verb->add_option("--write-trace", command->write_trace,
                   "Write the trace to a file in mooncake format, and do nothing else");
  OnRun(verb, globals, [command, globals] { return RunDriveCommand(*command, *globals); });
}

}  // namespace cli
}  // namespace reprise
