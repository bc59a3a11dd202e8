// `reprise calibrate` and `reprise record`: what a simulation needs of this machine and of its
// traffic.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/economics/costs.h"
#include "client/economics/machine_speed.h"
#include "client/engine/engine_bench.h"
#include "client/session/session_options.h"
#include "client/simulate/trace_options.h"
#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

constexpr const char* kCalibrateFooter =
    R"(Measures the disk under --dir, a copy in memory and the engine, and writes a cost profile for
`reprise simulate --profile`. The engine is measured with --engine, and its rate is scaled to --model by
the operations of a token, so that the profile says what this machine would compute of it; it counts as
one GPU and one instance. Prices cannot be measured: they stay as they are, and are yours to write.

Exit codes: 0 measured, 2 an option is wrong, 4 the disk or the engine could not be used.)";

constexpr const char* kRecordFooter =
    R"(Writes every request of a running daemon as a row of a mooncake trace with blocks of 128 tokens:
`reprise simulate FILE --trace-block 128` reads it. Ids are hashes with a salt that the daemon draws for
this recording and forgets; token ids and texts are not in it. One recording at a time. Ctrl-C ends it,
and the file is whole.

Exit codes: 0 recorded, 2 an option is wrong, 3 no daemon there, 4 the daemon could not do it.)";

// ---- calibrate ---------------------------------------------------------------------------------

struct CalibrateCommand {
  std::string folder = ".";
  std::string file_size = "1GiB";
  Nanos duration_ns = 3 * kSecond;
  std::string engine = "nano";
  std::string model = "v4.1-flash";
  std::string out;
};

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d", &utc);
  return text;
}

// Three digits: more would be noise.
double Rounded(double value) {
  if (value <= 0) return 0;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 2);
  return std::round(value / unit) * unit;
}

absl::StatusOr<Result> RunCalibrate(const CalibrateCommand& command) {
  RP_ASSIGN(const uint64_t bytes, ParseBytes(command.file_size));
  if (bytes < 16_MiB || bytes % kPageBytes != 0) {
    return InvalidArgument("--file-size must be 16MiB or more, and whole pages");
  }
  RP_ASSIGN(const ModelCosts model, ModelCosts::For(command.model));
  const SystemClock clock;
  const auto disk_or = MeasureDisk(command.folder, bytes, command.duration_ns, clock);
  if (absl::IsNotFound(disk_or.status()) || absl::IsPermissionDenied(disk_or.status())) {
    return InvalidArgument(Message(disk_or.status()) +
                           "; --dir names a folder where a file can be written");
  }
  RP_ASSIGN(const DiskSpeed disk, disk_or);
  const double copy = MeasureCopyBytesPerSecond(command.duration_ns, clock);

  CostProfile profile;
  std::map<std::string, std::string> measured;
  const std::string when = "Measured on this machine, " + Today() + ": ";
  const auto set = [&](const std::string& key, double* field, double value, const char* how) {
    *field = Rounded(value);
    measured[key] = when + how;
  };
  set("ssd.read_gb_per_second", &profile.ssd.read_gb_per_second, disk.read_bytes_per_second / 1e9,
      disk.direct ? "records at random, 32 in flight, O_DIRECT." : "through the page cache.");
  set("ssd.write_gb_per_second", &profile.ssd.write_gb_per_second,
      disk.write_bytes_per_second / 1e9, "records in sequence, 32 in flight.");
  set("dram.gb_per_second", &profile.dram.gb_per_second, copy / 1e9,
      "records copied at random by one core.");
  Result result;
  double engine_rate = 0;
  if (!command.engine.empty()) {
    RP_ASSIGN(const ModelCosts own, ModelCosts::For(command.engine));
    RP_ASSIGN(const bench::EngineBenchFigures engine,
              bench::RunEngineBench({.model = command.engine,
                                     .prefill_tokens = 2048,
                                     .decode_tokens = 16,
                                     .long_tokens = 4096,
                                     .rounds = 1},
                                    clock));
    engine_rate = engine.prefill_tokens_per_second;
    const double per_token = own.PrefillFlops(0, 2048) / 2048;
    const double length = profile.gpu.prefill_at_tokens;
    const double scaled = engine_rate * per_token * length /
                          (model.PrefillFlops(0, length) + model.TailFlops(length));
    set("gpu.prefill_tokens_per_second", &profile.gpu.prefill_tokens_per_second, scaled,
        "the engine's rate, scaled by the operations of a token.");
    profile.gpu.per_instance = 1;
    measured["gpu.per_instance"] = when + "this machine's engine.";
  }
  const std::string toml = profile.ToToml(measured);
  result.json = {{"ssd_read_gb_per_second", profile.ssd.read_gb_per_second},
                 {"ssd_write_gb_per_second", profile.ssd.write_gb_per_second},
                 {"ssd_direct", disk.direct},
                 {"dram_gb_per_second", profile.dram.gb_per_second},
                 {"engine_tokens_per_second", engine_rate},
                 {"prefill_tokens_per_second", profile.gpu.prefill_tokens_per_second},
                 {"model", command.model}};
  if (command.out.empty()) {
    result.text = toml;
    return result;
  }
  std::ofstream file(command.out);
  if (!(file << toml) || !file.flush()) return ErrnoStatus(errno, "cannot write " + command.out);
  result.json["file"] = command.out;
  char text[256];
  std::snprintf(
      text, sizeof(text),
      "disk   %.3g GB/s read, %.3g written\ncopy   %.3g GB/s\nengine %.3g tokens/s of %s\n",
      profile.ssd.read_gb_per_second, profile.ssd.write_gb_per_second, profile.dram.gb_per_second,
      profile.gpu.prefill_tokens_per_second, command.model.c_str());
  result.text = text + ("written to " + command.out) + "\n";
  return result;
}

