#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/base/bytes.h"
#include "protocol/base/sha256.h"

namespace reprise::engine {

// Collects what decides a tokenizer's ids; different contents give different bytes, since every
// text is framed by its length.
class Identity {
 public:
  explicit Identity(std::string_view kind) { Text(kind); }

  void Number(uint32_t value) { bytes_ += AsText(AsBytes(value)); }
  void Text(std::string_view text) {
    Number(static_cast<uint32_t>(text.size()));
    bytes_ += text;
  }
  Hash256 Digest() const { return Sha256({AsBytes(std::string_view(bytes_))}); }

 private:
  std::string bytes_;
};

}  // namespace reprise::engine
