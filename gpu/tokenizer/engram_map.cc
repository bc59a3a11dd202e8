#include <cstring>
#include <string>
#include <unordered_map>

#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/normalizer.h"
#include "gpu/tokenizer/read_file.h"
#include "gpu/tokenizer/tokenizer.h"
#include "protocol/base/bytes.h"

namespace reprise::engine {
namespace {

constexpr const char* kPrivateUse = "\uE000";  // Stands for a space that Strip must not take.

absl::Status AddReplace(std::string_view pattern, const char* content, Normalizer* normalizer) {
  RP_ASSIGN(Regex regex, Regex::Compile(pattern));
  normalizer->Add(Normalizer::Replace{std::move(regex), false, content});
  return absl::OkStatus();
}

// Folds case, accents, compatibility forms and blanks.
absl::StatusOr<Normalizer> EngramNormalizer() {
  Normalizer normalizer;
  for (const NormalForm form : {NormalForm::kNfkc, NormalForm::kNfd}) {
    RP_TRY(CheckNormalForm(form));
    normalizer.Add(Normalizer::Form{form});
  }
  normalizer.Add(Normalizer::StripAccents{});
  normalizer.Add(Normalizer::Lowercase{});
  RP_TRY(AddReplace("[ \\t\\r\\n]+", " ", &normalizer));
  RP_TRY(AddReplace("\\A \\z", kPrivateUse, &normalizer));
  normalizer.Add(Normalizer::Strip{true, true});
  RP_TRY(AddReplace(kPrivateUse, " ", &normalizer));
  return normalizer;
}

// Tokens with equal keys are one to Engram.
std::string KeyOf(const Normalizer& normalizer, const std::string& piece) {
  const bool part_of_character =
      !IsValidUtf8(piece) || piece.find(kReplacementCharacter) != std::string::npos;
  if (part_of_character) return ToByteLevel(piece);  // As the vocabulary writes it.
  std::string key = normalizer.Apply(piece);
  return key.empty() ? piece : key;
}

absl::Status WrongCount(uint32_t found, uint32_t compressed_vocab) {
  return FailedPrecondition(
      "the map of Engram has " + std::to_string(found) + " compressed ids, but the model has " +
      std::to_string(compressed_vocab) +
      "; use the tokenizer that belongs to the model, or the map that is shipped with it");
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> BuildEngramMap(const Tokenizer& tokenizer,
                                                     uint32_t compressed_vocab) {
  RP_ASSIGN(const Normalizer normalizer, EngramNormalizer());
  std::unordered_map<std::string, uint32_t> ids;
  std::vector<uint32_t> map;
  map.reserve(tokenizer.vocab_size());
  uint32_t next = 0;
  for (uint32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    const std::string piece = tokenizer.Piece(static_cast<TokenId>(token), /*show_special=*/true);
    if (piece == kReplacementCharacter) {
      map.push_back(next++);  // An id that no token has (or the character itself): like no other.
      continue;
    }
    const auto [found, is_new] = ids.emplace(KeyOf(normalizer, piece), next);
    if (is_new) ++next;
    map.push_back(found->second);
  }
  if (next != compressed_vocab) return WrongCount(next, compressed_vocab);
  return map;
}

absl::StatusOr<std::vector<uint32_t>> LoadEngramMap(const std::string& path, uint32_t vocab_size,
                                                    uint32_t compressed_vocab) {
  const uint64_t expected_bytes = uint64_t{vocab_size} * sizeof(uint32_t);
  RP_ASSIGN(const std::string bytes, ReadFile(path, expected_bytes));
  if (bytes.size() != expected_bytes) {
    return InvalidArgument(path + " has " + std::to_string(bytes.size()) +
                           " bytes; a map of this model has " + std::to_string(expected_bytes));
  }
  std::vector<uint32_t> map(vocab_size);
  if (!bytes.empty()) std::memcpy(map.data(), bytes.data(), bytes.size());
  uint32_t next = 0;
  for (size_t token = 0; token < map.size(); ++token) {
    if (map[token] > next) {
      return InvalidArgument(path + ": the compressed id of token " + std::to_string(token) +
                             " is not in order of first appearance; write the file again");
    }
    if (map[token] == next) ++next;
  }
  if (next != compressed_vocab) return WrongCount(next, compressed_vocab);
  return map;
}

}  // namespace reprise::engine
