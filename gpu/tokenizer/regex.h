#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/base/status.h"

struct pcre2_real_code_8;

namespace reprise::engine {

// A regular expression as Hugging Face tokenizers understand it: Oniguruma's syntax over Unicode
// text. The door to PCRE2. Immutable after compiling; any thread.
class Regex {
 public:
  // Where PCRE2 reads a construct otherwise than Oniguruma, it is translated or refused by name.
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  // Matches `text` itself.
  static absl::StatusOr<Regex> Literal(std::string_view text);

  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };
  // The matches of a text from front to back, none overlapping, none empty right after another.
  // A match that takes more than kStepsMax steps ends them: no text can hang the search.
  class Search {
   public:
    // `text` is valid UTF-8; it and the regex outlive this.
    Search(const Regex& regex, std::string_view text) : regex_(regex), text_(text) {}
    std::optional<Match> Next();

   private:
    const Regex& regex_;
    std::string_view text_;
    size_t from_ = 0;
    std::optional<size_t> last_end_;
  };
  static constexpr uint32_t kStepsMax = 10'000'000;  // Oniguruma's limit too.

  const std::string& pattern() const { return pattern_; }

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };

  static absl::StatusOr<Regex> Build(std::string_view pattern, std::string_view translated,
                                     uint32_t options);
  std::optional<Match> Find(std::string_view text, size_t from) const;

  std::string pattern_;  // As given.
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool compiled_to_machine_code_ = false;
};

// Oniguruma's syntax in PCRE2's words, or what is not supported. For Regex and its tests.
absl::StatusOr<std::string> TranslateRegex(std::string_view pattern);

}  // namespace reprise::engine
