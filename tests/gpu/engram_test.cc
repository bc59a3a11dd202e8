#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "gpu/tokenizer/engram_hash.h"
#include "gpu/tokenizer/numpy_random.h"
#include "gpu/tokenizer/tokenizer.h"

namespace reprise::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// The fields of nano's config.json that Engram needs, and of the big model's.
ModelConfig NanoConfig() {
  ModelConfig config;
  config.vocab_size = 288;
  config.engram_layers = {1, 4};
  config.engram_rows = {48'400, 49'568};
  config.engram_max_ngram = 4;
  config.engram_vocab_size = 4'000;
  config.engram_heads = 4;
  config.engram_pad_token = 258;
  config.engram_compressed_vocab = 259;
  return config;
}

ModelConfig FlashConfig() {
  ModelConfig config;
  config.vocab_size = 129'280;
  config.engram_layers = {1, 14};
  config.engram_rows = {384'006'168, 384'016'682};
  config.engram_max_ngram = 4;
  config.engram_vocab_size = 16'000'000;
  config.engram_heads = 8;
  config.engram_pad_token = 2;
  config.engram_compressed_vocab = 99'092;
  return config;
}

// Every token is its own class as far as there are classes.
std::vector<uint32_t> FlashMap() {
  std::vector<uint32_t> map(129'280);
  for (uint32_t i = 0; i < map.size(); ++i) map[i] = std::min(i, 99'091u);
  return map;
}

std::vector<uint64_t> Rows(const EngramHash& hash, std::vector<TokenId> recent,
                           std::vector<uint8_t> blocked = {}) {
  std::vector<uint64_t> rows(hash.rows_per_token());
  std::array<bool, 16> marks{};
  std::copy(blocked.begin(), blocked.end(), marks.begin());
  hash.Rows(recent, std::span<const bool>(marks.data(), blocked.size()), rows);
  return rows;
}

// ---- The map -----------------------------------------------------------------------------------

TEST(EngramMap, OfNano) {
  std::vector<uint32_t> expected = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  9,
                                    10, 11, 9,  12, 13, 14, 15, 16, 17, 18, 19,
                                    20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 9};
  uint32_t next = 30;
  for (uint32_t id = 33; id < 'a'; ++id) expected.push_back(next++);
  for (uint32_t id = 'a'; id <= 'z'; ++id) expected.push_back(expected[id - 'a' + 'A']);
  for (uint32_t id = 'z' + 1; id < 288; ++id) expected.push_back(next++);
  ASSERT_EQ(next, 259u);
  EXPECT_EQ(expected['A'], 62u);  // As the model's tables have it.
  EXPECT_EQ(expected[128], 99u);
  EXPECT_EQ(expected[287], 258u);
  const auto map = BuildEngramMap(*MakeNanoTokenizer(), 259);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(*map, expected);
}

TEST(EngramMap, RefusesAnotherCount) {
  const auto map = BuildEngramMap(*MakeNanoTokenizer(), 260);
  EXPECT_THAT(Message(map.status()), HasSubstr("has 259 compressed ids, but the model has 260"));
}

// Tokens that are given by name, whatever else they are.
class ListTokenizer final : public Tokenizer {
 public:
  explicit ListTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  std::vector<TokenId> Encode(std::string_view, bool) const override { return {}; }
  std::string Piece(TokenId token, bool) const override {
    return pieces_[static_cast<size_t>(token)];
  }
  TokenId Special(std::string_view) const override { return -1; }
  uint32_t vocab_size() const override { return static_cast<uint32_t>(pieces_.size()); }
  Hash256 Digest() const override { return {}; }

 private:
  std::vector<std::string> pieces_;
};

TEST(EngramMap, FoldsWhatLooksAlike) {
  const struct {
    std::vector<std::string> pieces;
    std::vector<uint32_t> map;
  } cases[] = {
      {{"The", "the", " the", "THE ", "\tthe\n"}, {0, 0, 0, 0, 0}},
      {{"é", "e", "E\u0301", "È"}, {0, 0, 0, 0}},
      {{" ", "  ", "\n\n", "\t \r", ""}, {0, 0, 0, 0, 1}},
      {{"a b", "a  b", "a\n\tb", "ab"}, {0, 0, 0, 1}},
      {{"\uFB01", "fi", "ｆｉ"}, {0, 0, 0}},
      {{"\u00A0", " ", "\u3000"}, {0, 0, 0}},             // NFKC makes them spaces.
      {{"\v", "\f", "\v\f", "\u2028"}, {0, 1, 2, 3}},     // Blank, but nothing is left of them.
      {{"\u0301", "\u0302", "\u0301\u0302"}, {0, 1, 2}},  // The same.
      {{"\x80", "\x81", "\xC3", "Ã"}, {0, 1, 2, 3}},
      // A part of a character has the key that the vocabulary writes it by, as another token may.
      {{"\xA1", "¡"}, {0, 0}},
      {{"a\xFF", "A\xFF"}, {0, 1}},
      {{"\uFFFD", "\uFFFD", "a"}, {0, 1, 2}},
      {{"\uE000", " "}, {0, 0}},
  };
  for (const auto& one : cases) {
    const uint32_t count = 1 + *std::max_element(one.map.begin(), one.map.end());
    const auto map = BuildEngramMap(ListTokenizer(one.pieces), count);
    ASSERT_TRUE(map.ok()) << one.pieces[0] << ": " << map.status();
    EXPECT_EQ(*map, one.map) << one.pieces[0];
  }
}

TEST(EngramMap, ReadsAFile) {
  const std::string path = ::testing::TempDir() + "/engram_map_test.bin";
  const auto write = [&](const std::vector<uint32_t>& map) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(map.data()),
               static_cast<std::streamsize>(map.size() * sizeof(uint32_t)));
  };
  write({0, 1, 0, 2});
  EXPECT_EQ(LoadEngramMap(path, 4, 3).value(), std::vector<uint32_t>({0, 1, 0, 2}));
  EXPECT_THAT(Message(LoadEngramMap(path, 4, 4).status()), HasSubstr("3 compressed ids"));
  EXPECT_THAT(Message(LoadEngramMap(path, 5, 3).status()), HasSubstr("has 16 bytes"));
  EXPECT_FALSE(LoadEngramMap(path, 3, 3).ok());
  write({0, 2, 1, 1});
  EXPECT_THAT(Message(LoadEngramMap(path, 4, 3).status()), HasSubstr("token 1"));
  std::remove(path.c_str());
  EXPECT_THAT(Message(LoadEngramMap(path, 4, 3).status()), HasSubstr("cannot open"));
}

