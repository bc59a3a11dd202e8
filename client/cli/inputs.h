#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "client/client.h"

namespace reprise::cli {

// The options that name a namespace: --model and what else a manifest holds.
struct ManifestOptions {
  std::string model;  // Empty: the daemon's.
  Manifest fields;    // The texts that options set; the rest follows from the model.
};
void AddManifestOptions(CLI::App* verb, ManifestOptions* options);

// Opens the namespace that the options name.
absl::StatusOr<uint32_t> OpenNamespace(Client* client, const ManifestOptions& options);

// Token ids: whitespace-separated numbers, or int32 little-endian when the name ends in ".bin".
absl::StatusOr<std::vector<TokenId>> ReadTokens(const std::string& path);
// A whole file, "-" for standard input. Refuses more than `bytes_max`.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max);

// Keys of the whole blocks of `tokens`.
std::vector<BlockKey> PrefixKeys(const Hash256& name_space, std::span<const TokenId> tokens);

}  // namespace reprise::cli
