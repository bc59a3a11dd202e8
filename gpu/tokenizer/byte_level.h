#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace reprise::engine {

// The byte-level alphabet: each of the 256 bytes as one printable character, which is how a
// tokenizer.json writes tokens. Printable bytes of Latin-1 stand for themselves, the others for
// the characters from U+0100 on, in order.

std::string ToByteLevel(std::string_view bytes);
// Nothing when `text` has characters outside the alphabet: such a token is no piece of text.
std::optional<std::string> FromByteLevel(std::string_view text);

}  // namespace reprise::engine
