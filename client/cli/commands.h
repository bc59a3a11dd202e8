#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "client/client.h"

// The `reprise` command: each verb is a function Add<Verb>(app, globals) in a file of client/cli
// (or of the part it belongs to) that declares options and hangs an action on its subcommand with
// OnRun. AddVerbs in verbs.cc is the list of them.
namespace reprise::cli {

using Json = nlohmann::ordered_json;

// Interfaces: scripts rely on the numbers. `reprise --help` prints them.
enum ExitCode : int {
  kExitOk = 0,
  kExitMiss = 1,           // The answer is no: a miss, a failed check.
  kExitUsage = 2,          // The command line or an input file is wrong.
  kExitCannotConnect = 3,  // No daemon there, or it went away.
  kExitServerError = 4,    // The daemon, or the machine, could not do it.
  kExitTimeout = 5,        // The deadline passed first.
};

// Options before the verb, and what the verb left behind.
struct Globals {
  std::string address = "unix:./reprise-data/reprised.sock";
  Transport transport = Transport::kAuto;
  std::string rdma_device = "auto";
  bool json = false;  // One JSON object on stdout and nothing else, errors too.
  Nanos deadline_ns = 5 * kSecond;
  bool deadline_set = false;  // Long-running verbs choose their own deadline unless this is true.
  int exit_code = kExitOk;
};

// Declares the options of Globals.
void AddGlobals(CLI::App* app, Globals* globals);

// What they say of connections. `name` is shown by the daemon's status.
ClientOptions ClientOptionsOf(const Globals& globals, const std::string& name);

// What a verb answers: `json` is printed with --json, `text` (whole lines) without it.
struct Result {
  Json json = Json::object();
  std::string text;
  int exit_code = kExitOk;
};

// Prints the result, or the error as "reprise: ..." on stderr and, with --json, as
// {"error": {"code": ..., "message": ..., "exit_code": ...}} on stdout. Returns the exit code.
int Report(const Globals& globals, const absl::StatusOr<Result>& result);

// NOT_FOUND 1, INVALID_ARGUMENT 2, UNAVAILABLE 3, DEADLINE_EXCEEDED 5, anything else 4.
int ExitCodeOf(const absl::Status& status);

// `body` is called, once, when the command line names `verb`: absl::StatusOr<Result> body().
// Options of the verb live in an object that the body owns (std::shared_ptr captured by value).
template <typename Body>
void OnRun(CLI::App* verb, Globals* globals, Body body) {
  verb->callback(
      [globals, body = std::move(body)] { globals->exit_code = Report(*globals, body()); });
}

// A connection with the global options. `name` is shown by the daemon's status.
absl::StatusOr<std::unique_ptr<Client>> Connect(const Globals& globals, const std::string& name);

// ---- Verbs ------------------------------------------------------------------------------------
void AddStatus(CLI::App* app, Globals* globals);   // status, top
void AddExplain(CLI::App* app, Globals* globals);  // explain
void AddBlocks(CLI::App* app, Globals* globals);   // put, get
void AddAdmin(CLI::App* app, Globals* globals);    // evict, verify
void AddDoctor(CLI::App* app, Globals* globals);   // doctor
void AddCompletion(CLI::App* app);                 // completion
// Defined outside client/cli; each is listed in verbs.cc once it exists.
void AddDrive(CLI::App* app, Globals* globals);               // drive
void AddBench(CLI::App* app, Globals* globals);               // bench
void AddModel(CLI::App* app, Globals* globals);               // model
void AddGenerate(CLI::App* app, Globals* globals);            // generate
void AddBenchEngine(CLI::App* bench_verb, Globals* globals);  // bench engine
void AddSession(CLI::App* app, Globals* globals);             // session
void AddChat(CLI::App* app, Globals* globals);                // chat
void AddSimulate(CLI::App* app, Globals* globals);            // simulate
void AddTrace(CLI::App* app, Globals* globals);               // trace
void AddCalibrate(CLI::App* app, Globals* globals);           // calibrate
void AddRecord(CLI::App* app, Globals* globals);              // record

// All verbs, in the order in which help shows them.
void AddVerbs(CLI::App* app, Globals* globals);

}  // namespace reprise::cli
