#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>

#include "client/cli/commands.h"
#include "protocol/base/units.h"

namespace {

using reprise::cli::Globals;

constexpr char kFooter[] =
    "Exit codes: 0 done, 1 the answer is no (a miss, a failed check), 2 wrong usage,\n"
    "3 no daemon there, 4 the daemon or the machine could not do it, 5 deadline passed.";

void AddGlobals(CLI::App* app, Globals* globals) {
  app->add_option("--address,--server", globals->address,
                  "The daemon: unix:/path/to/socket or tcp:host:port")
      ->envname("REPRISE_ADDRESS")
      ->capture_default_str();
  app->add_flag("--json", globals->json, "Print one JSON object, and nothing else, on stdout");
  const auto set_deadline = [globals](const std::string& text) {
    globals->deadline_ns = *reprise::ParseDuration(text);
    globals->deadline_set = true;
  };
  app->add_option_function<std::string>("--deadline", set_deadline, "Give up after this long: 5s")
      ->check([](const std::string& text) {
        return reprise::Message(reprise::ParseDuration(text).status());
      })
      ->type_name("DURATION");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Talks to reprised, the KV-cache store: what it holds, puts, gets, checks.",
               "reprise");
  Globals globals;
  AddGlobals(&app, &globals);
  app.footer(kFooter);
  app.fallthrough();
  app.require_subcommand(1);
  reprise::cli::AddVerbs(&app, &globals);
  // Known before the rest is parsed, so that an error of usage is told the way it was asked for.
  const bool json = std::count(argv + 1, argv + argc, std::string_view("--json")) > 0;
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help.
    globals.json = json;
    return reprise::cli::Report(
        globals, reprise::InvalidArgument(std::string(error.what()) + "; see reprise --help"));
  }
  return globals.exit_code;
}
