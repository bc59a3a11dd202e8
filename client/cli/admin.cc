#include <memory>

#include "client/cli/commands.h"
#include "client/cli/inputs.h"

namespace reprise::cli {
namespace {

constexpr Nanos kVerifyDeadline = 600 * kSecond;

struct AdminOptions {
  ManifestOptions manifest;
  std::string tokens;
  bool all = false;
};

absl::StatusOr<std::vector<BlockKey>> KeysOfFile(const Client& client, uint32_t id,
                                                 const std::string& path) {
  RP_ASSIGN(const std::vector<TokenId> tokens, ReadTokens(path));
  std::vector<BlockKey> keys = PrefixKeys(client.name_space(id), tokens);
  if (keys.empty()) return InvalidArgument(path + ": holds no whole block of 128 tokens");
  return keys;
}

absl::Status CheckChoice(const AdminOptions& options) {
  if (options.all != options.tokens.empty()) {
    return InvalidArgument("say which blocks: --tokens FILE, or --all");
  }
  return absl::OkStatus();
}

absl::StatusOr<Result> RunEvict(const Globals& globals, const AdminOptions& options) {
  RP_TRY(CheckChoice(options));
  RP_ASSIGN(const auto client, Connect(globals, "reprise evict"));
  RP_ASSIGN(const uint32_t id, OpenNamespace(client.get(), options.manifest));
  uint64_t evicted = 0;
  if (options.all) {
    RP_ASSIGN(evicted, client->EvictNamespace(id));
  } else {
    RP_ASSIGN(const std::vector<BlockKey> keys, KeysOfFile(*client, id, options.tokens));
    RP_ASSIGN(evicted, client->Evict(id, keys));
  }
  return Result{.json = {{"namespace", ToHex(client->name_space(id))}, {"evicted_blocks", evicted}},
                .text = std::to_string(evicted) + " blocks evicted\n"};
}

absl::StatusOr<Result> RunVerify(const Globals& globals, const AdminOptions& options) {
  RP_TRY(CheckChoice(options));
  Globals patient = globals;
  if (!globals.deadline_set) patient.deadline_ns = kVerifyDeadline;
  RP_ASSIGN(const auto client, Connect(patient, "reprise verify"));
  RP_ASSIGN(const uint32_t id, OpenNamespace(client.get(), options.manifest));
  std::vector<BlockKey> keys;
  if (!options.all) {
    RP_ASSIGN(keys, KeysOfFile(*client, id, options.tokens));
  }
  RP_ASSIGN(const Client::Verification found, client->Verify(id, keys));
  Result result;
  result.json = {{"checked_blocks", found.checked},
                 {"failed_blocks", found.failed},
                 {"failed", found.failed_keys}};
  result.text = std::to_string(found.checked) + " blocks checked, " + std::to_string(found.failed) +
                " failed\n";
  for (const std::string& key : found.failed_keys) result.text += "failed " + key + "\n";
  result.exit_code = found.failed > 0 ? kExitMiss : kExitOk;
  return result;
}

}  // namespace

void AddAdmin(CLI::App* app, Globals* globals) {
  CLI::App* evict = app->add_subcommand("evict", "Withdraw blocks from every tier");
  const auto evict_options = std::make_shared<AdminOptions>();
  AddManifestOptions(evict, &evict_options->manifest);
  evict->add_option("--tokens", evict_options->tokens, "The blocks of this token sequence");
  evict->add_flag("--all", evict_options->all, "Every block of the namespace");
  OnRun(evict, globals, [globals, evict_options] { return RunEvict(*globals, *evict_options); });

  CLI::App* verify = app->add_subcommand("verify", "Read stored blocks and check them");
  const auto verify_options = std::make_shared<AdminOptions>();
  AddManifestOptions(verify, &verify_options->manifest);
  verify->add_option("--tokens", verify_options->tokens, "The blocks of this token sequence");
  verify->add_flag("--all", verify_options->all, "Every block on SSD");
  OnRun(verify, globals,
        [globals, verify_options] { return RunVerify(*globals, *verify_options); });
}

}  // namespace reprise::cli
