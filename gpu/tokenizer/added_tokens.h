#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/types.h"

namespace reprise::engine {

// A token that is found in the text as it is written, before anything is split or merged.
struct AddedToken {
  std::string text;  // Not empty.
  TokenId id = 0;
  bool special = false;      // Decode leaves it out on request.
  bool single_word = false;  // Only where no word character touches it.
  bool left_strip = false;   // Takes the white space before it along.
  bool right_strip = false;  // And after it.
  bool normalized = false;   // Found in normalized text, not in the text as given.
};

// Finds added tokens: at the leftmost place the longest one, as Hugging Face tokenizers do.
// Immutable once filled; any thread.
class AddedTokenFinder {
 public:
  // False when `text` is there already. `token.text` is ignored in favour of `text`, which differs
  // from it for a token that is found in normalized text.
  [[nodiscard]] bool Add(std::string_view text, AddedToken token);
  bool empty() const { return tokens_.empty(); }

  // Calls `take` with the parts of a text from front to back: added tokens, and what is between
  // them with a null token. None is empty.
  using TakePart = std::function<void(std::string_view part, const AddedToken* token)>;
  void ForEachPart(std::string_view text, const TakePart& take) const;

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  // A trie; the children of a node are a list through next_sibling.
  struct Node {
    uint8_t byte = 0;
    uint32_t first_child = kNone;
    uint32_t next_sibling = kNone;
    uint32_t token = kNone;
  };
  struct Found {
    size_t bytes = 0;  // 0: no token begins here.
    uint32_t token = kNone;
  };

  uint32_t Child(uint32_t node, uint8_t byte) const;
  Found LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<uint32_t, 256> roots_ = Filled();  // The nodes of first bytes.

  static constexpr std::array<uint32_t, 256> Filled() {
    std::array<uint32_t, 256> none{};
    none.fill(kNone);
    return none;
  }
};

}  // namespace reprise::engine