// ---- record ------------------------------------------------------------------------------------

struct RecordCommand {
  std::string file;
  Nanos duration_ns = 600 * kSecond;
  ApiOptions api;
};

absl::StatusOr<Result> RunRecord(const RecordCommand& command) {
  const auto seconds = static_cast<uint64_t>(command.duration_ns / kSecond);
  if (seconds < 1 || seconds > 7 * 86'400) {
    return InvalidArgument("--for must lie between 1s and 7d");
  }
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  std::ofstream file(command.file, std::ios::binary | std::ios::trunc);
  if (!file) return InvalidArgument("cannot write " + command.file);
  const SystemClock clock;
  Progress progress("recording", 0, Progress::Unit::kCount, clock);
  uint64_t requests = 0;
  const absl::Status status =
      api->GetLines("/trace?seconds=" + std::to_string(seconds), [&](std::string_view line) {
        if (line.empty()) return true;
        file << line << '\n';
        progress.Update(++requests);
        return static_cast<bool>(file.flush());
      });
  if (!file) return ResourceExhausted("cannot write all of " + command.file);
  RP_TRY(status);
  RP_ASSIGN(const Json daemon, api->Get("/status"));
  const uint64_t dropped = daemon.value("trace_dropped", uint64_t{0});
  Result result;
  result.json = {{"file", command.file},
                 {"requests", requests},
                 {"dropped", dropped},
                 {"block_tokens", kBlockTokens}};
  result.text = command.file + ": " + std::to_string(requests) +
                " requests; read it with --trace-block " + std::to_string(kBlockTokens) + "\n";
  if (dropped > 0) result.text += std::to_string(dropped) + " requests were not recorded\n";
  return result;
}

}  // namespace

void AddCalibrate(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("calibrate", "A cost profile from this machine's speed");
  const auto command = std::make_shared<CalibrateCommand>();
  verb->add_option("--dir", command->folder, "Where the disk is measured")->capture_default_str();
  verb->add_option("--file-size", command->file_size, "Of the file that is written and read there")
      ->capture_default_str();
  AddDuration(verb, "--for", &command->duration_ns, "How long each measurement takes: 3s");
  verb->add_option("--engine", command->engine, "The model to run; empty: none")
      ->capture_default_str();
  verb->add_option("--model", command->model, "The model that the profile is for")
      ->capture_default_str();
  verb->add_option("--out", command->out, "Write the profile there; else it is printed");
  verb->footer(kCalibrateFooter);
  OnRun(verb, globals, [command] { return RunCalibrate(*command); });
}

void AddRecord(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("record", "A daemon's requests as an anonymous trace");
  const auto command = std::make_shared<RecordCommand>();
  verb->add_option("FILE", command->file, "Where to write it")->required();
  AddDuration(verb, "--for", &command->duration_ns, "How long: 10m");
  AddApiOptions(verb, &command->api);
  verb->footer(kRecordFooter);
  OnRun(verb, globals, [command] { return RunRecord(*command); });
}

}  // namespace reprise::cli
