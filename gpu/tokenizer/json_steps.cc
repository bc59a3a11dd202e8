#include "gpu/tokenizer/json_steps.h"

#include <array>
#include <utility>

namespace reprise::engine {
namespace {

constexpr size_t kStepsMax = 64;

// What ByteLevel splits by when it uses its regex: GPT-2's words.
constexpr std::string_view kByteLevelWords =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Pattern {
  Regex regex;
  bool literal;
};

absl::StatusOr<Pattern> ReadPattern(const JsonField& step) {
  RP_ASSIGN(const JsonField pattern, step.Get("pattern"));
  const bool literal = pattern.Has("String");
  if (!literal && !pattern.Has("Regex")) {
    return pattern.Refuse("must be {\"String\": ...} or {\"Regex\": ...}");
  }
  RP_ASSIGN(const std::string text, pattern.Text(literal ? "String" : "Regex"));
  absl::StatusOr<Regex> regex = literal ? Regex::Literal(text) : Regex::Compile(text);
  if (!regex.ok()) return pattern.Refuse("cannot be used: " + Message(regex.status()));
  return Pattern{*std::move(regex), literal};
}

absl::StatusOr<SplitBehavior> ReadBehavior(const JsonField& step) {
  constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kBehaviors = {{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  RP_ASSIGN(const std::string name, step.Text("behavior"));
  for (const auto& [known, behavior] : kBehaviors) {
    if (name == known) return behavior;
  }
  return step.Refuse(
      "has an unknown behavior \"" + name +
      "\"; known: Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// ---- Normalizers -------------------------------------------------------------------------------

absl::Status AddForm(NormalForm form, Normalizer* normalizer) {
  RP_TRY(CheckNormalForm(form));
  normalizer->Add(Normalizer::Form{form});
  return absl::OkStatus();
}

absl::Status AddReplace(const JsonField& step, Normalizer* normalizer) {
  RP_ASSIGN(Pattern pattern, ReadPattern(step));
  RP_ASSIGN(std::string content, step.Text("content"));
  normalizer->Add(
      Normalizer::Replace{std::move(pattern.regex), pattern.literal, std::move(content)});
  return absl::OkStatus();
}

absl::Status AddStrip(const JsonField& step, Normalizer* normalizer) {
  RP_ASSIGN(const bool left, step.Flag("strip_left"));
  RP_ASSIGN(const bool right, step.Flag("strip_right"));
  normalizer->Add(Normalizer::Strip{left, right});
  return absl::OkStatus();
}

absl::Status AddNormalizer(const JsonField& step, Normalizer* normalizer) {
  if (normalizer->size() >= kStepsMax)
    return step.Refuse("is one step too many; at most 64 are supported");
  RP_ASSIGN(const std::string type, step.Text("type"));
  if (type == "Sequence") {
    RP_ASSIGN(const std::vector<JsonField> steps, step.List("normalizers", kStepsMax));
    for (const JsonField& inner : steps) RP_TRY(AddNormalizer(inner, normalizer));
    return absl::OkStatus();
  }
  if (type == "NFC") return AddForm(NormalForm::kNfc, normalizer);
  if (type == "NFD") return AddForm(NormalForm::kNfd, normalizer);
  if (type == "NFKC") return AddForm(NormalForm::kNfkc, normalizer);
  if (type == "NFKD") return AddForm(NormalForm::kNfkd, normalizer);
  if (type == "Replace") return AddReplace(step, normalizer);
  if (type == "Strip") return AddStrip(step, normalizer);
  if (type == "Prepend") {
    RP_ASSIGN(std::string text, step.Text("prepend"));
    normalizer->Add(Normalizer::Prepend{std::move(text)});
  } else if (type == "Lowercase") {
    normalizer->Add(Normalizer::Lowercase{});
  } else if (type == "StripAccents") {
    normalizer->Add(Normalizer::StripAccents{});
  } else {
    return step.Refuse("is a normalizer \"" + type +
                       "\", which is not supported; supported: NFC, NFD, NFKC, NFKD, Lowercase, "
                       "StripAccents, Replace, Strip, Prepend, Sequence");
  }
  return absl::OkStatus();
}

// ---- Pre-tokenizers ----------------------------------------------------------------------------

absl::Status AddSplit(const JsonField& step, PreTokenizer* pre_tokenizer) {
  RP_ASSIGN(Pattern pattern, ReadPattern(step));
  RP_ASSIGN(const SplitBehavior behavior, ReadBehavior(step));
  RP_ASSIGN(const bool invert, step.Flag("invert", false));
  pre_tokenizer->Add(
      PreTokenizer::Split{std::move(pattern.regex), pattern.literal, behavior, invert});
  return absl::OkStatus();
}

absl::Status AddByteLevel(const JsonField& step, PreTokenizer* pre_tokenizer) {
  RP_ASSIGN(const bool prefix_space, step.Flag("add_prefix_space"));
  RP_ASSIGN(const bool use_regex, step.Flag("use_regex", true));
  if (prefix_space) pre_tokenizer->Add(PreTokenizer::PrefixSpace{});
  if (use_regex) {
    RP_ASSIGN(Regex words, Regex::Compile(kByteLevelWords));
    pre_tokenizer->Add(
        PreTokenizer::Split{std::move(words), false, SplitBehavior::kIsolated, false});
  }
  return absl::OkStatus();
}

// `byte_level`: whether the last step was ByteLevel, after which the text is no longer text.
absl::Status AddPreTokenizer(const JsonField& step, bool* byte_level, PreTokenizer* pre_tokenizer) {
  if (pre_tokenizer->size() >= kStepsMax)
    return step.Refuse("is one step too many; at most 64 are supported");
  RP_ASSIGN(const std::string type, step.Text("type"));
  if (type == "Sequence") {
    RP_ASSIGN(const std::vector<JsonField> steps, step.List("pretokenizers", kStepsMax));
    for (const JsonField& inner : steps) RP_TRY(AddPreTokenizer(inner, byte_level, pre_tokenizer));
    return absl::OkStatus();
  }
  if (*byte_level) return step.Refuse("comes after ByteLevel, which must be the last");
  if (type == "Split") return AddSplit(step, pre_tokenizer);
  if (type == "ByteLevel") {
    *byte_level = true;
    return AddByteLevel(step, pre_tokenizer);
  }
  if (type == "Digits") {
    RP_ASSIGN(const bool individual, step.Flag("individual_digits"));
    pre_tokenizer->Add(PreTokenizer::Digits{individual});
  } else if (type == "Punctuation") {
    SplitBehavior behavior = SplitBehavior::kIsolated;
    if (step.Has("behavior")) {
      RP_ASSIGN(behavior, ReadBehavior(step));
    }
    pre_tokenizer->Add(PreTokenizer::Punctuation{behavior});
  } else {
    return step.Refuse("is a pre-tokenizer \"" + type +
                       "\", which is not supported; supported: Split, ByteLevel, Digits, "
                       "Punctuation, Sequence");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> ReadNormalizer(const JsonField& file) {
  Normalizer normalizer;
  if (!file.Has("normalizer")) return normalizer;
  RP_ASSIGN(const JsonField field, file.Get("normalizer"));
  RP_TRY(AddNormalizer(field, &normalizer));
  return normalizer;
}

absl::StatusOr<PreTokenizer> ReadPreTokenizer(const JsonField& file) {
  RP_ASSIGN(const JsonField field, file.Get("pre_tokenizer"));
  PreTokenizer pre_tokenizer;
  bool byte_level = false;
  if (!field.value().is_null()) RP_TRY(AddPreTokenizer(field, &byte_level, &pre_tokenizer));
  if (!byte_level) return field.Refuse("must end in ByteLevel; other tokenizers are not supported");
  return pre_tokenizer;
}

}  // namespace reprise::engine
