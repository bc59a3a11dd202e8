// `reprise session`: named conversations that a daemon keeps.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "client/cli/commands.h"
#include "client/cli/progress.h"
#include "client/session/session_options.h"
#include "protocol/base/clock.h"
#include "protocol/base/units.h"

namespace reprise::cli {

// ---- What these verbs share --------------------------------------------------------------------

void AddApiOptions(CLI::App* verb, ApiOptions* options) {
  verb->add_option("--http", options->url, "The daemon's HTTP address")
      ->envname("REPRISE_HTTP")
      ->capture_default_str();
  verb->add_option("--api-key-file", options->key_file, "File whose first word is the API key");
}

absl::StatusOr<std::unique_ptr<ApiClient>> ConnectApi(const ApiOptions& options) {
  ApiClient::Options client{.url = options.url, .key = {}};
  if (!options.key_file.empty()) {
    std::ifstream file(options.key_file);
    if (!(file >> client.key)) {
      return InvalidArgument("--api-key-file " + options.key_file + ": no key can be read");
    }
  }
  return ApiClient::Create(client);
}

void AddTurnOptions(CLI::App* verb, TurnOptions* options) {
  verb->add_option("--temperature", options->temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 2.0));
  verb->add_option("--top-p", options->top_p, "Share of probability kept")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--max-tokens", options->tokens_max, "Tokens of the answer at most")
      ->check(CLI::Range(1u, 1u << 24));
  verb->add_option("--seed", options->seed, "Decides what is drawn")->check(CLI::NonNegativeNumber);
  verb->add_flag("--exact", options->exact, "Rebuild a missing window exactly");
  verb->add_flag("--thinking", options->thinking, "Reason first");
}

Json TurnBody(const TurnOptions& options, const std::string& content) {
  Json body = {{"content", content}};
  if (options.temperature >= 0) body["temperature"] = options.temperature;
  if (options.top_p >= 0) body["top_p"] = options.top_p;
  if (options.tokens_max > 0) body["max_tokens"] = options.tokens_max;
  if (options.seed >= 0) body["seed"] = options.seed;
  if (options.exact) body["reprise"] = {{"exact", true}};
  if (options.thinking) body["thinking"] = true;
  return body;
}

std::string CostLine(const Json& report) {
  const auto number = [&](const char* key) { return report.value(key, 0.0); };
  const auto ms = [](double value) { return FormatDuration(static_cast<Nanos>(value * 1e6)); };
  const Json tiers = report.value("hit_blocks_by_tier", Json::object());
  std::string places;
  for (const auto& [tier, blocks] : tiers.items()) {
    if (blocks == 0) continue;
    places += (places.empty() ? " (" : ", ") + blocks.dump() + " blocks " + tier;
  }
  if (!places.empty()) places += ")";
  const std::string window = report.value("window", "");
  return report["hit_tokens"].dump() + " tokens hit" + places + ", " +
         (window == "cold" ? "no window needed" : "window " + window) + ", " +
         report["computed_tokens"].dump() + " computed, " + report["replayed_tokens"].dump() +
         " replayed, first token " +
         ms(number("queue_ms") + number("load_ms") + number("prefill_ms")) + ", saved " +
         ms(number("saved_ms")) + ", " + report.value("exactness", "");
}

namespace {

constexpr const char* kSessionFooter =
    R"(A session is kept by a daemon that serves a model (engine.model). Its blocks are stored as everybody's are: it
goes on after minutes with its window, after days from SSD with a replay.

Exit codes: 0 done, 1 no such session, 2 the command is wrong, 3 no daemon there, 4 it could not do it.)";

std::string Table(const Json& sessions) {
  std::string text;
  for (const Json& session : sessions) {
    char line[160];
    std::snprintf(line, sizeof(line), "%-32s %6u turns %9u tokens\n",
                  session.value("name", "").c_str(), session.value("turns", 0u),
                  session.value("tokens", 0u));
    text += line;
  }
  return text.empty() ? "no sessions\n" : text;
}

struct SessionCommand {
  ApiOptions api;
  TurnOptions turn;
  std::string name, other, message, system, file;
};

absl::StatusOr<Result> NewSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  Json body = Json::object();
  if (!command.name.empty()) body["name"] = command.name;
  if (!command.system.empty()) body["system"] = command.system;
  if (command.turn.thinking) body["thinking"] = true;
  RP_ASSIGN(const Json session, api->Post("/v1/sessions", body));
  return Result{.json = session, .text = session.value("name", "") + "\n"};
}

absl::StatusOr<Result> SendMessage(const Globals& globals, const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  std::string message = command.message;
  if (message == "-") message.assign(std::istreambuf_iterator<char>(std::cin), {});
  Json body = TurnBody(command.turn, message);
  const std::string path = "/v1/sessions/" + command.name + "/send";
  if (globals.json) {
    RP_ASSIGN(const Json answer, api->Post(path, body));
    return Result{.json = answer};
  }
  body["stream"] = true;
  std::string cost;
  RP_TRY(api->PostStream(path, body, [&](const Json& chunk) {
    if (chunk.is_null()) return true;
    if (chunk.contains("reprise")) cost = CostLine(chunk["reprise"]);
    for (const Json& choice : chunk["choices"]) {
      const Json delta = choice.value("delta", Json::object());
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const Json& function = call["function"];
        std::printf("[call %s %s]", function["name"].get<std::string>().c_str(),
                    function["arguments"].get<std::string>().c_str());
      }
      for (const char* key : {"reasoning_content", "content"}) {
        if (delta.contains(key) && delta[key].is_string()) {
          std::fputs(delta[key].get_ref<const std::string&>().c_str(), stdout);
        }
      }
    }
    return std::fflush(stdout) == 0;
  }));
  return Result{.text = "\n" + (cost.empty() ? "" : "[" + cost + "]\n")};
}