// ---- The hash ----------------------------------------------------------------------------------

TEST(EngramHash, OfTheBigModel) {
  const auto first = EngramHash::For(FlashConfig(), 0, FlashMap());
  const auto second = EngramHash::For(FlashConfig(), 1, FlashMap());
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(first->multipliers(),
              ElementsAre(76632096046245, 4839876093313, 35959672319349, 73987337458391));
  EXPECT_THAT(second->multipliers(),
              ElementsAre(67716810739261, 51510806800915, 30921347202721, 82619226485591));
  EXPECT_THAT(first->primes(),
              ElementsAreArray({16000057, 16000079, 16000081, 16000097, 16000121, 16000129,
                                16000133, 16000183, 16000189, 16000207, 16000211, 16000253,
                                16000277, 16000289, 16000307, 16000321, 16000339, 16000381,
                                16000393, 16000399, 16000403, 16000409, 16000447, 16000463}));
  EXPECT_THAT(second->primes(),
              ElementsAreArray({16000477, 16000487, 16000499, 16000507, 16000511, 16000573,
                                16000609, 16000627, 16000667, 16000669, 16000693, 16000697,
                                16000711, 16000729, 16000759, 16000769, 16000781, 16000799,
                                16000813, 16000819, 16000841, 16000877, 16000879, 16000889}));
  const std::vector<TokenId> recent = {2, 300, 200, 100};
  EXPECT_THAT(Rows(*first, recent),
              ElementsAreArray({12013311,  19589167,  45006560,  56352444,  73396926,  95085389,
                                97930840,  125571061, 139496094, 154390218, 168372840, 187320647,
                                207399159, 217467923, 232607951, 249747568, 263764909, 274935997,
                                289601196, 304941432, 331171415, 346519925, 363840250, 372876764}));
  EXPECT_THAT(Rows(*second, recent),
              ElementsAreArray({1915295,   31448111,  41304315,  58552781,  67180214,  81174207,
                                111213027, 126297219, 135466211, 144663466, 175046693, 177447282,
                                193857560, 212688673, 238785285, 252830242, 263035622, 277713478,
                                298033201, 313602973, 322709304, 336222443, 357421160, 383414190}));
}

