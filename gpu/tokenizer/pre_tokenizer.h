#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gpu/tokenizer/identity.h"
#include "gpu/tokenizer/regex.h"

namespace reprise::engine {

// What becomes of a delimiter that a text is split at.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,
  kMergedWithPrevious,
  kMergedWithNext,
  kContiguous,  // Neighbouring delimiters stay together.
};

// Splits text into words, which merges never cross: the pre-tokenizers of a tokenizer.json, one
// after another, each on the words of the one before. Immutable once filled; any thread.
class PreTokenizer {
 public:
  struct Split {
    Regex pattern;
    bool literal;
    SplitBehavior behavior;
    bool invert;  // The delimiter is what does not match.
  };
  struct Digits {
    bool individual;
  };
  struct Punctuation {
    SplitBehavior behavior;
  };
  struct PrefixSpace {};  // Before words that do not begin with one.
  using Step = std::variant<Split, Digits, Punctuation, PrefixSpace>;
  using TakeWord = std::function<void(std::string_view word)>;

  void Add(Step step);
  size_t size() const { return steps_.size(); }

  // Calls `take` with each word from front to back; none is empty. `text` is valid UTF-8.
  void ForEachWord(std::string_view text, const TakeWord& take) const { From(0, text, take); }
  // Adds what decides the words.
  void AppendIdentity(Identity* identity) const;

 private:
  void From(size_t step, std::string_view text, const TakeWord& take) const;

  std::vector<Step> steps_;
};

}  // namespace reprise::engine
