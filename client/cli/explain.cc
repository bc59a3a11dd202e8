#include <memory>

#include "client/cli/commands.h"
#include "client/cli/inputs.h"
#include "client/explanation_json.h"

namespace reprise::cli {
namespace {

struct ExplainOptions {
  ManifestOptions manifest;
  std::string tokens;
};

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

absl::StatusOr<Result> RunExplain(const Globals& globals, const ExplainOptions& options) {
  RP_ASSIGN(const std::vector<TokenId> tokens, ReadTokens(options.tokens));
  RP_ASSIGN(const auto client, Connect(globals, "reprise explain"));
  RP_ASSIGN(const uint32_t id, OpenNamespace(client.get(), options.manifest));
  RP_ASSIGN(const Client::Explanation e, client->Explain(id, tokens));
  Result result;
  result.json = Json::parse(ExplanationJson(e, client->name_space(id)), nullptr, false);
  result.text = "hit      " + std::to_string(e.hit_blocks) + " of " +
                std::to_string(e.asked_blocks) + " blocks (" + std::to_string(e.tokens) +
                " tokens asked)\n";
  if (!e.tiers.empty()) result.text += "tiers    " + Joined(e.tiers) + "\n";
  result.text += "window   " + e.window + "\nreason   " + e.reason + "\n";
  if (!e.block.empty()) {
    result.text += "block    " + e.block + " (index " + std::to_string(e.block_index) + ")\n";
  }
  if (!e.differing_fields.empty()) result.text += "differs  " + Joined(e.differing_fields) + "\n";
  result.text += e.detail + "\n";
  result.exit_code = e.hit_blocks < e.asked_blocks ? kExitMiss : kExitOk;
  return result;
}

}  // namespace

void AddExplain(CLI::App* app, Globals* globals) {
  CLI::App* verb = app->add_subcommand("explain", "Why a token sequence hits as far as it does");
  const auto options = std::make_shared<ExplainOptions>();
  AddManifestOptions(verb, &options->manifest);
  verb->add_option("--tokens", options->tokens, "Token ids: text, or int32 in a .bin file")
      ->required();
  OnRun(verb, globals, [globals, options] { return RunExplain(*globals, *options); });
}

}  // namespace reprise::cli