TEST(EngramHash, OfNano) {
  const std::vector<uint32_t> map = BuildEngramMap(*MakeNanoTokenizer(), 259).value();
  const auto first = EngramHash::For(NanoConfig(), 0, map);
  const auto second = EngramHash::For(NanoConfig(), 1, map);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->multipliers(), ElementsAre(29319025719747617, 1851710431809357,
                                                13757976252775921, 28307155380027123));
  EXPECT_THAT(second->multipliers(), ElementsAre(31472315001388727, 1927431996717567,
                                                 28179413531004165, 7252028108960107));
  EXPECT_THAT(first->primes(),
              ElementsAre(4001, 4003, 4007, 4013, 4019, 4021, 4027, 4049, 4051, 4057, 4073, 4079));
  EXPECT_THAT(second->primes(),
              ElementsAre(4091, 4093, 4099, 4111, 4127, 4129, 4133, 4139, 4153, 4157, 4159, 4177));
  // The beginning and the middle of the tokens in the model's tables.
  EXPECT_THAT(Rows(*first, {255}), ElementsAre(2973, 7912, 9463, 12693, 17525, 24028, 27759, 30973,
                                               34768, 39103, 43432, 44599));
  EXPECT_THAT(Rows(*first, {255, 180}), ElementsAre(1548, 4640, 9470, 13466, 16483, 20142, 26097,
                                                    28481, 35307, 36599, 41126, 48143));
  EXPECT_THAT(
      Rows(*first, {255, 180, 136, 216}),
      ElementsAre(2036, 5511, 8825, 12822, 19490, 23584, 26943, 31714, 33981, 38332, 41442, 45858));
  EXPECT_THAT(Rows(*first, {250, 125, 44, 226}),
              ElementsAre(2497, 4170, 11241, 14356, 18720, 21274, 24551, 28820, 34314, 36803, 41881,
                          44869));
  EXPECT_THAT(
      Rows(*second, {250, 125, 44, 226}),
      ElementsAre(1220, 4495, 8251, 13517, 17165, 24040, 26301, 28835, 36060, 40123, 43075, 49153));
}

TEST(EngramHash, BlockedPositionsAndAllBeforeThemArePadding) {
  const std::vector<uint32_t> map = BuildEngramMap(*MakeNanoTokenizer(), 259).value();
  const EngramHash hash = EngramHash::For(NanoConfig(), 0, map).value();
  const TokenId pad = NanoConfig().engram_pad_token;
  EXPECT_EQ(Rows(hash, {1, 2, 3, 4}, {0, 0, 0, 0}), Rows(hash, {1, 2, 3, 4}));
  EXPECT_EQ(Rows(hash, {1, 2, 3, 4}, {1, 0, 0, 0}), Rows(hash, {pad, 2, 3, 4}));
  EXPECT_EQ(Rows(hash, {1, 2, 3, 4}, {0, 1, 0, 0}), Rows(hash, {pad, pad, 3, 4}));
  EXPECT_EQ(Rows(hash, {1, 2, 3, 4}, {0, 0, 1, 0}), Rows(hash, {4}));
  EXPECT_EQ(Rows(hash, {1, 2, 3, 4}, {0, 0, 0, 1}), Rows(hash, {pad}));
  EXPECT_EQ(Rows(hash, {7, 1, 2, 3, 4}), Rows(hash, {1, 2, 3, 4}));  // Older ones do not matter.
  EXPECT_EQ(Rows(hash, {-1, 288, 4}), Rows(hash, {pad, pad, 4}));
}