absl::StatusOr<Result> ListSessions(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  RP_ASSIGN(const Json list, api->Get("/v1/sessions"));
  return Result{.json = list, .text = Table(list["data"])};
}

absl::StatusOr<Result> ShowSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  RP_ASSIGN(Json session, api->Get("/v1/sessions/" + command.name));
  RP_ASSIGN(const Json blocks, api->Get("/v1/sessions/" + command.name + "/blocks"));
  std::string text;
  for (const Json& message : session["messages"]) {
    const Json content = message.value("content", Json());
    text += message.value("role", "") + ": " +
            (content.is_string() ? content.get<std::string>() : "") + "\n";
  }
  text += blocks["tokens"].dump() + " tokens in " + std::to_string(blocks["blocks"].size()) +
          " whole blocks: " + blocks["in_dram"].dump() + " in DRAM, " +
          blocks["on_ssd_only"].dump() + " on SSD alone; ";
  text += blocks["windows"].empty() ? "no window: the next turn replays\n"
                                    : "window at " + blocks["windows"][0]["position"].dump() + "\n";
  session["blocks"] = blocks;
  return Result{.json = session, .text = text};
}

absl::StatusOr<Result> ForkSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  Json body = Json::object();
  if (!command.other.empty()) body["name"] = command.other;
  RP_ASSIGN(const Json fork, api->Post("/v1/sessions/" + command.name + "/fork", body));
  return Result{.json = fork, .text = fork.value("name", "") + "\n"};
}

absl::StatusOr<Result> RemoveSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  RP_ASSIGN(const Json removed, api->Delete("/v1/sessions/" + command.name));
  return Result{.json = removed, .text = "removed " + command.name + "\n"};
}

absl::StatusOr<Result> ExportSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  const std::string file = command.file.empty() ? command.name + ".rpsession" : command.file;
  const SystemClock clock;
  Progress progress("export", 0, Progress::Unit::kBytes, clock);
  uint64_t bytes = 0;
  RP_TRY(api->Download("/v1/sessions/" + command.name + "/export", file, [&](uint64_t done) {
    bytes = done;
    progress.Update(done);
  }));
  return Result{.json = {{"name", command.name}, {"file", file}, {"bytes", bytes}},
                .text = file + ": " + FormatBytes(bytes) + "\n"};
}

absl::StatusOr<Result> ImportSession(const SessionCommand& command) {
  RP_ASSIGN(const auto api, ConnectApi(command.api));
  const SystemClock clock;
  std::error_code error;
  const uint64_t total = std::filesystem::file_size(command.file, error);
  Progress progress("import", error ? 0 : total, Progress::Unit::kBytes, clock);
  const std::string query = command.name.empty() ? "" : "?name=" + command.name;
  RP_ASSIGN(const Json session, api->Upload("/v1/sessions/import" + query, command.file,
                                            [&](uint64_t done) { progress.Update(done); }));
  return Result{.json = session,
                .text = session.value("name", "") + ": " + session["tokens"].dump() + " tokens, " +
                        session["blocks_stored"].dump() + " blocks\n"};
}

}  // namespace

void AddSession(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("session", "Conversations that the daemon keeps");
  verb->require_subcommand(1);
  verb->footer(kSessionFooter);
  const auto command = std::make_shared<SessionCommand>();
  const auto add = [&](const char* name, const char* help) {
    CLI::App* sub = verb->add_subcommand(name, help);
    AddApiOptions(sub, &command->api);
    return sub;
  };
  const auto named = [&](CLI::App* sub) {
    sub->add_option("name", command->name, "The session")->required();
    return sub;
  };
  CLI::App* create = add("new", "Begin one; prints its name");
  create->add_option("name", command->name, "Its name; without, one is made up");
  create->add_option("--system", command->system, "The system text");
  create->add_flag("--thinking", command->turn.thinking, "Its answers reason first");
  OnRun(create, globals, [command] { return NewSession(*command); });

  CLI::App* send = named(add("send", "Send a message; the answer is streamed"));
  send->add_option("message", command->message, "Text; - reads it from stdin")->required();
  AddTurnOptions(send, &command->turn);
  OnRun(send, globals, [globals, command] { return SendMessage(*globals, *command); });

  OnRun(add("list", "All sessions, last used first"), globals,
        [command] { return ListSessions(*command); });
  OnRun(named(add("show", "Its messages, and where its blocks are")), globals,
        [command] { return ShowSession(*command); });

  CLI::App* fork = named(add("fork", "A second session that goes on from the same place"));
  fork->add_option("other", command->other, "Its name; without, one is made up");
  OnRun(fork, globals, [command] { return ForkSession(*command); });
  OnRun(named(add("rm", "Forget one; its blocks leave as others need their place")), globals,
        [command] { return RemoveSession(*command); });

  CLI::App* exported = named(add("export", "One file with its tokens and blocks"));
  exported->add_option("file", command->file, "Default: NAME.rpsession");
  OnRun(exported, globals, [command] { return ExportSession(*command); });
  CLI::App* imported = add("import", "A session from such a file");
  imported->add_option("file", command->file, "The file")->required();
  imported->add_option("--name", command->name, "Its name here; default: as it was");
  OnRun(imported, globals, [command] { return ImportSession(*command); });
}

}  // namespace reprise::cli
