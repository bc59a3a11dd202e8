#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/base/status.h"

// What tokenizers ask of Unicode. The door to ICU, version 15 of the standard.
namespace reprise::engine {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

struct CodePoint {
  char32_t value = 0;
  uint32_t bytes = 0;  // 0: the text does not begin with a well-formed character.
};
// The character at the front of `text`. Overlong forms, surrogates and values above U+10FFFF are
// not well-formed.
CodePoint FirstCodePoint(std::string_view text);
// The character at the end of `text`, which is valid UTF-8.
CodePoint LastCodePoint(std::string_view text);
void AppendUtf8(char32_t value, std::string* text);
// The length of the longest valid prefix.
size_t ValidUtf8Prefix(std::string_view text);
inline bool IsValidUtf8(std::string_view text) { return ValidUtf8Prefix(text) == text.size(); }

// As Rust's char has them, which Hugging Face tokenizers use.
bool IsWhitespace(char32_t value);
bool IsNumeric(char32_t value);      // General category N.
bool IsPunctuation(char32_t value);  // General category P, or ASCII punctuation.
bool IsMark(char32_t value);         // General category M.
bool IsWord(char32_t value);         // \w of a Unicode regular expression.
// Appends the lower case of one character, which does not depend on its neighbours.
void AppendLower(char32_t value, std::string* text);

enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// Fails when ICU's data cannot be loaded; after that, ToNormalForm works.
absl::Status CheckNormalForm(NormalForm form);
// `text` is valid UTF-8.
std::string ToNormalForm(NormalForm form, std::string_view text);

}  // namespace reprise::engine