TEST(EngramHash, EveryRowIsInItsHead) {
  const std::vector<uint32_t> map = BuildEngramMap(*MakeNanoTokenizer(), 259).value();
  const EngramHash hash = EngramHash::For(NanoConfig(), 1, map).value();
  for (TokenId a = 0; a < 288; ++a) {
    const std::vector<uint64_t> rows = Rows(hash, {a, 287 - a, a / 2});
    uint64_t begin = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_GE(rows[i], begin);
      begin += hash.primes()[i];
      EXPECT_LT(rows[i], begin);
    }
  }
}

TEST(EngramHash, RefusesAConfigurationThatDoesNotFit) {
  const std::vector<uint32_t> good = BuildEngramMap(*MakeNanoTokenizer(), 259).value();
  const struct {
    void (*change)(ModelConfig* config, std::vector<uint32_t>* map);
    const char* expected;
  } cases[] = {
      {[](ModelConfig* c, auto*) { c->engram_layers.clear(); }, "engram_layer_ids"},
      {[](ModelConfig* c, auto*) { c->engram_rows.clear(); }, "engram_num_embeddings"},
      {[](ModelConfig* c, auto*) { c->engram_rows[0] = 48'401; }, "has 48400 rows"},
      {[](ModelConfig* c, auto*) { c->engram_vocab_size = 5'000; }, "engram_num_embeddings says"},
      {[](ModelConfig* c, auto*) { c->engram_vocab_size = UINT64_MAX; }, "engram_vocab_size"},
      {[](ModelConfig* c, auto*) { c->engram_max_ngram = 1; }, "engram_max_ngram_size"},
      {[](ModelConfig* c, auto*) { c->engram_max_ngram = 1'000; }, "engram_max_ngram_size"},
      {[](ModelConfig* c, auto*) { c->engram_heads = 0; }, "engram_n_heads"},
      {[](ModelConfig* c, auto*) { c->engram_compressed_vocab = 0; }, "compressed_vocab_size"},
      {[](ModelConfig* c, auto*) { c->engram_compressed_vocab = 258; }, "the map must have"},
      {[](ModelConfig* c, auto*) { c->engram_pad_token = 288; }, "engram_pad_token_id"},
      {[](ModelConfig* c, auto*) { c->engram_pad_token = -1; }, "engram_pad_token_id"},
      {[](ModelConfig*, std::vector<uint32_t>* map) { map->pop_back(); }, "the map must have"},
      {[](ModelConfig*, std::vector<uint32_t>* map) { map->clear(); }, "the map must have"},
  };
  for (const auto& one : cases) {
    ModelConfig config = NanoConfig();
    std::vector<uint32_t> map = good;
    one.change(&config, &map);
    EXPECT_THAT(Message(EngramHash::For(config, 0, map).status()), HasSubstr(one.expected));
  }
  EXPECT_FALSE(EngramHash::For(NanoConfig(), 2, good).ok());
}

TEST(NumpyRandom, GivesPcg64sNumbers) {
  // default_rng(0).integers(0, 2**63 - 1) and others follow from these; the seeds of the tables
  // above are tested there.
  NumpyRandom random(10'007);
  for (const uint64_t expected : {76632096046245u, 4839876093313u, 35959672319349u}) {
    EXPECT_EQ(random.Below(46'539'438'283'891) * 2 + 1, expected);
  }
  NumpyRandom again(10'007), other(10'008);
  EXPECT_EQ(NumpyRandom(10'007).Next(), again.Next());
  EXPECT_NE(again.Next(), other.Next());
  for (int i = 0; i < 1'000; ++i) EXPECT_LT(again.Below((1ull << 63) + 1), (1ull << 63) + 1);
}

}  // namespace
}  // namespace reprise::engine
