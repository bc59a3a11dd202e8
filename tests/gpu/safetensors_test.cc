#include "gpu/checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/checkpoint/safetensors_index.h"
#include "protocol/base/prng.h"
#include "tests/gpu/checkpoint_files.h"

namespace reprise::engine {
namespace {

using test::Entry;
using test::Json;
using testing::HasSubstr;

std::string HeaderError(const std::string& json, uint64_t data_bytes) {
  const auto entries = ParseSafetensorsHeader(json, data_bytes);
  if (entries.ok()) return "";
  EXPECT_EQ(entries.status().code(), absl::StatusCode::kDataLoss);
  return Message(entries.status());
}

TEST(SafetensorsHeader, SortsByOffset) {
  const auto entries = ParseSafetensorsHeader(
      R"({"z": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [8, 20]},
          "__metadata__": {"format": "pt", "note": "any"},
          "scalar": {"data_offsets": [20, 24], "shape": [], "dtype": "F32"},
          "none": {"dtype": "F8_E4M3", "shape": [0, 7], "data_offsets": [8, 8]},
          "a": {"dtype": "I8", "shape": [8], "data_offsets": [0, 8]}}   )",
      24);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 4u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[1].name, "none");
  EXPECT_EQ((*entries)[2].name, "z");
  EXPECT_EQ((*entries)[2].dtype, DType::kBf16);
  EXPECT_EQ((*entries)[2].shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ((*entries)[2].begin, 8u);
  EXPECT_EQ((*entries)[2].end, 20u);
  EXPECT_EQ((*entries)[3].name, "scalar");
  EXPECT_EQ((*entries)[3].shape.size(), 0u);
  EXPECT_TRUE(ParseSafetensorsHeader("{}", 0).ok());
}

struct BadHeader {
  std::string json;
  uint64_t data_bytes;
  const char* words;
};

TEST(SafetensorsHeader, RefusesLiesByTensor) {
  const auto header = [](const Json& entries) { return entries.dump(); };
  const std::vector<BadHeader> cases = {
      {"", 0, "not valid JSON"},
      {"{", 0, "not valid JSON at byte"},
      {"{}x", 0, "not valid JSON at byte 3"},
      {"[]", 0, "a list has no place here"},
      {"7", 0, "a number has no place here"},
      {R"({"a": 7})", 0, "tensor \"a\": a number has no place here"},
      {R"({"": {}})", 0, "a tensor's name has 0 bytes"},
      {R"({")" + std::string(513, 'n') + R"(": {}})", 0, "a tensor's name has 513 bytes"},
      {R"({"a": {}})", 0, "tensor \"a\": dtype, shape and two data_offsets"},
      {R"({"a": {"dtype": "F16"}})", 0, "tensor \"a\": dtype is \"F16\": a V4.1 checkpoint"},
      {R"({"a": {"dtype": "I8", "dtype": "I8"}})", 0, "field \"dtype\""},
      {R"({"a": {"size": 7}})", 0, "tensor \"a\": field \"size\" is not known"},
      {R"({"a": {"shape": [-1]}})", 0, "tensor \"a\": shape: a negative number"},
      {R"({"a": {"shape": [1.5]}})", 0, "tensor \"a\": shape: a fraction"},
      {R"({"a": {"shape": [[1]]}})", 0, "tensor \"a\": shape: a list"},
      {R"({"a": {"shape": 1}})", 0, "tensor \"a\": shape: a number"},
      {R"({"a": {"shape": [1,1,1,1,1,1,1,1,1]}})", 0, "more than 8 dimensions"},
      {R"({"a": {"data_offsets": [0,1,2]}})", 0, "more than two numbers"},
      {R"({"a": {"dtype": "I8", "shape": [1], "data_offsets": [0]}})", 1, "two data_offsets"},
      {R"({"a": {"shape": [18446744073709551616]}})", 0, "tensor \"a\": shape: a fraction"},
      {R"({"__metadata__": {"a": 1}})", 0, "__metadata__: a number has no place here"},
      {R"({"__metadata__": [1]})", 0, "__metadata__: a list has no place here"},
      {header({{"a", Entry(0, 4)}}), 3, "tensor \"a\": data_offsets [0, 4] do not lie in"},
      {R"({"a": {"dtype": "I8", "shape": [2], "data_offsets": [2, 0]}})", 2, "do not lie in"},
      {R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}})", 4,
       "are not what F32 [2] takes"},
      {R"({"a": {"dtype": "F32", "shape": [4294967296, 1073741824, 4], "data_offsets": [0, 0]}})",
       0, "are not what F32"},
      {header({{"a", Entry(0, 4)}, {"b", Entry(2, 4)}}), 6,
       "tensor \"b\": data_offsets [2, 6] overlap"},
      {header({{"a", Entry(0, 4)}, {"b", Entry(5, 1)}}), 6,
       "tensor \"b\": data_offsets [5, 6] leave a gap"},
      {header({{"b", Entry(1, 3)}}), 4,
       "tensor \"b\": data_offsets [1, 4] leave a gap after byte 0"},
      {header({{"a", Entry(0, 4)}}), 9, "the tensors end at byte 4 of 9"},
      {"{}", 1, "the tensors end at byte 0 of 1"},
      {R"({"a": )" + Entry(0, 2).dump() + R"(, "a": )" + Entry(2, 2).dump() + "}", 4,
       "tensor \"a\" is there twice"},
      {std::string("{\"a\\u0007b\": 7}"), 0, "tensor \"a?b\""},
      {std::string("{\"\xff\": 7}"), 0, "not valid JSON"},
      {std::string(300'000, '['), 0, "a list has no place here"},
  };
  for (const BadHeader& bad : cases) {
    EXPECT_THAT(HeaderError(bad.json, bad.data_bytes), HasSubstr(bad.words))
        << bad.json.substr(0, 200);
  }
}

TEST(SafetensorsHeader, SurvivesDamage) {
  Json header;
  for (uint64_t i = 0; i < 20; ++i) header["layers." + std::to_string(i)] = Entry(8 * i, 8);
  const std::string whole = header.dump();
  ASSERT_EQ(HeaderError(whole, 160), "");
  Prng prng(1);
  for (int round = 0; round < 2'000; ++round) {
    std::string damaged = whole;
    damaged[prng.Below(damaged.size())] = static_cast<char>(prng.Next());
    if (round % 2 == 0) damaged.resize(prng.Below(damaged.size()));
    const auto entries = ParseSafetensorsHeader(damaged, 160);
    if (entries.ok()) {
      EXPECT_EQ(entries->back().end, 160u) << damaged;
    } else {
      EXPECT_NE(Message(entries.status()), "");
    }
  }
}

TEST(SafetensorsIndex, ReadsMapAndTotal) {
  const auto index = ParseSafetensorsIndex(
      R"({"metadata": {"made": [1, {"total_size": 9}, null, -1, 1.5, true], "total_size": 24},
          "weight_map": {"b": "two.safetensors", "a": "one.safetensors"}})");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_EQ(index->total_bytes, 24u);
  EXPECT_EQ(index->files.size(), 2u);
  EXPECT_EQ(index->files.at("a"), "one.safetensors");
  const auto bare = ParseSafetensorsIndex(R"({"weight_map": {}})");
  ASSERT_TRUE(bare.ok());
  EXPECT_FALSE(bare->total_bytes.has_value());
}

