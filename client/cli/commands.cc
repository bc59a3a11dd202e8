#include "client/cli/commands.h"

#include <algorithm>
#include <cstdio>

#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

// Abseil's names, in the lower case that JSON consumers of ours see elsewhere.
std::string CodeName(absl::StatusCode code) {
  std::string name = absl::StatusCodeToString(code);
  for (char& c : name) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return name;
}

void Print(std::FILE* to, const std::string& text) { std::fwrite(text.data(), 1, text.size(), to); }

}  // namespace

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--address,--server", globals->address,
                  "The daemon: unix:/path/to/socket or tcp:host:port")
      ->envname("REPRISE_ADDRESS")
      ->capture_default_str();
  const std::map<std::string, Transport> transports = {{"auto", Transport::kAuto},
                                                       {"shm", Transport::kShared},
                                                       {"rdma", Transport::kRdma},
                                                       {"tcp", Transport::kTcp}};
  app->add_option("--transport", globals->transport,
                  "How records travel: auto, shm (a Unix socket), rdma or tcp (a tcp: address)")
      ->transform(CLI::CheckedTransformer(transports).description(""))
      ->type_name("NAME")
      ->default_str("auto");
  app->add_option("--rdma-device", globals->rdma_device,
                  "auto, off, mlx5_0, mlx5_0:1 (a port), mlx5_0:1/3 (a GID index)")
      ->type_name("NAME")
      ->capture_default_str();
  app->add_flag("--json", globals->json, "Print one JSON object, and nothing else, on stdout");
  const auto set_deadline = [globals](const std::string& text) {
    globals->deadline_ns = *ParseDuration(text);
    globals->deadline_set = true;
  };
  app->add_option_function<std::string>("--deadline", set_deadline, "Give up after this long: 5s")
      ->check([](const std::string& text) { return Message(ParseDuration(text).status()); })
      ->type_name("DURATION");
}

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kNotFound:
      return kExitMiss;
    case absl::StatusCode::kInvalidArgument:
      return kExitUsage;
    case absl::StatusCode::kUnavailable:
      return kExitCannotConnect;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimeout;
    default:
      return kExitServerError;
  }
}

int Report(const Globals& globals, const absl::StatusOr<Result>& result) {
  if (result.ok()) {
    Print(stdout, globals.json ? result->json.dump(2) + "\n" : result->text);
    return result->exit_code;
  }
  const int exit_code = ExitCodeOf(result.status());
  if (globals.json) {
    const Json error = {{"error",
                         {{"code", CodeName(result.status().code())},
                          {"message", Message(result.status())},
                          {"exit_code", exit_code}}}};
    Print(stdout, error.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  Print(stderr, "reprise: " + Message(result.status()) + "\n");
  return exit_code;
}

ClientOptions ClientOptionsOf(const Globals& globals, const std::string& name) {
  ClientOptions options;
  options.address = globals.address;
  options.transport = globals.transport;
  options.rdma_device = globals.rdma_device;
  options.name = name;
  options.deadline_ns = globals.deadline_ns;
  options.connect_timeout_ns = std::min(options.connect_timeout_ns, globals.deadline_ns);
  return options;
}

absl::StatusOr<std::unique_ptr<Client>> Connect(const Globals& globals, const std::string& name) {
  return Client::Connect(ClientOptionsOf(globals, name));
}

}  // namespace reprise::cli
