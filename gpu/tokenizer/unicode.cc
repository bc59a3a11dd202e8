#include "gpu/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <limits>

namespace reprise::engine {
namespace {

constexpr CodePoint kMalformed{};

uint32_t CategoryMask(char32_t value) { return U_GET_GC_MASK(static_cast<UChar32>(value)); }

// Owned by ICU; null with an error when its data is missing.
const icu::Normalizer2* Instance(NormalForm form, UErrorCode* error) {
  switch (form) {
    case NormalForm::kNfc:
      return icu::Normalizer2::getNFCInstance(*error);
    case NormalForm::kNfd:
      return icu::Normalizer2::getNFDInstance(*error);
    case NormalForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(*error);
    case NormalForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(*error);
  }
  *error = U_ILLEGAL_ARGUMENT_ERROR;
  return nullptr;
}

bool IsAscii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<signed char>(c) < 0) return false;
  }
  return true;
}

}  // namespace

CodePoint FirstCodePoint(std::string_view text) {
  if (text.empty()) return kMalformed;
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  // The lead byte decides the length and what the second byte may be (Unicode, table 3-7).
  uint32_t bytes = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead >= 0xC2 && lead <= 0xDF) {
    bytes = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    bytes = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    bytes = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return kMalformed;
  }
  if (text.size() < bytes || byte(1) < low || byte(1) > high) return kMalformed;
  char32_t value = lead & (0x7Fu >> bytes);
  value = value << 6 | (byte(1) & 0x3Fu);
  for (uint32_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return kMalformed;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  return {value, bytes};
}

CodePoint LastCodePoint(std::string_view text) {
  size_t start = text.empty() ? 0 : text.size() - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
  return FirstCodePoint(text.substr(start));
}

void AppendUtf8(char32_t value, std::string* text) {
  const auto tail = [&](uint32_t shift) {
    text->push_back(static_cast<char>(0x80 | (value >> shift & 0x3F)));
  };
  if (value < 0x80) {
    text->push_back(static_cast<char>(value));
  } else if (value < 0x800) {
    text->push_back(static_cast<char>(0xC0 | value >> 6));
    tail(0);
  } else if (value < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | value >> 12));
    tail(6);
    tail(0);
  } else {
    text->push_back(static_cast<char>(0xF0 | value >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const uint32_t bytes = FirstCodePoint(text.substr(at)).bytes;
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

bool IsWhitespace(char32_t value) { return u_isUWhiteSpace(static_cast<UChar32>(value)); }

bool IsNumeric(char32_t value) { return (CategoryMask(value) & U_GC_N_MASK) != 0; }

bool IsPunctuation(char32_t value) {
  if (value < 0x80) return value > ' ' && value < 0x7F && !u_isalnum(static_cast<UChar32>(value));
  return (CategoryMask(value) & U_GC_P_MASK) != 0;
}

bool IsMark(char32_t value) { return (CategoryMask(value) & U_GC_M_MASK) != 0; }

bool IsWord(char32_t value) {
  return u_isUAlphabetic(static_cast<UChar32>(value)) ||
         (CategoryMask(value) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

void AppendLower(char32_t value, std::string* text) {
  // The one character whose lower case is two wherever it stands.
  constexpr char32_t kCapitalIWithDot = 0x130;
  if (value == kCapitalIWithDot) {
    text->append("i\u0307");
  } else {
    AppendUtf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(value))), text);
  }
}

absl::Status CheckNormalForm(NormalForm form) {
  UErrorCode error = U_ZERO_ERROR;
  if (Instance(form, &error) != nullptr && U_SUCCESS(error)) return absl::OkStatus();
  return FailedPrecondition(std::string("ICU cannot load its normal forms (") + u_errorName(error) +
                            "); reinstall the package libicu72");
}

std::string ToNormalForm(NormalForm form, std::string_view text) {
  if (IsAscii(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = Instance(form, &error);
  RP_CHECK(U_SUCCESS(error));
  // ICU counts in int32. A text beyond that is nobody's prompt; it stays as it is.
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return std::string(text);
  }
  std::string normal;
  icu::StringByteSink<std::string> sink(&normal, static_cast<int32_t>(text.size()));
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                            sink, nullptr, error);
  RP_CHECK(U_SUCCESS(error));
  return normal;
}

}  // namespace reprise::engine
