#include <utility>

#include "gpu/tokenizer/added_tokens.h"
#include "gpu/tokenizer/identity.h"
#include "gpu/tokenizer/tokenizer.h"
#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

constexpr uint32_t kByteCount = 256;

class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer(std::vector<std::string> special, uint32_t vocab_size)
      : special_(std::move(special)), vocab_size_(vocab_size) {
    RP_CHECK(kByteCount + special_.size() <= vocab_size_);
    TokenId id = kByteCount;
    for (const std::string& name : special_) {
      RP_CHECK(!name.empty() && finder_.Add(name, {.text = name, .id = id++, .special = true}));
    }
  }

  std::vector<TokenId> Encode(std::string_view text, bool parse_special) const override {
    std::vector<TokenId> tokens;
    tokens.reserve(text.size());
    const auto encode = [&](std::string_view part, const AddedToken* token) {
      if (token != nullptr) {
        tokens.push_back(token->id);
      } else {
        for (const char byte : part) tokens.push_back(static_cast<uint8_t>(byte));
      }
    };
    if (parse_special) {
      finder_.ForEachPart(text, encode);
    } else {
      encode(text, nullptr);
    }
    return tokens;
  }

  std::string Piece(TokenId token, bool show_special) const override {
    const auto id = static_cast<size_t>(token);  // A negative id is a huge one.
    if (id < kByteCount) return std::string(1, static_cast<char>(id));
    if (id - kByteCount >= special_.size()) return std::string(kReplacementCharacter);
    return show_special ? special_[id - kByteCount] : std::string();
  }

  TokenId Special(std::string_view name) const override {
    for (size_t i = 0; i < special_.size(); ++i) {
      if (special_[i] == name) return static_cast<TokenId>(kByteCount + i);
    }
    return -1;
  }

  uint32_t vocab_size() const override { return vocab_size_; }

  Hash256 Digest() const override {
    Identity identity("reprise tokenizer: bytes 1");
    for (const std::string& name : special_) identity.Text(name);
    return identity.Digest();
  }

 private:
  std::vector<std::string> special_;  // Ids from kByteCount on.
  uint32_t vocab_size_;
  AddedTokenFinder finder_;
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer(std::vector<std::string> special,
                                             uint32_t vocab_size) {
  return std::make_unique<ByteTokenizer>(std::move(special), vocab_size);
}

std::unique_ptr<Tokenizer> MakeNanoTokenizer() {
  return MakeByteTokenizer(
      {"<bos>", "<eos>", "<pad>", "<system>", "<user>", "<assistant>", "<call>", "</call>",
       "<result>", "</result>", "<think>", "</think>", "<noise>"},
      288);
}

}  // namespace reprise::engine
