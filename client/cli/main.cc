#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <string_view>

#include "client/cli/commands.h"

namespace {

constexpr char kFooter[] =
    "Exit codes: 0 done, 1 the answer is no (a miss, a failed check), 2 wrong usage,\n"
    "3 no daemon there, 4 the daemon or the machine could not do it, 5 deadline passed.";

int WrongUsage(const reprise::cli::Globals& globals, const std::string& what) {
  return Report(globals, reprise::InvalidArgument(what + "; see reprise --help"));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Talks to reprised, the KV-cache store: what it holds, puts, gets, checks.",
               "reprise");
  reprise::cli::Globals globals;
  app.fallthrough();  // Global options may follow the verb; verbs inherit this when they are added.
  reprise::cli::AddGlobals(&app, &globals);
  reprise::cli::AddVerbs(&app, &globals);
  app.footer(kFooter);
  app.require_subcommand(0, 1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help.
    // Options may not have been taken yet; the error is told the way that was asked for all the
    // same.
    globals.json = std::count(argv + 1, argv + argc, std::string_view("--json")) > 0;
    return WrongUsage(globals, error.what());
  }
  if (app.get_subcommands().empty()) return WrongUsage(globals, "a subcommand is required");
  return globals.exit_code;
}
