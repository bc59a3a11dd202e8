#include "gpu/tokenizer/normalizer.h"

#include <optional>
#include <utility>

namespace reprise::engine {
namespace {

// Calls `take` with each character of valid UTF-8 and its bytes.
template <typename Take>
void ForEachCharacter(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const CodePoint point = FirstCodePoint(text);
    if (point.bytes == 0) return;
    take(point.value, text.substr(0, point.bytes));
    text.remove_prefix(point.bytes);
  }
}

std::string Run(const Normalizer::Form& step, std::string_view text) {
  return ToNormalForm(step.form, text);
}

std::string Run(const Normalizer::Lowercase&, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](char32_t value, std::string_view) { AppendLower(value, &out); });
  return out;
}

std::string Run(const Normalizer::StripAccents&, std::string_view text) {
  std::string out;
  out.reserve(text.size());
  ForEachCharacter(text, [&](char32_t value, std::string_view bytes) {
    if (!IsMark(value)) out += bytes;
  });
  return out;
}

std::string Run(const Normalizer::Replace& step, std::string_view text) {
  std::string out;
  size_t copied = 0;
  Regex::Search search(step.pattern, text);
  while (const std::optional<Regex::Match> match = search.Next()) {
    out += text.substr(copied, match->begin - copied);
    out += step.content;
    copied = match->end;
  }
  out += text.substr(copied);
  return out;
}

std::string Run(const Normalizer::Strip& step, std::string_view text) {
  while (step.left && !text.empty()) {
    const CodePoint first = FirstCodePoint(text);
    if (!IsWhitespace(first.value)) break;
    text.remove_prefix(first.bytes);
  }
  while (step.right && !text.empty()) {
    const CodePoint last = LastCodePoint(text);
    if (!IsWhitespace(last.value)) break;
    text.remove_suffix(last.bytes);
  }
  return std::string(text);
}

std::string Run(const Normalizer::Prepend& step, std::string_view text) {
  return text.empty() ? std::string() : step.text + std::string(text);
}

void Describe(const Normalizer::Form& step, Identity* identity) {
  identity->Number(static_cast<uint32_t>(step.form));
}
void Describe(const Normalizer::Lowercase&, Identity*) {}
void Describe(const Normalizer::StripAccents&, Identity*) {}
void Describe(const Normalizer::Replace& step, Identity* identity) {
  identity->Number(step.literal);
  identity->Text(step.pattern.pattern());
  identity->Text(step.content);
}
void Describe(const Normalizer::Strip& step, Identity* identity) {
  identity->Number(step.left);
  identity->Number(step.right);
}
void Describe(const Normalizer::Prepend& step, Identity* identity) { identity->Text(step.text); }

}  // namespace

void Normalizer::Add(Step step) { steps_.push_back(std::move(step)); }

std::string Normalizer::Apply(std::string_view text) const {
  std::string out(text);
  for (const Step& step : steps_) {
    out = std::visit([&](const auto& kind) { return Run(kind, out); }, step);
  }
  return out;
}

void Normalizer::AppendIdentity(Identity* identity) const {
  identity->Number(static_cast<uint32_t>(steps_.size()));
  for (const Step& step : steps_) {
    identity->Number(static_cast<uint32_t>(step.index()));
    std::visit([&](const auto& kind) { Describe(kind, identity); }, step);
  }
}

}  // namespace reprise::engine