TEST(SafetensorsIndex, RefusesByTensor) {
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "not valid JSON"},
      {"[]", "a list has no place here"},
      {"{}", "weight_map is missing"},
      {R"({"weight_map": 7})", "weight_map: a number has no place here"},
      {R"({"weight_map": {"a": 7}})", "tensor \"a\": a number has no place here"},
      {R"({"weight_map": {"a": {}}})", "tensor \"a\": an object has no place here"},
      {R"({"weight_map": {"a": "../x.safetensors"}})", "tensor \"a\" lies in \"../x.safetensors\""},
      {R"({"weight_map": {"a": ".x.safetensors"}})", "tensor \"a\" lies in"},
      {R"({"weight_map": {"a": "x.bin"}})", "not the name of a .safetensors file"},
      {R"({"weight_map": {"a": "x\u0000.safetensors"}})", "tensor \"a\" lies in"},
      {R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})",
       "tensor \"a\" is there twice"},
      {R"({"weight_map": {}, "weight_map": {}})", "one weight_map"},
      {R"({"weights": {}})", "key \"weights\""},
      {R"({"metadata": 7, "weight_map": {}})", "metadata: a number has no place here"},
      {R"({"metadata": {"total_size": "7"}, "weight_map": {}})", "metadata.total_size: a string"},
      {R"({"metadata": {"total_size": -7}, "weight_map": {}})", "metadata.total_size: a negative"},
      {R"({"metadata": {"total_size": {}}, "weight_map": {}})", "metadata.total_size: an object"},
      {R"({"metadata": )" + std::string(300'000, '['), "not valid JSON"},
  };
  for (const auto& [json, words] : cases) {
    const auto index = ParseSafetensorsIndex(json);
    ASSERT_FALSE(index.ok()) << json;
    EXPECT_THAT(Message(index.status()), HasSubstr(words)) << json.substr(0, 200);
  }
}

}  // namespace
}  // namespace reprise::engine
