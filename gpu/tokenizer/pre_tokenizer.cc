#include "gpu/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

// Joins the parts that a text falls into, delimiters and what is between them, to words.
class Joiner {
 public:
  Joiner(SplitBehavior behavior, std::string_view text, const PreTokenizer::TakeWord& take)
      : behavior_(behavior), text_(text), take_(take) {}

  // The parts come in order and cover the text.
  void Part(size_t begin, size_t end, bool delimiter) {
    if (!started_ || !Joins(delimiter)) {
      Flush();
      begin_ = begin;
    }
    end_ = end;
    delimiter_ = delimiter;
    started_ = true;
  }
  void Flush() {
    const bool removed = behavior_ == SplitBehavior::kRemoved && delimiter_;
    if (begin_ < end_ && !removed) take_(text_.substr(begin_, end_ - begin_));
    begin_ = end_;
  }

 private:
  bool Joins(bool delimiter) const {
    switch (behavior_) {
      case SplitBehavior::kRemoved:
      case SplitBehavior::kIsolated:
        return false;
      case SplitBehavior::kMergedWithPrevious:
        return delimiter && !delimiter_;
      case SplitBehavior::kMergedWithNext:
        return !delimiter && delimiter_;
      case SplitBehavior::kContiguous:
        return delimiter == delimiter_;
    }
    return false;
  }

  SplitBehavior behavior_;
  std::string_view text_;
  const PreTokenizer::TakeWord& take_;
  size_t begin_ = 0;
  size_t end_ = 0;
  bool delimiter_ = false;  // Of the last part.
  bool started_ = false;
};

void Run(const PreTokenizer::Split& step, std::string_view text,
         const PreTokenizer::TakeWord& take) {
  Joiner joiner(step.behavior, text, take);
  size_t done = 0;
  Regex::Search search(step.pattern, text);
  while (const std::optional<Regex::Match> match = search.Next()) {
    if (done < match->begin) joiner.Part(done, match->begin, step.invert);
    joiner.Part(match->begin, match->end, !step.invert);
    done = match->end;
  }
  if (done < text.size()) joiner.Part(done, text.size(), step.invert);
  joiner.Flush();
}

template <typename IsDelimiter>
void SplitCharacters(SplitBehavior behavior, std::string_view text,
                     const PreTokenizer::TakeWord& take, const IsDelimiter& is_delimiter) {
  Joiner joiner(behavior, text, take);
  size_t between = 0;  // Where what is not yet a part begins.
  size_t at = 0;
  while (at < text.size()) {
    const CodePoint point = FirstCodePoint(text.substr(at));
    if (point.bytes == 0) break;
    if (is_delimiter(point.value)) {
      if (between < at) joiner.Part(between, at, false);
      between = at + point.bytes;
      joiner.Part(at, between, true);
    }
    at += point.bytes;
  }
  if (between < text.size()) joiner.Part(between, text.size(), false);
  joiner.Flush();
}

void Run(const PreTokenizer::Digits& step, std::string_view text,
         const PreTokenizer::TakeWord& take) {
  SplitCharacters(step.individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, text,
                  take, IsNumeric);
}

void Run(const PreTokenizer::Punctuation& step, std::string_view text,
         const PreTokenizer::TakeWord& take) {
  SplitCharacters(step.behavior, text, take, IsPunctuation);
}

void Run(const PreTokenizer::PrefixSpace&, std::string_view text,
         const PreTokenizer::TakeWord& take) {
  if (text.starts_with(' ')) return take(text);
  take(" " + std::string(text));
}

void Describe(const PreTokenizer::Split& step, Identity* identity) {
  identity->Number(step.literal);
  identity->Text(step.pattern.pattern());
  identity->Number(static_cast<uint32_t>(step.behavior));
  identity->Number(step.invert);
}
void Describe(const PreTokenizer::Digits& step, Identity* identity) {
  identity->Number(step.individual);
}
void Describe(const PreTokenizer::Punctuation& step, Identity* identity) {
  identity->Number(static_cast<uint32_t>(step.behavior));
}
void Describe(const PreTokenizer::PrefixSpace&, Identity*) {}

}  // namespace

void PreTokenizer::Add(Step step) { steps_.push_back(std::move(step)); }

void PreTokenizer::From(size_t step, std::string_view text, const TakeWord& take) const {
  if (text.empty()) return;
  if (step == steps_.size()) return take(text);
  const auto further = [&](std::string_view word) { From(step + 1, word, take); };
  const TakeWord next = std::cref(further);  // By reference: a copy would allocate.
  std::visit([&](const auto& kind) { Run(kind, text, next); }, steps_[step]);
}

void PreTokenizer::AppendIdentity(Identity* identity) const {
  identity->Number(static_cast<uint32_t>(steps_.size()));
  for (const Step& step : steps_) {
    identity->Number(static_cast<uint32_t>(step.index()));
    std::visit([&](const auto& kind) { Describe(kind, identity); }, step);
  }
}

}  // namespace reprise::engine
