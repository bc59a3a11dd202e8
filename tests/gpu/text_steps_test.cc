#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/normalizer.h"
#include "gpu/tokenizer/pre_tokenizer.h"
#include "gpu/tokenizer/regex.h"
#include "gpu/tokenizer/unicode.h"

namespace reprise::engine {
namespace {

using ::testing::ElementsAre;
using Words = std::vector<std::string>;

// ---- Unicode -----------------------------------------------------------------------------------

TEST(Unicode, ReadsEveryCharacterThatItWrites) {
  for (char32_t value = 0; value <= 0x110000; ++value) {
    std::string text;
    AppendUtf8(value, &text);
    const CodePoint first = FirstCodePoint(text);
    if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      ASSERT_EQ(first.bytes, 0u) << uint32_t{value};
      continue;
    }
    ASSERT_EQ(first.value, value);
    ASSERT_EQ(first.bytes, text.size());
    ASSERT_EQ(LastCodePoint("é" + text).value, value);
    for (size_t size = 0; size < text.size(); ++size) {
      ASSERT_EQ(FirstCodePoint(text.substr(0, size)).bytes, 0u);
    }
  }
}

TEST(Unicode, FindsTheFirstByteThatIsNoCharacter) {
  EXPECT_EQ(ValidUtf8Prefix(""), 0u);
  EXPECT_EQ(ValidUtf8Prefix("aé\xC3"), 3u);
  EXPECT_EQ(ValidUtf8Prefix("\xC0\x80"), 0u);
  EXPECT_EQ(ValidUtf8Prefix("ab\xED\xA0\x80"), 2u);
  EXPECT_TRUE(IsValidUtf8("日本\U0001F600"));
}

TEST(Unicode, Kinds) {
  for (const char32_t c : {U' ', U'\t', U'\v', U'\u0085', U'\u00A0', U'\u3000', U'\u2028'}) {
    EXPECT_TRUE(IsWhitespace(c)) << uint32_t{c};
  }
  for (const char32_t c : {U'\u180E', U'\u200B', U'\x1C', U'a'}) {
    EXPECT_FALSE(IsWhitespace(c)) << uint32_t{c};
  }
  for (const char32_t c : {U'0', U'½', U'Ⅷ', U'१'}) EXPECT_TRUE(IsNumeric(c));
  for (const char32_t c : {U'!', U'$', U'+', U'~', U'`', U'。', U'«'})
    EXPECT_TRUE(IsPunctuation(c));
  for (const char32_t c : {U' ', U'a', U'9', U'\x7F', U'€', U'\n'}) EXPECT_FALSE(IsPunctuation(c));
  for (const char32_t c : {U'\u0301', U'\u0903', U'\u20DD'}) EXPECT_TRUE(IsMark(c));
  for (const char32_t c : {U'a', U'_', U'é', U'\u0301', U'9', U'日'}) EXPECT_TRUE(IsWord(c));
  for (const char32_t c : {U'-', U' ', U'½', U'。'}) EXPECT_FALSE(IsWord(c));
}

TEST(ByteLevel, IsOneToOne) {
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  EXPECT_EQ(FromByteLevel(ToByteLevel(all)), all);
  EXPECT_EQ(ToByteLevel(" \n\x7F\xAD\xC3"), "ĠĊġŃÃ");
  EXPECT_EQ(FromByteLevel("a b"), std::nullopt);
  EXPECT_EQ(FromByteLevel("｜"), std::nullopt);
  EXPECT_EQ(FromByteLevel("\u0144"), std::nullopt);
}

// ---- Regular expressions -----------------------------------------------------------------------

Words Matches(std::string_view pattern, std::string_view text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status();
  Words matches;
  Regex::Search search(*regex, text);
  while (const auto match = search.Next()) {
    matches.emplace_back(text.substr(match->begin, match->end - match->begin));
  }
  return matches;
}

TEST(Regex, ReadsOnigurumasSyntax) {
  EXPECT_THAT(Matches(R"(\p{N}{1,3})", "12345 ½"), ElementsAre("123", "45", "½"));
  EXPECT_THAT(Matches(R"([一-龥぀-ゟ゠-ヿ]+)", "a日本b語"), ElementsAre("日本", "語"));
  EXPECT_THAT(Matches(R"(\s+)", "a \u00A0\v\u180E\u0085"), ElementsAre(" \u00A0\v", "\u0085"));
  EXPECT_THAT(Matches(R"([^\s]+)", "a \u180Eb"), ElementsAre("a", "\u180Eb"));
  EXPECT_THAT(Matches(R"(\S+(?!\S))", "ab c"), ElementsAre("ab", "c"));
  EXPECT_THAT(Matches(R"(\w+)", "e\u0301_9-½"), ElementsAre("e\u0301_9"));
  EXPECT_THAT(Matches(R"([\w-]+)", "a-b c"), ElementsAre("a-b", "c"));
  EXPECT_THAT(Matches(R"(\h+)", "xfF09g"), ElementsAre("fF09"));
  EXPECT_THAT(Matches(R"(\v)", "\n\v"), ElementsAre("\v"));
  EXPECT_THAT(Matches(R"(\u00e9|\x41|\x{65E5})", "éA日"), ElementsAre("é", "A", "日"));
  EXPECT_THAT(Matches("^.$", "a\nb"), ElementsAre("a", "b"));
  EXPECT_THAT(Matches("(?i:'LL)", "'ll"), ElementsAre("'ll"));
  EXPECT_THAT(Matches(R"([\[\]]+)", "a[]b"), ElementsAre("[]"));
}

TEST(Regex, EmptyMatchesGoOnAndDoNotTouchTheLast) {
  EXPECT_THAT(Matches("a*", "baéea"), ElementsAre("", "a", "", "a"));
  EXPECT_THAT(Matches("", "日本"), ElementsAre("", "", ""));
  EXPECT_THAT(Matches("x", ""), ElementsAre());
}

TEST(Regex, RefusesWhatPcreReadsOtherwise) {
  for (const char* pattern : {
           "(?m)a",   "(?s:.)",         "(?R)",        "(?1)",  "(?<n>a)", "(*LIMIT_MATCH=1)a",
           "[a[b]]",  "[a&&b]",         "[[:alpha:]]", "[]a]",  "[^]a]",   R"(\b)",
           R"(\K)",   R"(\R)",          R"(\X)",       R"(\1)", R"(\C)",   R"([\W])",
           R"(\u12)", "a{,3}",          "a{1,2}+",     "a\\",   "[a",      "(",
           "a**",     R"(\p{Klingon})", "(?C1)",       "(?#x)",
       }) {
    const auto regex = Regex::Compile(pattern);
    EXPECT_FALSE(regex.ok()) << pattern;
    EXPECT_FALSE(Message(regex.status()).empty());
  }
  EXPECT_FALSE(Regex::Compile(std::string(70'000, 'a')).ok());
}

TEST(Regex, LiteralMatchesItself) {
  const auto regex = Regex::Literal("a.[b");
  ASSERT_TRUE(regex.ok());
  Regex::Search search(*regex, "aab a.[b");
  const auto match = search.Next();
  ASSERT_TRUE(match.has_value());
  EXPECT_EQ(match->begin, 4u);
  EXPECT_FALSE(search.Next().has_value());
}

TEST(Regex, AMatchThatTakesForeverEndsTheSearch) {
  EXPECT_THAT(Matches("(?:a+)+$|a", std::string(40, 'a') + "b"), ElementsAre());
}

// ---- Normalizers -------------------------------------------------------------------------------

std::string Normal(Normalizer::Step step, std::string_view text) {
  Normalizer normalizer;
  normalizer.Add(std::move(step));
  return normalizer.Apply(text);
}

TEST(Normalizer, NormalForms) {
  const std::string_view text = "e\u0301 \u00E9 \uFB01 \u1E9B\u0323";
  EXPECT_EQ(Normal(Normalizer::Form{NormalForm::kNfc}, text), "é é \uFB01 \u1E9B\u0323");
  EXPECT_EQ(Normal(Normalizer::Form{NormalForm::kNfd}, text),
            "e\u0301 e\u0301 \uFB01 \u017F\u0323\u0307");
  EXPECT_EQ(Normal(Normalizer::Form{NormalForm::kNfkc}, text), "é é fi \u1E69");
  EXPECT_EQ(Normal(Normalizer::Form{NormalForm::kNfkd}, text), "e\u0301 e\u0301 fi s\u0323\u0307");
  EXPECT_EQ(Normal(Normalizer::Form{NormalForm::kNfkc}, "plain"), "plain");
}

TEST(Normalizer, Steps) {
  EXPECT_EQ(Normal(Normalizer::Lowercase{}, "ÀΣ\u0130ẞ日"), "àσi\u0307ß日");
  EXPECT_EQ(Normal(Normalizer::StripAccents{}, "e\u0301\u0903é"), "eé");
  EXPECT_EQ(Normal(Normalizer::Strip{true, false}, "\u3000 a "), "a ");
  EXPECT_EQ(Normal(Normalizer::Strip{false, true}, " a \u0085"), " a");
  EXPECT_EQ(Normal(Normalizer::Strip{true, true}, " \n\t"), "");
  EXPECT_EQ(Normal(Normalizer::Prepend{"_"}, "a"), "_a");
  EXPECT_EQ(Normal(Normalizer::Prepend{"_"}, ""), "");
  EXPECT_EQ(Normal(Normalizer::Replace{Regex::Compile("[ab]+").value(), false, "$0-"}, "cabac"),
            "c$0-c");
  EXPECT_EQ(Normal(Normalizer::Replace{Regex::Literal(".").value(), true, ""}, "a.b."), "ab");
}

TEST(Normalizer, StepsFollowOneAnother) {
  Normalizer normalizer;
  EXPECT_EQ(normalizer.Apply("É"), "É");
  normalizer.Add(Normalizer::Form{NormalForm::kNfd});
  normalizer.Add(Normalizer::StripAccents{});
  normalizer.Add(Normalizer::Lowercase{});
  EXPECT_EQ(normalizer.Apply("ÉCOLE Ñandú"), "ecole nandu");
}

// ---- Pre-tokenizers ----------------------------------------------------------------------------

Words WordsOf(const PreTokenizer& pre_tokenizer, std::string_view text) {
  Words words;
  pre_tokenizer.ForEachWord(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

Words SplitBy(Regex pattern, SplitBehavior behavior, bool invert, std::string_view text) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(PreTokenizer::Split{std::move(pattern), false, behavior, invert});
  return WordsOf(pre_tokenizer, text);
}

TEST(PreTokenizer, Behaviors) {
  struct Case {
    SplitBehavior behavior;
    Words words;
    Words inverted;  // Where the delimiters are the letters.
  };
  const Case cases[] = {
      {SplitBehavior::kRemoved, {"the", "final", "countdown"}, {"-", "-", "-"}},
      {SplitBehavior::kIsolated,
       {"the", "-", "final", "-", "-", "countdown"},
       {"the", "-", "final", "-", "-", "countdown"}},
      {SplitBehavior::kMergedWithPrevious,
       {"the-", "final-", "-", "countdown"},
       {"the", "-final", "-", "-countdown"}},
      {SplitBehavior::kMergedWithNext,
       {"the", "-final", "-", "-countdown"},
       {"the-", "final-", "-", "countdown"}},
      {SplitBehavior::kContiguous,
       {"the", "-", "final", "--", "countdown"},
       {"the", "-", "final", "--", "countdown"}},
  };
  for (const Case& one : cases) {
    const std::string_view text = "the-final--countdown";
    EXPECT_EQ(SplitBy(Regex::Literal("-").value(), one.behavior, false, text), one.words);
    EXPECT_EQ(SplitBy(Regex::Literal("-").value(), one.behavior, true, text), one.inverted);
    EXPECT_EQ(SplitBy(Regex::Literal("-").value(), one.behavior, false, ""), Words());
    EXPECT_EQ(SplitBy(Regex::Literal("-").value(), one.behavior, false, "a"), Words({"a"}));
  }
}

TEST(PreTokenizer, EmptyMatchesCutWithoutBeingWords) {
  EXPECT_EQ(SplitBy(Regex::Literal("").value(), SplitBehavior::kIsolated, false, "a日b"),
            Words({"a", "日", "b"}));
}

TEST(PreTokenizer, DigitsAndPunctuation) {
  PreTokenizer together, apart, punctuation;
  together.Add(PreTokenizer::Digits{false});
  apart.Add(PreTokenizer::Digits{true});
  punctuation.Add(PreTokenizer::Punctuation{SplitBehavior::kContiguous});
  EXPECT_EQ(WordsOf(together, "Hey 123½ friend"), Words({"Hey ", "123½", " friend"}));
  EXPECT_EQ(WordsOf(apart, "a12"), Words({"a", "1", "2"}));
  EXPECT_EQ(WordsOf(punctuation, "Hey!  How?!$。x"), Words({"Hey", "!", "  How", "?!$。", "x"}));
}

TEST(PreTokenizer, EachStepSplitsTheWordsOfTheOneBefore) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(PreTokenizer::Split{Regex::Literal(",").value(), true,
                                        SplitBehavior::kMergedWithNext, false});
  pre_tokenizer.Add(PreTokenizer::PrefixSpace{});
  pre_tokenizer.Add(PreTokenizer::Digits{true});
  EXPECT_EQ(WordsOf(pre_tokenizer, " a1,2"), Words({" a", "1", " ,", "2"}));
}

TEST(PreTokenizer, AThousandNestedPartsAndLongRunsAreSplit) {
  PreTokenizer pre_tokenizer;
  pre_tokenizer.Add(PreTokenizer::Split{Regex::Compile(R"(\s*[\r\n]+|\s+(?!\S)|\s+)").value(),
                                        false, SplitBehavior::kIsolated, false});
  const std::string blanks(100'000, ' ');
  EXPECT_EQ(WordsOf(pre_tokenizer, blanks + "a"), Words({blanks.substr(1), " ", "a"}));
  EXPECT_EQ(WordsOf(pre_tokenizer, blanks + "\na"), Words({blanks + "\n", "a"}));
}

}  // namespace
}  // namespace reprise::engine
