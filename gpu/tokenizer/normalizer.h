#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "gpu/tokenizer/identity.h"
#include "gpu/tokenizer/regex.h"
#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {

// What is done to text before it is split: the normalizers of a tokenizer.json, one after another.
// Immutable once filled; any thread.
class Normalizer {
 public:
  struct Form {
    NormalForm form;
  };
  struct Lowercase {};
  struct StripAccents {};  // Removes marks; accents are marks only in a decomposed form.
  struct Replace {
    Regex pattern;
    bool literal;
    std::string content;  // Taken as it is: no references to groups.
  };
  struct Strip {
    bool left;
    bool right;
  };
  struct Prepend {  // To text that is not empty.
    std::string text;
  };
  using Step = std::variant<Form, Lowercase, StripAccents, Replace, Strip, Prepend>;

  void Add(Step step);
  size_t size() const { return steps_.size(); }

  // `text` is valid UTF-8, and so is the result.
  std::string Apply(std::string_view text) const;
  // Adds what decides the result of Apply.
  void AppendIdentity(Identity* identity) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace reprise::engine
