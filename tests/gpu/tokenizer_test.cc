#include "gpu/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "gpu/tokenizer/byte_level.h"
#include "gpu/tokenizer/unicode.h"
#include "protocol/base/prng.h"

namespace reprise::engine {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileText(const std::string& name) {
  std::ifstream file(RP_SOURCE_DIR "/tests/gpu/data/" + name, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const Tokenizer& Small() {
  static const std::unique_ptr<Tokenizer> tokenizer =
      LoadTokenizerJson(RP_SOURCE_DIR "/tests/gpu/data/small_tokenizer.json").value();
  return *tokenizer;
}

// ---- A small file that tests change ------------------------------------------------------------

// The 256 bytes as ids 0 to 255, then the results of `merges`.
Json PlainFile(const std::vector<std::string>& merges = {}) {
  Json vocabulary = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary[ToByteLevel(std::string(1, static_cast<char>(byte)))] = byte;
  }
  for (std::string merge : merges) {
    merge.erase(merge.find(' '), 1);
    if (!vocabulary.contains(merge)) vocabulary[merge] = vocabulary.size();
  }
  return {
      {"version", "1.0"},
      {"added_tokens", Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

Json Added(int id, const char* content, const Json& flags = Json::object()) {
  Json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", false}};
  token.update(flags);
  return token;
}

std::unique_ptr<Tokenizer> Parse(const Json& file) {
  auto tokenizer = ParseTokenizerJson(file.dump());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::string Refusal(const Json& file) {
  const auto tokenizer = ParseTokenizerJson(file.dump());
  return tokenizer.ok() ? "accepted" : Message(tokenizer.status());
}

// The pieces of `text`, which show what was split and what was merged.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, std::string_view text,
                                bool parse_special = true) {
  std::vector<std::string> pieces;
  for (const TokenId id : tokenizer.Encode(text, parse_special)) {
    pieces.push_back(tokenizer.Piece(id, true));
  }
  return pieces;
}

std::string RandomBytes(Prng* prng, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(prng->Next());
  return bytes;
}

// ---- Bytes -------------------------------------------------------------------------------------

TEST(ByteTokenizer, BytesAreIdsAndNamesFollow) {
  const auto nano = MakeNanoTokenizer();
  EXPECT_EQ(nano->vocab_size(), 288u);
  EXPECT_THAT(nano->Encode("a\xFF<bos>", true), ElementsAre('a', 255, 256));
  EXPECT_THAT(nano->Encode("</call><noise><nois", true),
              ElementsAre(263, 268, '<', 'n', 'o', 'i', 's'));
  EXPECT_THAT(nano->Encode("<bos>", false), ElementsAre('<', 'b', 'o', 's', '>'));
  EXPECT_EQ(nano->Special("<bos>"), 256);
  EXPECT_EQ(nano->Special("</think>"), 267);
  EXPECT_EQ(nano->Special("<boss>"), -1);
}

TEST(ByteTokenizer, Pieces) {
  const auto nano = MakeNanoTokenizer();
  EXPECT_EQ(nano->Piece(0, true), std::string(1, '\0'));
  EXPECT_EQ(nano->Piece(0xC3, true), "\xC3");
  EXPECT_EQ(nano->Piece(257, true), "<eos>");
  EXPECT_EQ(nano->Piece(257, false), "");
  for (const TokenId id : {269, 287, 288, -1, std::numeric_limits<TokenId>::max()}) {
    EXPECT_EQ(nano->Piece(id, true), kReplacementCharacter) << id;
  }
  EXPECT_EQ(nano->Decode({'h', 257, 'i'}, false), "hi");
  EXPECT_EQ(nano->Decode({'h', 257, 'i'}, true), "h<eos>i");
}

TEST(ByteTokenizer, DigestNamesTheSpecialTokens) {
  EXPECT_EQ(MakeNanoTokenizer()->Digest(), MakeNanoTokenizer()->Digest());
  EXPECT_NE(MakeByteTokenizer({"<a>"}, 300)->Digest(), MakeByteTokenizer({"<b>"}, 300)->Digest());
  EXPECT_NE(MakeByteTokenizer({"<a>", "b"}, 300)->Digest(),
            MakeByteTokenizer({"<a>b"}, 300)->Digest());
}

// ---- Against other implementations -------------------------------------------------------------

TEST(SmallTokenizer, GivesTheIdsOfThePlainImplementation) {
  const Json cases = Json::parse(FileText("small_tokenizer_ids.json"));
  ASSERT_GT(cases.size(), 300u);
  for (const Json& one : cases) {
    const std::string text = one["text"];
    EXPECT_EQ(Small().Encode(text, false), one["ids"].get<std::vector<TokenId>>()) << one["text"];
    EXPECT_EQ(Small().Encode(text, true), one["ids_with_special"].get<std::vector<TokenId>>())
        << one["text"];
  }
}

// Merges any way they come: the lowest rank, then the leftmost, one at a time.
std::vector<std::string> MergePlainly(std::string_view word,
                                      const std::vector<std::string>& merges) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found =
          std::find(merges.rbegin(), merges.rend(), symbols[i] + " " + symbols[i + 1]);
      if (found == merges.rend()) continue;
      const auto rank = static_cast<size_t>(merges.rend() - found) - 1;
      if (rank < best_rank) {
        best_rank = rank;
        best = i;
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(Bpe, MergesAsThePlainImplementationWhateverTheMerges) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    std::vector<std::string> known = {"a", "b", "c"};
    std::vector<std::string> merges;
    for (int i = 0; i < 25; ++i) {
      const std::string left = known[prng.Below(known.size())];
      const std::string right = known[prng.Below(known.size())];
      merges.push_back(left + " " + right);
      known.push_back(left + right);
    }
    // A merge may come before the ones that make its sides.
    std::swap(merges[prng.Below(merges.size())], merges[prng.Below(merges.size())]);
    const auto tokenizer = Parse(PlainFile(merges));
    for (int i = 0; i < 40; ++i) {
      std::string word;
      for (uint64_t left = 1 + prng.Below(60); left > 0; --left) {
        word.push_back(static_cast<char>('a' + prng.Below(3)));
      }
      EXPECT_EQ(Pieces(*tokenizer, word), MergePlainly(word, merges)) << word;
      EXPECT_EQ(Pieces(*tokenizer, word), MergePlainly(word, merges)) << word << " again";
    }
  }
}

TEST(Bpe, LongWordsAreQuickToMerge) {
  const auto tokenizer = Parse(PlainFile({"a a", "aa aa", "aaaa aaaa"}));
  EXPECT_EQ(tokenizer->Encode(std::string(400'000, 'a'), false).size(), 50'000u);
}

TEST(Bpe, PairsOfTokensAreReadLikeText) {
  Json file = PlainFile({"a b", "ab c"});
  const std::vector<TokenId> expected = Parse(file)->Encode("abcab", false);
  EXPECT_THAT(expected, ElementsAre(257, 256));
  const Hash256 digest = Parse(file)->Digest();
  file["model"]["merges"] = Json::parse(R"([["a", "b"], ["ab", "c"]])");
  EXPECT_EQ(Parse(file)->Encode("abcab", false), expected);
  EXPECT_EQ(Parse(file)->Digest(), digest);
}

TEST(Bpe, IgnoreMergesKeepsAWordThatIsAToken) {
  Json file = PlainFile({"b c"});
  file["model"]["vocab"]["abc"] = 300;
  EXPECT_THAT(Parse(file)->Encode("abc", false), ElementsAre('a', 256));
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(Parse(file)->Encode("abc", false), ElementsAre(300));
  EXPECT_THAT(Parse(file)->Encode("abcd", false), ElementsAre('a', 256, 'd'));
}

// ---- Every byte string -------------------------------------------------------------------------

TEST(SmallTokenizer, DecodeGivesEveryByteStringBack) {
  const Json cases = Json::parse(FileText("small_tokenizer_ids.json"));
  Prng prng(11);
  for (const Json& one : cases) {
    std::string text = one["text"];
    for (const bool parse_special : {false, true}) {
      EXPECT_EQ(Small().Decode(Small().Encode(text, parse_special), true), text);
    }
    // The same with some bytes broken.
    for (uint64_t left = text.empty() ? 0 : 1 + prng.Below(3); left > 0; --left) {
      text[prng.Below(text.size())] = static_cast<char>(prng.Next());
    }
    EXPECT_EQ(Small().Decode(Small().Encode(text, true), true), text);
  }
  for (size_t size = 0; size < 200; ++size) {
    const std::string bytes = RandomBytes(&prng, size);
    EXPECT_EQ(Small().Decode(Small().Encode(bytes, true), true), bytes);
  }
}

TEST(SmallTokenizer, BytesThatAreNoCharacterAreTokensOfTheirOwn) {
  for (const std::string_view broken : {"\x80", "\xFF", "\xC3", "\xC0\xAF", "\xE0\x80\x80",
                                        "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF0\x9F\x98"}) {
    std::vector<std::string> expected;
    for (const char byte : broken) expected.emplace_back(1, byte);
    EXPECT_EQ(Pieces(Small(), broken), expected);
    // What stands around them is encoded as ever.
    expected.insert(expected.begin(), "the");
    EXPECT_EQ(Pieces(Small(), "the" + std::string(broken)), expected);
  }
}

TEST(SmallTokenizer, ManyThreadsGetTheSameIds) {
  const std::string text = FileText("make_small_tokenizer.py");
  const std::vector<TokenId> expected = Small().Encode(text, true);
  std::vector<std::vector<TokenId>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&] { ids = Small().Encode(text, true); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

// ---- Added tokens ------------------------------------------------------------------------------

TEST(AddedTokens, SpecialOnesAreHiddenAndAllAreTextUnlessAsked) {
  EXPECT_EQ(Small().Special("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(Small().Special("<think>"), 592);
  EXPECT_EQ(Small().Special("the"), -1);
  EXPECT_EQ(Small().vocab_size(), 595u);
  EXPECT_EQ(Small().Piece(0, true), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(Small().Piece(0, false), "");
  EXPECT_EQ(Small().Piece(592, false), "<think>");  // Not special in the file.
  for (const TokenId id : Small().Encode("<｜begin▁of▁sentence｜><think>｜DSML｜", false)) {
    EXPECT_TRUE(id > 2 && id < 589) << id;
  }
}

TEST(AddedTokens, TheLongestAtTheLeftmostPlaceWins) {
  Json file = PlainFile();
  file["added_tokens"] =
      Json::array({Added(300, "<a"), Added(301, "<a>"), Added(302, "a><b"), Added(303, "<b>c")});
  const auto tokenizer = Parse(file);
  EXPECT_THAT(Pieces(*tokenizer, "<a><b>c"), ElementsAre("<a>", "<b>c"));
  EXPECT_THAT(Pieces(*tokenizer, "<a<a><"), ElementsAre("<a", "<a>", "<"));
  EXPECT_THAT(Pieces(*tokenizer, "xa><b>"), ElementsAre("x", "a><b", ">"));
}

TEST(AddedTokens, StripsTakeWhiteSpaceAlong) {
  Json file = PlainFile();
  file["added_tokens"] =
      Json::array({Added(300, "<l>", {{"lstrip", true}}), Added(301, "<r>", {{"rstrip", true}})});
  const auto tokenizer = Parse(file);
  EXPECT_THAT(tokenizer->Encode("a \u00A0\n<l> b", true), ElementsAre('a', 300, ' ', 'b'));
  EXPECT_THAT(tokenizer->Encode("a <r> \t<l>b", true), ElementsAre('a', ' ', 301, 300, 'b'));
}

TEST(AddedTokens, SingleWordsAreNotPartsOfWords) {
  Json file = PlainFile();
  file["added_tokens"] = Json::array({Added(300, "cat", {{"single_word", true}})});
  const auto tokenizer = Parse(file);
  for (const std::string_view text : {"cat", "-cat-", " cat ", "\u3002cat\u3002"}) {
    EXPECT_THAT(tokenizer->Encode(text, true), ::testing::Contains(300)) << text;
  }
  for (const std::string_view text : {"cats", "concat", "cat_", "écat", "cat\u0301", "cat1"}) {
    EXPECT_THAT(tokenizer->Encode(text, true), ::testing::Not(::testing::Contains(300))) << text;
  }
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalizedText) {
  Json file = PlainFile();
  file["normalizer"] = {{"type", "Lowercase"}};
  file["added_tokens"] =
      Json::array({Added(300, "Day", {{"normalized", true}}), Added(301, "Night")});
  const auto tokenizer = Parse(file);
  EXPECT_THAT(tokenizer->Encode("DAYday", true), ElementsAre(300, 300));
  EXPECT_THAT(tokenizer->Encode("Nightx", true), ElementsAre(301, 'x'));
  EXPECT_THAT(Pieces(*tokenizer, "nighT"), ElementsAre("n", "i", "g", "h", "t"));
}

// ---- Files that are refused --------------------------------------------------------------------

TEST(TokenizerJson, RefusesWhatItCannotReadByName) {
  struct Case {
    const char* pointer;
    Json value;
    const char* expected;
  };
  const Case cases[] = {
      {"/version", "2.0", "version"},
      {"/truncation", Json::object(), "truncation must be null"},
      {"/padding", Json::object(), "padding must be null"},
      {"/decoder", nullptr, "decoder must be an object"},
      {"/decoder/type", "WordPiece", "decoder has the type \"WordPiece\""},
      {"/model", 3, "model must be an object"},
      {"/model/type", "Unigram", "\"Unigram\"; only BPE"},
      {"/model/unk_token", "<unk>", "model.unk_token is not supported"},
      {"/model/dropout", 0.1, "model.dropout is not supported"},
      {"/model/dropout", "x", "model.dropout is not supported"},
      {"/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
      {"/model/byte_fallback", 1, "model.byte_fallback must be true or false"},
      {"/model/ignore_merges", "no", "model.ignore_merges must be true or false"},
      {"/model/vocab", Json::array(), "model.vocab must be an object"},
      {"/model/vocab/a", -1, "gives \"a\" an id"},
      {"/model/vocab/a", 1.5, "gives \"a\" an id"},
      {"/model/vocab/a", "7", "gives \"a\" an id"},
      {"/model/vocab/a", 1 << 20, "gives \"a\" an id"},
      {"/model/vocab/a", 7, "which another token has"},
      {"/model/vocab", {{"a", 0}}, "for the byte 0"},
      {"/model/merges", "a b", "model.merges must be a list"},
      {"/model/merges", Json::array({"ab"}), "has at 0 no merge"},
      {"/model/merges", Json::array({"a b c"}), "has at 0 no merge"},
      {"/model/merges", Json::array({" b"}), "has at 0 no merge"},
      {"/model/merges", Json::parse(R"([["a", 1]])"), "has at 0 no merge"},
      {"/model/merges", Json::parse(R"([["a", "b", "c"]])"), "has at 0 no merge"},
      {"/model/merges", Json::array({7}), "has at 0 no merge"},
      {"/model/merges", Json::array({"a b"}), "the token \"ab\", which model.vocab does not have"},
      {"/model/merges", Json::array({"xyz b"}), "the token \"xyz\""},
      {"/added_tokens", Json::object(), "added_tokens must be a list"},
      {"/added_tokens", Json::array({1}), "added_tokens[0] must be an object"},
      {"/added_tokens", Json::array({Added(-1, "x")}), "added_tokens[0].id must be"},
      {"/added_tokens", Json::array({Added(1 << 20, "x")}), "added_tokens[0].id must be"},
      {"/added_tokens", Json::array({Added(300, "")}), "added_tokens[0] has an empty content"},
      {"/added_tokens", Json::array({Added(3, "xy")}), "added_tokens[0] has the id 3"},
      {"/added_tokens", Json::array({Added(300, "a")}), "added_tokens[0] has the id 300"},
      {"/added_tokens", Json::array({Added(300, "x1"), Added(300, "x2")}), "added_tokens[1]"},
      {"/added_tokens", Json::array({Added(300, "x1"), Added(301, "x1")}), "added_tokens[1]"},
      {"/added_tokens", Json::array({Added(300, "x", {{"lstrip", 0}})}),
       "added_tokens[0].lstrip must be"},
      {"/added_tokens", Json::array({{{"id", 300}, {"content", "x"}}}),
       "added_tokens[0].special is missing"},
      {"/normalizer", 1, "normalizer must be an object"},
      {"/normalizer", Json::object(), "normalizer.type is missing"},
      {"/normalizer", {{"type", "Nmt"}}, "normalizer is a normalizer \"Nmt\""},
      {"/normalizer", {{"type", "Sequence"}}, "normalizer.normalizers is missing"},
      {"/normalizer",
       {{"type", "Sequence"}, {"normalizers", Json::array({{{"type", "Bert"}}})}},
       "normalizer.normalizers[0] is a normalizer \"Bert\""},
      {"/normalizer", {{"type", "Replace"}}, "normalizer.pattern is missing"},
      {"/normalizer", {{"type", "Replace"}, {"pattern", "x"}}, "normalizer.pattern must be"},
      {"/normalizer",
       {{"type", "Replace"}, {"pattern", {{"Regex", "("}}}},
       "normalizer.pattern cannot be used"},
      {"/normalizer", {{"type", "Strip"}, {"strip_left", 1}}, "normalizer.strip_left must be"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer must end in ByteLevel"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "a pre-tokenizer \"Metaspace\""},
      {"/pre_tokenizer",
       {{"type", "Digits"}, {"individual_digits", true}},
       "pre_tokenizer must end in ByteLevel"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Kept"}},
       "pre_tokenizer has an unknown behavior \"Kept\""},
  };
  for (const Case& one : cases) {
    Json file = PlainFile();
    file[Json::json_pointer(one.pointer)] = one.value;
    EXPECT_THAT(Refusal(file), HasSubstr(one.expected)) << one.pointer << " " << one.value;
  }
}

TEST(TokenizerJson, RefusesStepsAfterByteLevelAndTooMany) {
  Json file = PlainFile();
  const Json byte_level = file["pre_tokenizer"];
  file["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", Json::array({byte_level, byte_level})}};
  EXPECT_THAT(Refusal(file), HasSubstr("pre_tokenizer.pretokenizers[1] comes after ByteLevel"));
  file = PlainFile();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", Json::array()}};
  for (int i = 0; i < 64; ++i) file["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_EQ(Refusal(file), "accepted");
  file["normalizer"]["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_THAT(Refusal(file), HasSubstr("normalizer.normalizers has 65 entries"));
  // However they are nested.
  file["normalizer"]["normalizers"].erase(0);
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", Json::array({file["normalizer"], {{"type", "NFC"}}})}};
  EXPECT_THAT(Refusal(file), HasSubstr("normalizers[1] is one step too many"));
}

TEST(TokenizerJson, RefusesAddedTokensThatNormalizationMakesOne) {
  Json file = PlainFile();
  file["normalizer"] = {{"type", "Lowercase"}};
  file["added_tokens"] = Json::array(
      {Added(300, "Up", {{"normalized", true}}), Added(301, "up", {{"normalized", true}})});
  EXPECT_THAT(Refusal(file), HasSubstr("\"up\" is another one's text once normalized"));
  file["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  file["added_tokens"] = Json::array({Added(300, " ", {{"normalized", true}})});
  EXPECT_THAT(Refusal(file), HasSubstr("is empty once normalized"));
}

TEST(TokenizerJson, RefusesWhatIsNoJson) {
  const std::string good = PlainFile().dump();
  for (size_t size = 0; size < good.size(); size += 97) {
    EXPECT_FALSE(ParseTokenizerJson(good.substr(0, size)).ok()) << size;
  }
  for (const std::string& text : {std::string("[]"), std::string("null"), std::string("\"\xFF\""),
                                  std::string("\"\\ud800\""), good + "}"}) {
    EXPECT_FALSE(ParseTokenizerJson(text).ok()) << text;
  }
  EXPECT_THAT(Message(ParseTokenizerJson(std::string(1'000'000, '[')).status()),
              HasSubstr("nested deeper"));
  EXPECT_THAT(Message(LoadTokenizerJson("/nonexistent/tokenizer.json").status()),
              HasSubstr("/nonexistent/tokenizer.json"));
}

TEST(TokenizerJson, DigestFollowsWhatDecidesIds) {
  const Hash256 digest = Parse(PlainFile({"a b"}))->Digest();
  EXPECT_EQ(Parse(PlainFile({"a b"}))->Digest(), digest);
  Json file = PlainFile({"a b"});
  file["post_processor"] = {{"type", "ByteLevel"}};  // Decides no ids.
  EXPECT_EQ(Parse(file)->Digest(), digest);
  const std::pair<const char*, Json> changes[] = {
      {"/model/merges", Json::array()},
      {"/model/vocab/zz", 400},
      {"/model/ignore_merges", true},
      {"/normalizer", {{"type", "NFC"}}},
      {"/normalizer", {{"type", "NFD"}}},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", "x"}}},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", "y"}}},
      {"/pre_tokenizer/use_regex", true},
      {"/pre_tokenizer/add_prefix_space", true},
      {"/added_tokens", Json::array({Added(300, "<x>")})},
      {"/added_tokens", Json::array({Added(301, "<x>")})},
      {"/added_tokens", Json::array({Added(300, "<x>", {{"lstrip", true}})})},
  };
  std::set<Hash256> seen = {digest};
  for (const auto& [pointer, value] : changes) {
    file = PlainFile({"a b"});
    file[Json::json_pointer(pointer)] = value;
    EXPECT_TRUE(seen.insert(Parse(file)->Digest()).second) << pointer << " " << value;
  }
}

}  // namespace
}  // namespace reprise::engine
