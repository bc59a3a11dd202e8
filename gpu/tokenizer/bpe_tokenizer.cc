#include "gpu/tokenizer/bpe_tokenizer.h"

#include <utility>

#include "gpu/tokenizer/identity.h"
#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

using WholeWords = std::unordered_map<std::string, TokenId>;

WholeWords WholeWordsOf(const BpeDescription& description) {
  WholeWords words;
  if (!description.ignore_merges) return words;
  for (size_t id = 0; id < description.vocabulary.size(); ++id) {
    const BpeDescription::Token& token = description.vocabulary[id];
    if (token.present && token.text) words.emplace(token.bytes, static_cast<TokenId>(id));
  }
  return words;
}

Hash256 DigestOf(const BpeDescription& description) {
  Identity identity("reprise tokenizer: byte-level bpe 1");
  description.normalizer.AppendIdentity(&identity);
  description.pre_tokenizer.AppendIdentity(&identity);
  identity.Number(description.ignore_merges);
  identity.Number(static_cast<uint32_t>(description.vocabulary.size()));
  for (const BpeDescription::Token& token : description.vocabulary) {
    identity.Number(uint32_t{token.present} | uint32_t{token.text} << 1);
    identity.Text(token.bytes);
  }
  identity.Number(static_cast<uint32_t>(description.merges.size()));
  for (const Merge& merge : description.merges) {
    identity.Number(static_cast<uint32_t>(merge.left));
    identity.Number(static_cast<uint32_t>(merge.right));
  }
  identity.Number(static_cast<uint32_t>(description.added_tokens.size()));
  for (const AddedToken& token : description.added_tokens) {
    identity.Number(static_cast<uint32_t>(token.id));
    identity.Number(uint32_t{token.single_word} | uint32_t{token.left_strip} << 1 |
                    uint32_t{token.right_strip} << 2 | uint32_t{token.normalized} << 3);
    identity.Text(token.text);
  }
  return identity.Digest();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BpeTokenizer::Make(BpeDescription description) {
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer(&description));
  RP_TRY(tokenizer->AddTokens(description.added_tokens));
  return tokenizer;
}

BpeTokenizer::BpeTokenizer(BpeDescription* description)
    : bpe_(description->byte_tokens, description->merges, WholeWordsOf(*description)),
      digest_(DigestOf(*description)) {
  pieces_.reserve(description->vocabulary.size() + description->added_tokens.size());
  for (BpeDescription::Token& token : description->vocabulary) {
    pieces_.push_back({.bytes = std::move(token.bytes), .present = token.present});
  }
  normalizer_ = std::move(description->normalizer);
  pre_tokenizer_ = std::move(description->pre_tokenizer);
}

absl::Status BpeTokenizer::AddTokens(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= pieces_.size()) pieces_.resize(id + 1);
    pieces_[id] = {.bytes = token.text, .present = true, .special = token.special};
    added_.emplace(token.text, token.id);
    const std::string text = token.normalized ? normalizer_.Apply(token.text) : token.text;
    if (text.empty()) {
      return InvalidArgument("added_tokens: \"" + token.text +
                             "\" is empty once normalized; set its normalized to false");
    }
    if (!(token.normalized ? normalized_finder_ : raw_finder_).Add(text, token)) {
      return InvalidArgument("added_tokens: \"" + token.text +
                             "\" is another one's text once normalized; give each its own");
    }
  }
  return absl::OkStatus();
}

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text, bool parse_special) const {
  std::vector<TokenId> tokens;
  tokens.reserve(text.size() / 4);
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    EncodeCharacters(text.substr(0, valid), parse_special, &tokens);
    text.remove_prefix(valid);
    if (text.empty()) break;
    tokens.push_back(bpe_.byte_token(static_cast<uint8_t>(text.front())));
    text.remove_prefix(1);
  }
  return tokens;
}

void BpeTokenizer::EncodeCharacters(std::string_view text, bool parse_special,
                                    std::vector<TokenId>* tokens) const {
  if (!parse_special || raw_finder_.empty()) return EncodeAsGiven(text, parse_special, tokens);
  raw_finder_.ForEachPart(text, [&](std::string_view part, const AddedToken* token) {
    if (token != nullptr) {
      tokens->push_back(token->id);
    } else {
      EncodeAsGiven(part, parse_special, tokens);
    }
  });
}

void BpeTokenizer::EncodeAsGiven(std::string_view text, bool parse_special,
                                 std::vector<TokenId>* tokens) const {
  std::string normal;
  if (normalizer_.size() > 0) {
    normal = normalizer_.Apply(text);
    text = normal;
  }
  if (!parse_special || normalized_finder_.empty()) return EncodeNormalized(text, tokens);
  normalized_finder_.ForEachPart(text, [&](std::string_view part, const AddedToken* token) {
    if (token != nullptr) {
      tokens->push_back(token->id);
    } else {
      EncodeNormalized(part, tokens);
    }
  });
}

void BpeTokenizer::EncodeNormalized(std::string_view text, std::vector<TokenId>* tokens) const {
  pre_tokenizer_.ForEachWord(text, [&](std::string_view word) { bpe_.Encode(word, tokens); });
}

std::string BpeTokenizer::Piece(TokenId token, bool show_special) const {
  const auto id = static_cast<size_t>(token);  // A negative id is a huge one.
  if (id >= pieces_.size() || !pieces_[id].present) return std::string(kReplacementCharacter);
  if (pieces_[id].special && !show_special) return {};
  return pieces_[id].bytes;
}

TokenId BpeTokenizer::Special(std::string_view name) const {
  const auto found = added_.find(std::string(name));
  return found == added_.end() ? -1 : found->second;
}

}  // namespace reprise::engine
