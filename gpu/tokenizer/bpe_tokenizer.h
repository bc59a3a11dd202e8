#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "gpu/tokenizer/added_tokens.h"
#include "gpu/tokenizer/bpe.h"
#include "gpu/tokenizer/normalizer.h"
#include "gpu/tokenizer/pre_tokenizer.h"
#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine {

// What a tokenizer.json says, checked.
struct BpeDescription {
  struct Token {
    std::string bytes;
    bool present = false;  // False: no token has this id.
    bool text = false;     // Made of bytes of text, so that merges can lead to it.
  };

  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<Token> vocabulary;  // By id: the model's tokens, without the added ones.
  std::array<TokenId, 256> byte_tokens{};
  std::vector<Merge> merges;
  bool ignore_merges = false;  // A word that is a token stays one.
  std::vector<AddedToken> added_tokens;
};

// Byte-level BPE: text is cut at added tokens, normalized, split into words, and the bytes of each
// word are merged.
//
// Encode without parse_special finds no added token at all, also none whose "special" is false:
// DeepSeek's <｜User｜> and <think> are such, and a user who types them must not begin a turn.
// Piece hides the tokens whose "special" is true.
class BpeTokenizer final : public Tokenizer {
 public:
  // Refuses added tokens that cannot be told apart once normalized.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Make(BpeDescription description);

  std::vector<TokenId> Encode(std::string_view text, bool parse_special) const override;
  std::string Piece(TokenId token, bool show_special) const override;
  TokenId Special(std::string_view name) const override;
  uint32_t vocab_size() const override { return static_cast<uint32_t>(pieces_.size()); }
  Hash256 Digest() const override { return digest_; }

 private:
  struct Entry {
    std::string bytes;
    bool present = false;
    bool special = false;
  };

  // Takes everything but the added tokens out of it.
  explicit BpeTokenizer(BpeDescription* description);
  absl::Status AddTokens(const std::vector<AddedToken>& tokens);
  // `text` is valid UTF-8, below.
  void EncodeCharacters(std::string_view text, bool parse_special,
                        std::vector<TokenId>* tokens) const;
  void EncodeAsGiven(std::string_view text, bool parse_special, std::vector<TokenId>* tokens) const;
  void EncodeNormalized(std::string_view text, std::vector<TokenId>* tokens) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  AddedTokenFinder raw_finder_;         // In text as given.
  AddedTokenFinder normalized_finder_;  // In normalized text.
  std::vector<Entry> pieces_;           // By id.
  std::unordered_map<std::string, TokenId> added_;
  Hash256 digest_;
};

}  // namespace reprise::engine
