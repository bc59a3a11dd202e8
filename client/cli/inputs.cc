#include "client/cli/inputs.h"

#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "protocol/base/units.h"
#include "protocol/identity/block_hash.h"

namespace reprise::cli {
namespace {

constexpr uint64_t kTokenFileBytesMax = 1_GiB;

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

absl::StatusOr<std::vector<TokenId>> ParseTokenText(const std::string& path,
                                                    std::string_view text) {
  std::vector<TokenId> tokens;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    while (at != end && IsSpace(*at)) ++at;
    if (at == end) return tokens;
    TokenId token = 0;
    const auto [rest, error] = std::from_chars(at, end, token);
    if (error != std::errc() || (rest != end && !IsSpace(*rest)) || token < 0) {
      return InvalidArgument(path + ": token " + std::to_string(tokens.size()) +
                             " is not a number from 0 to 2147483647 (byte " +
                             std::to_string(at - text.data()) + " of the file)");
    }
    tokens.push_back(token);
    at = rest;
  }
}

}  // namespace

void AddManifestOptions(CLI::App* verb, ManifestOptions* options) {
  verb->add_option("--model", options->model, "Model: v4.1-flash or nano (default: the daemon's)");
  verb->add_option("--weights-digest", options->fields.weights_digest, "SHA-256 of the weights");
  verb->add_option("--tokenizer-digest", options->fields.tokenizer_digest,
                   "SHA-256 of the tokenizer");
  verb->add_option("--tenant", options->fields.tenant_salt,
                   "Salt of a tenant that shares no hits with others");
  verb->add_option("--adapter", options->fields.adapter, "LoRA or adapter identity");
}

absl::StatusOr<uint32_t> OpenNamespace(Client* client, const ManifestOptions& options) {
  const std::string model = options.model.empty() ? client->model() : options.model;
  RP_ASSIGN(const KvGeometry geometry, KvGeometry::Preset(model));
  RP_ASSIGN(Manifest manifest, Manifest::For(geometry));
  manifest.weights_digest = options.fields.weights_digest;
  manifest.tokenizer_digest = options.fields.tokenizer_digest;
  manifest.tenant_salt = options.fields.tenant_salt;
  manifest.adapter = options.fields.adapter;
  if (RecordBytesFor(manifest.payload_bytes) != client->record_bytes()) {
    return InvalidArgument("the model " + model + " needs records of " +
                           std::to_string(RecordBytesFor(manifest.payload_bytes)) +
                           " bytes, and this daemon keeps records of " +
                           std::to_string(client->record_bytes()) + " for " + client->model() +
                           "; use another --model or another daemon");
  }
  return client->OpenNamespace(manifest);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) return InvalidArgument(path + ": " + std::strerror(errno));
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string bytes;
  std::vector<char> piece(1_MiB);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    bytes.append(piece.data(), static_cast<size_t>(in.gcount()));
    if (bytes.size() > bytes_max) {
      return InvalidArgument(path + ": larger than " + FormatBytes(bytes_max));
    }
  }
  if (in.bad()) return InvalidArgument(path + ": cannot be read");
  return bytes;
}

absl::StatusOr<std::vector<TokenId>> ReadTokens(const std::string& path) {
  RP_ASSIGN(const std::string bytes, ReadFile(path, kTokenFileBytesMax));
  if (!path.ends_with(".bin")) return ParseTokenText(path, bytes);
  if (bytes.size() % sizeof(TokenId) != 0) {
    return InvalidArgument(path + ": " + std::to_string(bytes.size()) +
                           " bytes are not a whole number of int32");
  }
  std::vector<TokenId> tokens(bytes.size() / sizeof(TokenId));
  if (!tokens.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0) {
      return InvalidArgument(path + ": token " + std::to_string(i) +
                             " is negative; is the file "
                             "int32 little-endian?");
    }
  }
  return tokens;
}

std::vector<BlockKey> PrefixKeys(const Hash256& name_space, std::span<const TokenId> tokens) {
  std::vector<BlockKey> keys;
  keys.reserve(tokens.size() / kBlockTokens);
  for (const Hash256& hash : PrefixChain(name_space, tokens)) keys.push_back(KeyOf(hash));
  return keys;
}

}  // namespace reprise::cli
