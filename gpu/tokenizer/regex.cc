#include "gpu/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

constexpr size_t kPatternBytesMax = 64 * 1024;
constexpr uint32_t kHeapKibMax = 64 * 1024;  // For the interpreter; machine code has its own stack.

PCRE2_SPTR Units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

struct FreeMatch {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// What a thread needs to search with any regex: room for one match.
struct Workplace {
  std::unique_ptr<pcre2_match_data, FreeMatch> data{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};

  Workplace() {
    RP_CHECK(data != nullptr && context != nullptr);
    pcre2_set_match_limit(context.get(), Regex::kStepsMax);
    pcre2_set_heap_limit(context.get(), kHeapKibMax);
  }
};

Workplace& ThisThread() {
  thread_local Workplace workplace;
  return workplace;
}

}  // namespace

void Regex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Regex> Regex::Compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) return InvalidArgument("longer than 64 KiB");
  absl::StatusOr<std::string> translated = TranslateRegex(pattern);
  if (!translated.ok()) return translated.status();
  // In Oniguruma, ^ and $ always stand at the ends of lines.
  return Build(pattern, *translated,
               PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<Regex> Regex::Literal(std::string_view text) {
  if (text.size() > kPatternBytesMax) return InvalidArgument("longer than 64 KiB");
  return Build(text, text, PCRE2_UTF | PCRE2_LITERAL);
}

absl::StatusOr<Regex> Regex::Build(std::string_view pattern, std::string_view translated,
                                   uint32_t options) {
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  RP_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Regex regex;
  regex.code_.reset(
      pcre2_compile(Units(translated), translated.size(), options, &error, &offset, context.get()));
  if (regex.code_ == nullptr) {
    PCRE2_UCHAR words[256] = {};
    pcre2_get_error_message(error, words, sizeof(words));
    return InvalidArgument("PCRE2 says: " + std::string(reinterpret_cast<const char*>(words)));
  }
  regex.pattern_ = pattern;
  // Where machine code is not to be had, the interpreter gives the same matches.
  regex.compiled_to_machine_code_ = pcre2_jit_compile(regex.code_.get(), PCRE2_JIT_COMPLETE) == 0;
  return regex;
}

std::optional<Regex::Match> Regex::Find(std::string_view text, size_t from) const {
  Workplace& workplace = ThisThread();
  pcre2_match_data* data = workplace.data.get();
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (compiled_to_machine_code_) {
    found = pcre2_jit_match(code_.get(), Units(text), text.size(), from, 0, data,
                            workplace.context.get());
  }
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code_.get(), Units(text), text.size(), from,
                        PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, data, workplace.context.get());
  }
  if (found < 0) return std::nullopt;  // No match, or a limit was reached.
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  return Match{ends[0], ends[1]};
}

std::optional<Regex::Match> Regex::Search::Next() {
  while (from_ <= text_.size()) {
    const std::optional<Match> match = regex_.Find(text_, from_);
    if (!match) break;
    if (match->begin != match->end || last_end_ != match->end) {
      from_ = match->end;
      last_end_ = match->end;
      return match;
    }
    // Empty, right after the last: look again from the next character.
    from_ = match->end + std::max<size_t>(1, FirstCodePoint(text_.substr(match->end)).bytes);
  }
  from_ = text_.size() + 1;
  return std::nullopt;
}

}  // namespace reprise::engine
