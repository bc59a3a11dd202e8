// `reprise chat`: a conversation in the terminal.
#include <editline/readline.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include "client/cli/commands.h"
#include "client/session/session_options.h"

namespace reprise::cli {
namespace {

constexpr const char* kChatFooter =
    R"(Ctrl-C stops an answer; Ctrl-D or /quit ends. After each answer a line says what was found and what it cost.

  /fork [NAME]   go on in a copy of this session
  /blocks        where this session's blocks are
  /exact         rebuild missing windows exactly, or not any more
  /help

Exit codes: 0 done, 2 the command is wrong, 3 no daemon there, 4 it could not answer.)";

constexpr const char* kHelp =
    "/fork [NAME]  /blocks  /exact  /quit; Ctrl-C stops an answer, Ctrl-D ends\n";

std::atomic<bool> interrupted = false;
void OnInterrupt(int) { interrupted = true; }

struct ChatCommand {
  ApiOptions api;
  TurnOptions turn;
  std::string session;
  std::string system;
};

class Chat {
 public:
  Chat(ApiClient* api, ChatCommand* command)
      : api_(*api), command_(*command), terminal_(::isatty(STDIN_FILENO) == 1) {}

  absl::StatusOr<Result> Run() {
    RP_TRY(Open());
    std::signal(SIGINT, OnInterrupt);
    for (;;) {
      const std::optional<std::string> line = ReadLine();
      if (!line.has_value() || *line == "/quit") break;
      if (line->empty()) continue;
      if (line->front() == '/') {
        RP_TRY(Command(*line));
      } else {
        RP_TRY(Turn(*line));
      }
    }
    std::signal(SIGINT, SIG_DFL);
    return Result{.json = {{"session", name_}}, .text = "session " + name_ + "\n"};
  }

 private:
  absl::Status Open() {
    if (!command_.session.empty()) {
      const auto found = api_.Get("/v1/sessions/" + command_.session);
      if (found.ok()) {
        name_ = command_.session;
        std::printf("session %s: %s turns\n", name_.c_str(), (*found)["turns"].dump().c_str());
        return absl::OkStatus();
      }
      if (found.status().code() != absl::StatusCode::kNotFound) return found.status();
    }
    Json body = Json::object();
    if (!command_.session.empty()) body["name"] = command_.session;
    if (!command_.system.empty()) body["system"] = command_.system;
    RP_ASSIGN(const Json session, api_.Post("/v1/sessions", body));
    name_ = session.value("name", "");
    std::printf("session %s; /help\n", name_.c_str());
    return absl::OkStatus();
  }

  // Nothing: the end.
  std::optional<std::string> ReadLine() const {
    if (!terminal_) {
      std::string line;
      if (!std::getline(std::cin, line)) return std::nullopt;
      return line;
    }
    char* typed = ::readline("> ");
    if (typed == nullptr) {
      std::printf("\n");
      if (interrupted.exchange(false)) return "";  // Ctrl-C: the line is forgotten.
      return std::nullopt;
    }
    const std::string line = typed;
    if (!line.empty()) ::add_history(typed);
    std::free(typed);
    return line;
  }

  absl::Status Command(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string word = line.substr(0, space);
    const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
    if (word == "/fork") {
      Json body = Json::object();
      if (!rest.empty()) body["name"] = rest;
      const auto fork = api_.Post("/v1/sessions/" + name_ + "/fork", body);
      if (!fork.ok()) return Tell(fork.status());
      name_ = fork->value("name", "");
      std::printf("session %s\n", name_.c_str());
    } else if (word == "/blocks") {
      const auto blocks = api_.Get("/v1/sessions/" + name_ + "/blocks");
      if (!blocks.ok()) return Tell(blocks.status());
      std::string tiers;
      for (const Json& block : (*blocks)["blocks"]) {
        const std::string tier = block.value("tier", "");
        tiers += tier == "dram" ? 'D' : tier == "ssd" ? 'S' : '.';
      }
      std::printf("%s tokens: %s (D DRAM, S SSD, . not stored); %s windows\n",
                  (*blocks)["tokens"].dump().c_str(), tiers.c_str(),
                  std::to_string((*blocks)["windows"].size()).c_str());
    } else if (word == "/exact") {
      command_.turn.exact = !command_.turn.exact;
      std::printf("missing windows are %s\n", command_.turn.exact ? "rebuilt exactly" : "replayed");
    } else {
      std::fputs(kHelp, stdout);
    }
    return absl::OkStatus();
  }

  absl::Status Turn(const std::string& text) {
    Json body = TurnBody(command_.turn, text);
    body["stream"] = true;
    interrupted = false;
    std::string cost;
    bool thinking = false;
    const auto show = [&](const Json& delta, const char* key, bool thought) {
      if (!delta.contains(key) || !delta[key].is_string()) return;
      const auto& piece = delta[key].get_ref<const std::string&>();
      if (piece.empty()) return;
      if (thinking && !thought) std::printf("\n");
      thinking = thought;
      std::fputs(piece.c_str(), stdout);
    };
    const absl::Status status =
        api_.PostStream("/v1/sessions/" + name_ + "/send", body, [&](const Json& chunk) {
          if (chunk.is_null()) return !interrupted;
          if (chunk.contains("reprise")) cost = CostLine(chunk["reprise"]);
          for (const Json& choice : chunk["choices"]) {
            const Json delta = choice.value("delta", Json::object());
            show(delta, "reasoning_content", true);
            show(delta, "content", false);
            for (const Json& call : delta.value("tool_calls", Json::array())) {
              std::printf("[call %s %s]",
                          call["function"]["name"].get_ref<const std::string&>().c_str(),
                          call["function"]["arguments"].get_ref<const std::string&>().c_str());
            }
          }
          std::fflush(stdout);
          return !interrupted;
        });
    if (status.code() == absl::StatusCode::kCancelled) {
      std::printf("\n[stopped]\n");
      return absl::OkStatus();
    }
    if (!status.ok()) return Tell(status);
    std::printf("\n[%s]\n", cost.c_str());
    return absl::OkStatus();
  }

  // An error that the conversation survives is shown; without a daemon there is none.
  static absl::Status Tell(const absl::Status& status) {
    if (status.code() == absl::StatusCode::kUnavailable) return status;
    std::printf("[%s]\n", Message(status).c_str());
    return absl::OkStatus();
  }

  ApiClient& api_;
  ChatCommand& command_;
  bool terminal_;
  std::string name_;
};

}  // namespace

void AddChat(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("chat", "Talk to the daemon's model");
  const auto command = std::make_shared<ChatCommand>();
  verb->add_option("session", command->session,
                   "A session to go on with; begun when there is none");
  verb->add_option("--system", command->system, "The system text of a new session");
  AddApiOptions(verb, &command->api);
  AddTurnOptions(verb, &command->turn);
  verb->footer(kChatFooter);
  OnRun(verb, globals, [command]() -> absl::StatusOr<Result> {
    RP_ASSIGN(const auto api, ConnectApi(command->api));
    return Chat(api.get(), command.get()).Run();
  });
}

}  // namespace reprise::cli
