#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/sha256.h"
#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::engine {

// Text to token ids and back. Immutable after loading; any thread.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Special tokens written out in the text, like "<user>", become their ids only when
  // `parse_special`; otherwise they are text like any other. Invalid UTF-8 is encoded byte by byte.
  virtual std::vector<TokenId> Encode(std::string_view text, bool parse_special) const = 0;

  // The bytes of one token: parts of a UTF-8 character are possible. Special tokens give their
  // name when `show_special`, else nothing. An id outside the vocabulary gives U+FFFD.
  virtual std::string Piece(TokenId token, bool show_special) const = 0;
  std::string Decode(const std::vector<TokenId>& tokens, bool show_special) const;

  // The id of a special token by name, or -1.
  virtual TokenId Special(std::string_view name) const = 0;
  virtual uint32_t vocab_size() const = 0;
  // SHA-256 of what decides ids: Manifest::tokenizer_digest.
  virtual Hash256 Digest() const = 0;
};

// Bytes are ids 0 to 255, `special` names follow from 256 on; the rest of the vocabulary is unused.
std::unique_ptr<Tokenizer> MakeByteTokenizer(std::vector<std::string> special, uint32_t vocab_size);
// The byte tokenizer of nano: <bos> 256 to <noise> 268 of 288 ids.
std::unique_ptr<Tokenizer> MakeNanoTokenizer();

// A Hugging Face tokenizer.json with a byte-level BPE model: the parts that DeepSeek's files use
// (normalizers NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Replace, Strip, Prepend, Sequence;
// pre-tokenizers Split, ByteLevel, Digits, Punctuation, Sequence; added tokens). Anything else is
// refused by name.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path);
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view json);

// Engram's map from token ids to compressed ids (model-facts section 9.1), in order of first
// appearance. Refuses a result that does not have `compressed_vocab` ids: every hash would change.
absl::StatusOr<std::vector<uint32_t>> BuildEngramMap(const Tokenizer& tokenizer,
                                                     uint32_t compressed_vocab);
// A file of vocab_size little-endian uint32, for models whose map is shipped as data.
absl::StatusOr<std::vector<uint32_t>> LoadEngramMap(const std::string& path, uint32_t vocab_size,
                                                    uint32_t compressed_vocab);

}  // namespace reprise::engine
