#include <poll.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "client/cli/commands.h"
#include "client/cli/status_view.h"
#include "client/economics/ledger_worth.h"
#include "protocol/base/units.h"

namespace reprise::cli {
namespace {

absl::StatusOr<Json> ReadStatus(Client* client) {
  RP_ASSIGN(const std::string text, client->StatusJson());
  Json status = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!status.is_object()) return DataLoss("the daemon's status is not a JSON object");
  return status;
}

struct StatusOptions {
  bool money = false;
  std::string model;  // Empty: the daemon's.
  std::string profile_file;
  std::vector<std::string> profile_values;
};

absl::StatusOr<Result> RunStatus(const Globals& globals, const StatusOptions& options) {
  RP_ASSIGN(const auto client, Connect(globals, "reprise status"));
  RP_ASSIGN(Json status, ReadStatus(client.get()));
  if (options.money) {
    RP_ASSIGN(const CostProfile profile,
              CostProfile::LoadAndSet(options.profile_file, options.profile_values));
    RP_ASSIGN(const ModelCosts model,
              ModelCosts::For(options.model.empty() ? client->model() : options.model));
    status["money"] = LedgerWorth(status, Costs(model, profile));
    return Result{.json = status, .text = ObjectText(status["money"])};
  }
  return Result{.json = status, .text = ObjectText(status)};
}

struct TopOptions {
  std::string interval = "1s";
  bool once = false;
};

// Redraws until the daemon goes away or the person interrupts it; with --once, measures one
// interval.
absl::StatusOr<Result> RunTop(const Globals& globals, const TopOptions& options) {
  RP_ASSIGN(const Nanos interval_ns, ParseDuration(options.interval));
  if (interval_ns < 10 * kMillisecond || interval_ns > 3600 * kSecond) {
    return InvalidArgument("--interval must lie between 10ms and 1h");
  }
  RP_ASSIGN(const auto client, Connect(globals, "reprise top"));
  const SystemClock clock;
  Instant before_at = clock.Now();
  RP_ASSIGN(Json before, ReadStatus(client.get()));
  while (true) {
    poll(nullptr, 0, static_cast<int>(interval_ns / kMillisecond));
    const Instant now_at = clock.Now();
    RP_ASSIGN(Json now, ReadStatus(client.get()));
    const double seconds = static_cast<double>(now_at - before_at) / static_cast<double>(kSecond);
    const std::string text = RatesText(before, now, seconds);
    if (options.once || globals.json) {
      return Result{.json = RatesJson(before, now, seconds), .text = text};
    }
    std::fprintf(stdout, "\033[H\033[J%s  every %s\n\n%s", globals.address.c_str(),
                 FormatDuration(interval_ns).c_str(), text.c_str());
    std::fflush(stdout);
    before = std::move(now);
    before_at = now_at;
  }
}

}  // namespace

void AddStatus(CLI::App* app, Globals* globals) {
  CLI::App* status = app->add_subcommand("status", "What the daemon holds and does");
  const auto status_options = std::make_shared<StatusOptions>();
  status->add_flag("--money", status_options->money,
                   "What the ledger is worth: GPU time saved against tiers held and worn");
  status->add_option("--model", status_options->model, "Of --money: priced as; the daemon's else");
  status->add_option("--profile", status_options->profile_file,
                     "Of --money: a TOML file of prices");
  status->add_option("--set", status_options->profile_values, "One of them: gpu.usd_per_hour=2.5");
  OnRun(status, globals,
        [globals, status_options] { return RunStatus(*globals, *status_options); });

  CLI::App* top = app->add_subcommand("top", "Rates per tier, refreshed");
  const auto options = std::make_shared<TopOptions>();
  top->add_option("--interval", options->interval, "Time between two looks")->capture_default_str();
  top->add_flag("--once", options->once, "Measure one interval, print it and end");
  OnRun(top, globals, [globals, options] { return RunTop(*globals, *options); });
}

}  // namespace reprise::cli
