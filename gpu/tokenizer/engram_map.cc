#include <string>
#include <unordered_map>

#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/engram_hash.h"
#include "gpu/tokenizer/normalizer.h"
#include "gpu/tokenizer/tokenizer.h"

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
  RP_TRY(CheckEngramMapSize(next, compressed_vocab));
  return map;
}

}  // namespace reprise::engine
