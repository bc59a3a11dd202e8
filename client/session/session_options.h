#pragma once

#include <memory>
#include <string>

#include "client/cli/commands.h"
#include "client/session/api_client.h"

namespace reprise::cli {

// Options of the verbs that speak to the HTTP API.
struct ApiOptions {
  std::string url = "http://127.0.0.1:7441";
  std::string key_file;
};
void AddApiOptions(CLI::App* verb, ApiOptions* options);
absl::StatusOr<std::unique_ptr<ApiClient>> ConnectApi(const ApiOptions& options);

// Options of a turn.
struct TurnOptions {
  double temperature = -1;  // Below 0: the daemon's default.
  double top_p = -1;
  uint32_t tokens_max = 0;  // 0: the daemon's default.
  int64_t seed = -1;
  bool exact = false;
  bool thinking = false;
};
void AddTurnOptions(CLI::App* verb, TurnOptions* options);
Json TurnBody(const TurnOptions& options, const std::string& content);

// "256 tokens hit (2 blocks dram), window found, 21 computed, first token 14 ms, saved 183 ms,
// exact": the extension object of an answer, on a line.
std::string CostLine(const Json& report);

}  // namespace reprise::cli
