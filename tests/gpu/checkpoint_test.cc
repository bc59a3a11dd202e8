#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu/checkpoint/checkpoint_verifier.h"
#include "gpu/checkpoint/safetensors.h"
#include "protocol/base/prng.h"
#include "tests/gpu/checkpoint_files.h"

namespace reprise::engine {
namespace {

using storage::TempDirectory;
using test::Entry;
using test::Json;
using test::kIndex;
using test::Shard;
using test::TwoShards;
using test::WriteBytes;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kNano[] = RP_SOURCE_DIR "/gpu/nano/checkpoint";

// What Open says of a damaged checkpoint.
std::string DamageOf(const TempDirectory& folder) {
  const auto checkpoint = Checkpoint::Open(folder.path());
  EXPECT_TRUE(absl::IsDataLoss(checkpoint.status())) << checkpoint.status();
  return Message(checkpoint.status());
}

TEST(Checkpoint, MapsNano) {
  const auto checkpoint = Checkpoint::Open(kNano);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->total_bytes(), 38'759'008u);
  const std::vector<std::string> names = (*checkpoint)->Names();
  EXPECT_EQ(names.size(), 1092u);
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  const auto scale = (*checkpoint)->Find("layers.0.attn.wq_a.scale", DType::kF8E8m0, {6, 12});
  ASSERT_TRUE(scale.ok()) << scale.status();
  EXPECT_EQ(scale->bytes.size(), 72u);
  EXPECT_EQ((*checkpoint)->Find("layers.0.attn.wq_a.scale")->bytes.data(), scale->bytes.data());
  EXPECT_EQ((*checkpoint)->Find("layers.99.attn.wq_a.scale"), nullptr);
  EXPECT_THAT(Message((*checkpoint)->Find("norm", DType::kF32, {}).status()),
              AllOf(HasSubstr("tensor \"norm\" is missing"), HasSubstr(kNano)));
  EXPECT_THAT(Message((*checkpoint)->Find("norm.weight", DType::kF32, {384}).status()),
              HasSubstr("\"norm.weight\" in " + std::string(kNano) +
                        " is BF16 [384], the model needs F32 [384]"));
  EXPECT_FALSE((*checkpoint)->Find("norm.weight", DType::kBf16, {192}).ok());
}

TEST(Checkpoint, ShardsGiveTheirBytes) {
  TempDirectory folder;
  TwoShards().Write(folder);
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(AsText((*checkpoint)->Find("b", DType::kI8, {5})->bytes), std::string(5, '\1'));
  EXPECT_EQ(AsText((*checkpoint)->Find("c")->bytes), std::string(4, '\2'));
  EXPECT_EQ((*checkpoint)->total_bytes(), 12u);
}

TEST(Checkpoint, OneFileNeedsNoIndex) {
  TempDirectory folder;
  WriteBytes(folder / "model.safetensors", Shard(Json{{"a", Entry(0, 4)}}, "abcd"));
  const auto checkpoint = Checkpoint::Open(folder.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(AsText((*checkpoint)->Find("a")->bytes), "abcd");
}

TEST(Checkpoint, DigestFollowsIndexAndHeaders) {
  TempDirectory folder;
  const TwoShards whole;
  whole.Write(folder);
  const auto digest = [&folder] { return (*Checkpoint::Open(folder.path()))->Digest(); };
  const Hash256 first = digest();
  const std::string parts = std::string(AsText(AsBytes(Sha256({AsBytes(whole.index.dump())})))) +
                            std::string(AsText(AsBytes(Sha256({AsBytes(whole.one.dump())})))) +
                            std::string(AsText(AsBytes(Sha256({AsBytes(whole.two.dump())}))));
  EXPECT_EQ(first, Sha256({AsBytes(parts)}));
  WriteBytes(folder / "two.safetensors", Shard(whole.two, "abcd"));
  EXPECT_EQ(digest(), first) << "the weights are not in it";
  WriteBytes(folder / "two.safetensors", Shard(whole.two.dump() + " ", "abcd"));
  EXPECT_NE(digest(), first);
  whole.Write(folder);
  WriteBytes(folder / kIndex, whole.index.dump(2));
  EXPECT_NE(digest(), first);
}

TEST(Checkpoint, SaysWhereThereIsNone) {
  TempDirectory folder;
  for (const std::string& path : {folder.path(), folder / "none"}) {
    const auto checkpoint = Checkpoint::Open(path);
    EXPECT_TRUE(absl::IsNotFound(checkpoint.status()));
    EXPECT_THAT(Message(checkpoint.status()), HasSubstr(path + " holds no checkpoint"));
  }
  std::filesystem::create_directories(folder / "model.safetensors");
  EXPECT_THAT(Message(Checkpoint::Open(folder.path()).status()), HasSubstr("not a regular file"));
}

TEST(Checkpoint, RefusesEveryTruncation) {
  TempDirectory folder;
  const TwoShards whole;
  const std::string shard = Shard(whole.one, std::string(8, '\1'));
  whole.Write(folder);
  for (size_t bytes = 0; bytes < shard.size(); ++bytes) {
    WriteBytes(folder / "one.safetensors", shard.substr(0, bytes));
    EXPECT_THAT(DamageOf(folder), AllOf(HasSubstr("/one.safetensors: "), HasSubstr("truncated")))
        << bytes;
  }
  WriteBytes(folder / "one.safetensors", shard + "x");
  EXPECT_THAT(DamageOf(folder), HasSubstr("one.safetensors: the tensors end at byte 8 of 9"));
}

TEST(Checkpoint, RefusesHugeHeaders) {
  TempDirectory folder;
  TwoShards().Write(folder);
  for (const uint64_t length : {kSafetensorsHeaderMax + 1, uint64_t{1} << 40, UINT64_MAX}) {
    std::string shard = Shard(Json{{"c", Entry(0, 4)}}, "abcd");
    StoreLe(shard.data(), length);
    WriteBytes(folder / "two.safetensors", shard);
    EXPECT_THAT(DamageOf(folder),
                AllOf(HasSubstr("two.safetensors: its header is said to have"),
                      HasSubstr(std::to_string(length)), HasSubstr("allowed are 104857600")));
  }
}

TEST(Checkpoint, RefusesShardsThatDoNotFitTheIndex) {
  TempDirectory folder;
  TwoShards twice;
  twice.two = {{"b", Entry(0, 4)}};
  twice.Write(folder);
  EXPECT_THAT(DamageOf(folder),
              HasSubstr("/two.safetensors: tensor \"b\" is in another shard too"));

  TwoShards unknown;
  unknown.index["weight_map"].erase("b");
  unknown.Write(folder);
  EXPECT_THAT(DamageOf(folder), HasSubstr("/one.safetensors: tensor \"b\" is not in model.safe"));

  TwoShards elsewhere;
  elsewhere.index["weight_map"]["b"] = "two.safetensors";
  elsewhere.Write(folder);
  EXPECT_THAT(DamageOf(folder), HasSubstr("/one.safetensors: tensor \"b\" lies elsewhere"));

  TwoShards missing;
  missing.index["weight_map"]["d"] = "two.safetensors";
  missing.Write(folder);
  EXPECT_THAT(DamageOf(folder), HasSubstr("/two.safetensors: tensor \"d\" is missing"));

  TwoShards no_shard;
  no_shard.index["weight_map"]["d"] = "three.safetensors";
  no_shard.Write(folder);
  EXPECT_THAT(DamageOf(folder), HasSubstr("/three.safetensors is missing"));

  TwoShards total;
  total.index["metadata"]["total_size"] = 13;
  total.Write(folder);
  EXPECT_THAT(DamageOf(folder), HasSubstr("total_size is 13, the shards hold 12 bytes"));

  TwoShards().Write(folder);
  WriteBytes(folder / kIndex, "{\"weight_map\": ");
  EXPECT_THAT(DamageOf(folder), HasSubstr(std::string(kIndex) + ": not valid JSON"));
  WriteBytes(folder / "two.safetensors", Shard(std::string("{nonsense"), "abcd"));
  WriteBytes(folder / kIndex, TwoShards().index.dump());
  EXPECT_THAT(DamageOf(folder), HasSubstr("two.safetensors: header: not valid JSON"));
}

TEST(CheckScales, NanoIsSound) {
  const auto checkpoint = Checkpoint::Open(kNano);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  uint64_t last = 0;
  const auto progress = [&last](uint64_t bytes) {
    EXPECT_GT(bytes, last);
    last = bytes;
  };
  EXPECT_TRUE(CheckScales(**checkpoint, progress).ok());
  EXPECT_EQ(last, ScaleCheckBytes(**checkpoint));
  EXPECT_GT(last, 0u);
}

// Writes two tensors of 19 codes each, one of them E8M0 and one E4M3, and checks them.
std::string ScalesError(const TempDirectory& folder, const std::string& scales,
                        const std::string& weights) {
  const Json header = {{"s", {{"dtype", "F8_E8M0"}, {"shape", {19}}, {"data_offsets", {0, 19}}}},
                       {"w", {{"dtype", "F8_E4M3"}, {"shape", {19}}, {"data_offsets", {19, 38}}}},
                       {"x", {{"dtype", "I8"}, {"shape", {4}}, {"data_offsets", {38, 42}}}}};
  WriteBytes(folder / "model.safetensors", Shard(header, scales + weights + "\xff\xff\x7f\x7f"));
  return Message(CheckScales(**Checkpoint::Open(folder.path())));
}

TEST(CheckScales, FindsNanAtEveryByte) {
  TempDirectory folder;
  Prng prng(2);
  for (size_t at = 0; at < 19; ++at) {
    std::string scales(19, '\0'), weights(19, '\0');
    for (size_t i = 0; i < 19; ++i) {
      scales[i] = static_cast<char>(prng.Below(255));   // All but 0xFF.
      weights[i] = static_cast<char>(prng.Below(127));  // All but 0x7F, of both signs.
      if (prng.Below(2) == 0) weights[i] = static_cast<char>(weights[i] | 0x80);
    }
    scales[prng.Below(19)] = '\x7f';
    weights[prng.Below(19)] = '\x7e';
    EXPECT_EQ(ScalesError(folder, scales, weights), "");
    std::string broken = scales;
    broken[at] = '\xff';
    EXPECT_THAT(ScalesError(folder, broken, weights),
                HasSubstr("tensor \"s\": byte " + std::to_string(at) + " is 0xff, which is not a " +
                          "number in F8_E8M0"));
    for (const char nan : {'\x7f', '\xff'}) {
      broken = weights;
      broken[at] = nan;
      EXPECT_THAT(ScalesError(folder, scales, broken),
                  AllOf(HasSubstr("tensor \"w\": byte " + std::to_string(at) + " is 0x"),
                        HasSubstr("F8_E4M3")));
    }
  }
}

}  // namespace
}  // namespace reprise::engine
