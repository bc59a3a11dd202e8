#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "gpu/checkpoint/header_only_writer.h"
#include "tests/client/command.h"
#include "tests/gpu/checkpoint_files.h"

// `reprise model`, as a person runs it.
namespace reprise::engine {
namespace {

using nlohmann::json;
using reprise::test::CommandResult;
using storage::TempDirectory;
using testing::AllOf;
using testing::HasSubstr;

constexpr char kNano[] = RP_SOURCE_DIR "/gpu/nano";

CommandResult Reprise(const std::string& words) {
  return reprise::test::RunCommand(RP_BINARY_DIR "/bin/reprise " + words);
}

json RepriseJson(const std::string& words, int exit_code) {
  const CommandResult result = Reprise("--json " + words + " 2>/dev/null");
  EXPECT_EQ(result.exit_code, exit_code) << words << "\n" << result.out;
  return json::parse(result.out, nullptr, false);
}

// A folder with a configuration and its checkpoint.
void WriteModel(const TempDirectory& folder, const ModelConfig& config, const std::string& shards) {
  std::filesystem::create_directories(shards);
  const auto geometry = ModelGeometry::For(config);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  const absl::Status status = WriteHeaderOnlyCheckpoint(*geometry, shards, 3);
  ASSERT_TRUE(status.ok()) << status;
  test::WriteBytes(folder / "config.json", config.ToJson());
}

TEST(ModelInspect, PresetsAndFolders) {
  EXPECT_THAT(Reprise("model inspect v4.1-flash").out,
              AllOf(HasSubstr("Global KV of a token: 890 bytes"), HasSubstr("2,703,360 B")));
  const json preset = RepriseJson("model inspect nano", 0);
  EXPECT_EQ(preset["global_kv"]["bytes_per_token"], 212);
  EXPECT_EQ(RepriseJson(std::string("model inspect ") + kNano, 0), preset);
}

TEST(ModelInspect, SaysWhatAModelMayBe) {
  const CommandResult none = Reprise("model inspect v5 2>&1");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.out, AllOf(HasSubstr("v5/config.json"), HasSubstr("v4.1-flash, nano, or")));
  TempDirectory folder;
  test::WriteBytes(folder / "config.json", "{\"model_type\": \"llama\"}");
  const json error = RepriseJson("model inspect " + folder.path(), 2);
  EXPECT_THAT(error["error"]["message"].get<std::string>(),
              HasSubstr("config.json: model_type is \"llama\": it must be \"deepseek_v41\""));
  EXPECT_EQ(Reprise("model 2>/dev/null").exit_code, 2);
}

TEST(ModelVerify, WholeCheckpoint) {
  const json whole = RepriseJson(std::string("model verify --scales ") + kNano, 0);
  EXPECT_EQ(whole["ok"], true);
  EXPECT_EQ(whole["model"], "nano");
  EXPECT_EQ(whole["tensors"], 1092);
  EXPECT_EQ(whole["bytes"], whole["bytes_expected"]);
  EXPECT_EQ(whole["scales_checked"], true);
  EXPECT_EQ(whole["digest"].get<std::string>().size(), 64u);
  EXPECT_THAT(Reprise(std::string("model verify ") + kNano).out,
              AllOf(HasSubstr("1,092"), HasSubstr("38,759,008"), HasSubstr("whole")));
}

TEST(ModelVerify, ShardsBesideTheConfiguration) {
  TempDirectory folder;
  const ModelConfig nano = ModelConfig::Preset("nano").value();
  WriteModel(folder, nano, folder / "checkpoint");
  EXPECT_EQ(RepriseJson("model verify " + folder.path(), 0)["ok"], true);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "checkpoint")) {
    std::filesystem::rename(entry.path(), folder / entry.path().filename().string());
  }
  EXPECT_EQ(RepriseJson("model verify " + folder.path(), 0)["ok"], true);
}

TEST(ModelVerify, NamesWhatIsWrong) {
  TempDirectory folder;
  ModelConfig config = ModelConfig::Preset("nano").value();
  WriteModel(folder, config, folder / "checkpoint");
  config.draft_markov_rank = 64;
  test::WriteBytes(folder / "config.json", config.ToJson());
  const json wrong = RepriseJson("model verify " + folder.path(), 1);
  EXPECT_EQ(wrong["ok"], false);
  EXPECT_EQ(wrong["wrong_count"], 3);
  EXPECT_EQ(wrong["missing_count"], 0);
  EXPECT_THAT(Reprise("model verify " + folder.path()).out,
              HasSubstr("wrong  mtp.1.markov_head.embed.weight: BF16 [288, 32]"));
  config.draft_stages = 0;
  config.compress_ratios.resize(12);
  test::WriteBytes(folder / "config.json", config.ToJson());
  EXPECT_THAT(Reprise("model verify " + folder.path()).out, HasSubstr("unexpected  .. and "));
}

TEST(ModelVerify, DamageIsANoAndNotAFailure) {
  TempDirectory folder;
  WriteModel(folder, ModelConfig::Preset("nano").value(), folder / "checkpoint");
  const std::string shard = folder / "checkpoint/model-00002-of-00003.safetensors";
  const auto bytes = std::filesystem::file_size(shard);
  std::filesystem::resize_file(shard, bytes - 1);
  const json truncated = RepriseJson("model verify " + folder.path(), 1);
  EXPECT_EQ(truncated["ok"], false);
  EXPECT_THAT(truncated["damage"].get<std::string>(), HasSubstr(shard));

  // Whole again, but with weights and scales that are not numbers.
  std::string damaged = test::ReadBytes(shard) + '\0';
  std::fill(damaged.end() - 100'000, damaged.end(), '\xff');
  test::WriteBytes(shard, damaged);
  EXPECT_EQ(RepriseJson("model verify " + folder.path(), 0)["ok"], true) << "headers alone";
  const json nan = RepriseJson("model verify --scales " + folder.path(), 1);
  EXPECT_EQ(nan["ok"], false);
  EXPECT_THAT(nan["damage"].get<std::string>(), HasSubstr("is not a number in F8_E"));

  std::filesystem::remove(shard);
  EXPECT_THAT(Reprise("model verify " + folder.path()).out,
              HasSubstr("damaged: " + shard + " is missing"));
}

TEST(ModelVerify, NoCheckpointThere) {
  TempDirectory folder;
  test::WriteBytes(folder / "config.json", ModelConfig::Preset("nano").value().ToJson());
  const json none = RepriseJson("model verify " + folder.path(), 2);
  EXPECT_THAT(none["error"]["message"].get<std::string>(),
              AllOf(HasSubstr("holds no checkpoint"), HasSubstr("none in its checkpoint/")));
}

TEST(ModelHelp, CompletionKnowsTheVerb) {
  EXPECT_THAT(Reprise("completion bash").out, HasSubstr("model) words='inspect verify"));
  EXPECT_THAT(Reprise("completion fish").out, HasSubstr("-a verify"));
  EXPECT_THAT(Reprise("model verify --help").out,
              HasSubstr("Exit codes: 0 the checkpoint is whole"));
}

}  // namespace
}  // namespace reprise::engine
