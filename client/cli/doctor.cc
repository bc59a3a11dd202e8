#include "client/cli/commands.h"
#include "client/cli/doctor_checks.h"

namespace reprise::cli {
namespace {

Check CheckDaemon(const Globals& globals) {
  const auto client = Connect(globals, "reprise doctor");
  if (!client.ok()) {
    return {"daemon", Check::Level::kFail, Message(client.status()),
            "start it: reprised --config FILE; or name another with --address"};
  }
  const std::string& note = (*client)->transport_note();
  return {"daemon", Check::Level::kOk,
          "reprised " + (*client)->server_version() + " for " + (*client)->model() + " at " +
              globals.address + ", records by " + (*client)->transport() +
              (note.empty() ? "" : " (no RDMA: " + note + ")"),
          ""};
}

Result Summary(const std::vector<Check>& checks) {
  Result result;
  Json lines = Json::array();
  bool failed = false;
  for (const Check& check : checks) {
    lines.push_back({{"check", check.name},
                     {"level", LevelName(check.level)},
                     {"found", check.found},
                     {"advice", check.advice}});
    const std::string level = LevelName(check.level);
    result.text += level + std::string(6 - level.size(), ' ') + check.name +
                   std::string(check.name.size() < 14 ? 14 - check.name.size() : 1, ' ') +
                   check.found + "\n";
    if (!check.advice.empty()) result.text += std::string(20, ' ') + "-> " + check.advice + "\n";
    failed = failed || check.level == Check::Level::kFail;
  }
  result.json = {{"ok", !failed}, {"checks", lines}};
  result.exit_code = failed ? kExitMiss : kExitOk;
  return result;
}

}  // namespace

void AddDoctor(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("doctor", "Checks this machine and the daemon");
  const auto directory = std::make_shared<std::string>("./reprise-data");
  verb->add_option("--data-dir", *directory, "The daemon's data directory")->capture_default_str();
  OnRun(verb, globals, [globals, directory]() -> absl::StatusOr<Result> {
    return Summary({CheckDaemon(*globals), CheckIoUring(), CheckMemlock(), CheckHugePages(),
                    CheckCongestionControl(), CheckRdma(), CheckGpu(), CheckDirectIo(*directory)});
  });
}

}  // namespace reprise::cli
