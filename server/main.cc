// reprised: the daemon. Configuration, then Server::Start, then Server::Run.
#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>

#include "server/config.h"
#include "server/log.h"
#include "server/server.h"

namespace {

using reprise::server::Config;

absl::StatusOr<Config> ReadConfig(const std::string& path) {
  Config config = Config::Defaults();
  if (!path.empty()) {
    RP_ASSIGN(config, Config::Load(path));
  }
  RP_ASSIGN(const auto machine, reprise::server::ReadMachineFacts(config.data_dir));
  RP_TRY(config.Validate(machine));
  return config;
}

absl::Status Serve(const Config& config) {
  // Signals are for Server::Run alone: blocked here, before any thread exists.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  RP_ASSIGN(const auto level, reprise::server::ParseLogLevel(config.log.level));
  reprise::server::LogStart({.level = level, .json = config.log.format == "json"});
  RP_ASSIGN(const auto server, reprise::server::Server::Start(config));
  server->Run();
  return absl::OkStatus();
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "reprised: %s\n", reprise::Message(status).c_str());
  return 1;
}

// The only exceptions that leave the code are the standard library's, of threads that the system
// refuses to start.
[[noreturn]] void EndWithReason() {
  try {
    if (const std::exception_ptr error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::system_error& error) {
    std::fprintf(stderr,
                 "reprised: cannot start a thread: %s; raise the limit on processes (ulimit -u, or "
                 "pids.max of its container)\n",
                 error.what());
    std::_Exit(1);
  } catch (...) {
  }
  std::abort();
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(EndWithReason);
  CLI::App app("reprised: keeps and serves KV blocks over DRAM and SSD");
  std::string path;
  bool check = false;
  bool print = false;
  app.add_option("--config", path, "TOML file; without one, embedded defaults in ./reprise-data");
  app.add_flag("--check-config", check, "Validate the configuration on this machine, and exit");
  app.add_flag("--print-config", print, "Print the configuration with comments, and exit");
  app.set_version_flag("--version", RP_VERSION);
  CLI11_PARSE(app, argc, argv);

  const auto config = ReadConfig(path);
  if (!config.ok()) return Fail(config.status());
  if (print) {
    std::fputs(config->ToToml().c_str(), stdout);
    return 0;
  }
  if (check) {
    std::puts("configuration ok");
    return 0;
  }
  const absl::Status status = Serve(*config);
  return status.ok() ? 0 : Fail(status);
}
