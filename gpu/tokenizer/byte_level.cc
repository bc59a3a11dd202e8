#include "gpu/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

struct Alphabet {
  static constexpr uint16_t kNone = 256;
  std::array<uint16_t, 256> characters{};  // All below 0x144.
  std::array<uint16_t, 0x144> bytes{};

  constexpr Alphabet() {
    bytes.fill(kNone);
    uint16_t next = 0x100;
    for (uint16_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
      characters[byte] = printable ? byte : next++;
      bytes[characters[byte]] = byte;
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string ToByteLevel(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) AppendUtf8(kAlphabet.characters[static_cast<uint8_t>(byte)], &text);
  return text;
}

std::optional<std::string> FromByteLevel(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    if (point.bytes == 0 || point.value >= kAlphabet.bytes.size() ||
        kAlphabet.bytes[point.value] == Alphabet::kNone) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kAlphabet.bytes[point.value]));
    text.remove_prefix(point.bytes);
  }
  return bytes;
}

}  // namespace reprise::engine
