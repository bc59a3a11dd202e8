#include <array>
#include <string>

#include "gpu/tokenizer/regex.h"

// PCRE2 and Oniguruma agree on most of what tokenizers write. This file knows where they do not:
// \s, \w and \h mean other sets of characters, \v is one character, and a few constructs would be
// read as something else without an error.
namespace reprise::engine {
namespace {

struct Escape {
  char letter;
  std::string_view outside;  // Empty: not supported.
  std::string_view in_class;
};
constexpr std::array kEscapes = {
    Escape{'s', R"(\p{White_Space})", R"(\p{White_Space})"},
    Escape{'S', R"(\P{White_Space})", R"(\P{White_Space})"},
    Escape{'d', R"(\p{Nd})", R"(\p{Nd})"},
    Escape{'D', R"(\P{Nd})", R"(\P{Nd})"},
    Escape{'w', R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])", R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})"},
    Escape{'W', R"([^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}])", ""},
    Escape{'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
    Escape{'H', "[^0-9A-Fa-f]", ""},
    Escape{'v', R"(\x0B)", R"(\x0B)"},
    Escape{'n', R"(\n)", R"(\n)"},
    Escape{'r', R"(\r)", R"(\r)"},
    Escape{'t', R"(\t)", R"(\t)"},
    Escape{'f', R"(\f)", R"(\f)"},
    Escape{'a', R"(\a)", R"(\a)"},
    Escape{'e', R"(\e)", R"(\e)"},
    Escape{'x', R"(\x)", R"(\x)"},  // Digits follow, or braces.
    Escape{'p', R"(\p)", R"(\p)"},
    Escape{'P', R"(\P)", R"(\P)"},
    Escape{'A', R"(\A)", ""},
    Escape{'z', R"(\z)", ""},
    Escape{'Z', R"(\Z)", ""},
};

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

class Translator {
 public:
  explicit Translator(std::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) RP_TRY(Step());
    if (in_class_) return Refuse("a class without its ]");
    return std::move(out_);
  }

 private:
  absl::Status Step() {
    const char c = rest_.front();
    if (c == '\\') return Backslash();
    if (in_class_) return InClass(c);
    switch (c) {
      case '[':
        if (rest_.starts_with("[]") || rest_.starts_with("[^]")) return Refuse("an empty class");
        in_class_ = true;
        Copy(rest_.starts_with("[^") ? 2 : 1);
        return absl::OkStatus();
      case '(':
        return Group();
      case '{':
        // Oniguruma reads {,n} as {0,n}, and a{n,m}+ as (?:a{n,m})+.
        if (rest_.starts_with("{,")) return Refuse("{,n}; write {0,n}");
        break;
      case '}':
        if (rest_.starts_with("}+")) return Refuse("a repetition of a repetition; use a group");
        break;
      default:
        break;
    }
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status InClass(char c) {
    if (c == '[') return Refuse("a class within a class; write \\[ for the character");
    if (rest_.starts_with("&&")) return Refuse("an intersection of classes");
    if (c == ']') in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (rest_.starts_with("(*")) return Refuse("(*");
    if (!rest_.starts_with("(?")) {
      Copy(1);
      return absl::OkStatus();
    }
    // Options: (?m) and (?s) do not mean the same to both.
    size_t end = 2;
    while (end < rest_.size() && (IsLetterOrDigit(rest_[end]) || rest_[end] == '-')) ++end;
    const std::string_view options = rest_.substr(2, end - 2);
    if (options.find_first_not_of("i-") != std::string_view::npos) {
      return Refuse("(?" + std::string(options) + "; only the option i is");
    }
    const std::string_view after = rest_.substr(end);
    if (options.empty() && !after.starts_with(':') && !after.starts_with('=') &&
        !after.starts_with('!') && !after.starts_with('>') && !after.starts_with("<=") &&
        !after.starts_with("<!")) {
      return Refuse("a group that begins with " + std::string(rest_.substr(0, 3)));
    }
    Copy(end);
    return absl::OkStatus();
  }

  absl::Status Backslash() {
    if (rest_.size() < 2) return Refuse("a \\ at the end");
    const char letter = rest_[1];
    if (letter == 'u') return FourDigits();
    if (!IsLetterOrDigit(letter)) {
      Copy(2);
      return absl::OkStatus();
    }
    for (const Escape& escape : kEscapes) {
      const std::string_view text = in_class_ ? escape.in_class : escape.outside;
      if (escape.letter != letter || text.empty()) continue;
      out_ += text;
      rest_.remove_prefix(2);
      if (letter == 'p' || letter == 'P' || letter == 'x') CopyBraces();
      return absl::OkStatus();
    }
    return Refuse("\\" + std::string(1, letter) + (in_class_ ? " in a class" : ""));
  }

  absl::Status FourDigits() {
    const std::string_view digits = rest_.substr(2).substr(0, 4);
    if (digits.size() < 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return Refuse("\\u without four hexadecimal digits");
    }
    out_ += "\\x{" + std::string(digits) + "}";
    rest_.remove_prefix(6);
    return absl::OkStatus();
  }

  // The {..} of a property or a number, if there is one.
  void CopyBraces() {
    const size_t end = rest_.find('}');
    if (rest_.starts_with('{') && end != std::string_view::npos) Copy(end + 1);
  }

  void Copy(size_t count) {
    out_ += rest_.substr(0, count);
    rest_.remove_prefix(count);
  }

  static absl::Status Refuse(std::string_view what) {
    return InvalidArgument("not supported: " + std::string(what));
  }

  std::string_view rest_;
  std::string out_;
  bool in_class_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslateRegex(std::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace reprise::engine
