#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine {

std::string Tokenizer::Decode(const std::vector<TokenId>& tokens, bool show_special) const {
  std::string text;
  for (const TokenId token : tokens) text += Piece(token, show_special);
  return text;
}

}  // namespace reprise::engine
