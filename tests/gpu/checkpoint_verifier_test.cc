#include "gpu/checkpoint/checkpoint_verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "gpu/checkpoint/header_only_writer.h"
#include "gpu/checkpoint/tensor_inventory.h"
#include "tests/gpu/checkpoint_files.h"

namespace reprise::engine {
namespace {

using storage::TempDirectory;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig Config(const char* preset) { return ModelConfig::Preset(preset).value(); }
ModelGeometry Geometry(const ModelConfig& config) { return ModelGeometry::For(config).value(); }
ModelGeometry Geometry(const char* preset) { return Geometry(Config(preset)); }

std::unique_ptr<Checkpoint> Open(const std::string& folder) {
  auto checkpoint = Checkpoint::Open(folder);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

uint64_t Elements(const TensorSpec& spec) {
  uint64_t count = 1;
  for (const uint64_t side : spec.shape) count *= side;
  return count;
}

// Bytes of the tensors whose name starts and ends like this and holds what is between.
uint64_t BytesOf(const ModelGeometry& g, const std::string& start, const std::string& middle) {
  uint64_t bytes = 0;
  ForEachTensor(g, [&](const TensorSpec& spec) {
    if (spec.name.starts_with(start) && spec.name.find(middle) != spec.name.npos) {
      bytes += Elements(spec) * DTypeBytes(spec.dtype);
    }
  });
  return bytes;
}

// Model-facts sections 13.1, 13.3, 13.5, 13.6 and 13.7.
TEST(TensorInventory, V41FlashTotals) {
  const ModelGeometry g = Geometry("v4.1-flash");
  uint64_t count = 0, bytes = 0, layer_count = 0, draft_count = 0, vision_count = 0;
  ForEachTensor(g, [&](const TensorSpec& spec) {
    ++count;
    bytes += Elements(spec) * DTypeBytes(spec.dtype);
    if (spec.name.starts_with("layers.0.")) ++layer_count;
    if (spec.name.starts_with("mtp.")) ++draft_count;
    if (spec.name.starts_with("vision.") || spec.name.starts_with("aligner.")) ++vision_count;
  });
  EXPECT_EQ(count, 96'085u);
  EXPECT_EQ(bytes, 510'286'023'000u);
  EXPECT_EQ(layer_count, 2'334u);
  EXPECT_EQ(draft_count, 2'401u);
  EXPECT_EQ(vision_count, 263u);
  EXPECT_EQ(BytesOf(g, "layers.", "ffn.experts."), 288'777'830'400u);
  EXPECT_EQ(BytesOf(g, "layers.", ".engram."), 203'073'076'240u);
  EXPECT_EQ(BytesOf(g, "layers.", ".shared_experts."), 1'416'960'000u);
  EXPECT_EQ(BytesOf(g, "embed.", ""), 1'323'827'200u);
  EXPECT_EQ(BytesOf(g, "layers.", ".gate."), 157'409'280u);
  EXPECT_EQ(BytesOf(g, "layers.", ".hc_"), 157'295'040u);
  EXPECT_EQ(BytesOf(g, "layers.", ".compressor."), 36'704'256u);
  EXPECT_EQ(BytesOf(g, "layers.", ".indexer."), 45'130'752u);
  EXPECT_EQ(BytesOf(g, "vision.", ""), 823'685'120u);
  EXPECT_EQ(BytesOf(g, "aligner.", ""), 146'821'120u);
}

// Two independent counts: by formula from the configuration, and by the list of tensors.
TEST(TensorInventory, AgreesWithTheParameterCount) {
  ModelConfig without_drafts = Config("nano");
  without_drafts.draft_stages = 0;
  without_drafts.compress_ratios.resize(12);
  for (const ModelConfig& config : {Config("v4.1-flash"), Config("nano"), without_drafts}) {
    const ModelGeometry g = Geometry(config);
    uint64_t parameters = 0;
    ForEachTensor(g, [&](const TensorSpec& spec) {
      if (spec.dtype == DType::kF8E8m0) return;
      parameters += Elements(spec) * (spec.dtype == DType::kI8 ? 2 : 1);
    });
    EXPECT_EQ(parameters, g.parameters.total + g.parameters.draft + g.parameters.vision);
  }
}

TEST(VerifyCheckpoint, NanoIsWhole) {
  const auto checkpoint = Open(RP_SOURCE_DIR "/gpu/nano/checkpoint");
  const CheckpointReport report = VerifyCheckpoint(Geometry("nano"), *checkpoint);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.tensors, 1'092u);
  EXPECT_EQ(report.tensors_expected, 1'092u);
  EXPECT_EQ(report.bytes, 38'759'008u);
  EXPECT_EQ(report.bytes_expected, 38'759'008u);
}

TEST(VerifyCheckpoint, NamesWhatDiffers) {
  const auto checkpoint = Open(RP_SOURCE_DIR "/gpu/nano/checkpoint");

  ModelConfig vision = Config("nano");
  vision.vision = VisionConfig{1, 32, 2, 64, 2, 3, 16};
  CheckpointReport report = VerifyCheckpoint(Geometry(vision), *checkpoint);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.missing_count, 3u + 2 + 8 + 1 + 4);
  EXPECT_THAT(report.missing, Contains("vision.blocks.0.attn.wqkv.bias"));
  EXPECT_EQ(report.unexpected_count + report.wrong_count, 0u);

  ModelConfig wider = Config("nano");
  wider.draft_markov_rank = 64;
  report = VerifyCheckpoint(Geometry(wider), *checkpoint);
  EXPECT_THAT(
      report.wrong,
      ElementsAre("mtp.1.markov_head.embed.weight: BF16 [288, 32], expected BF16 [288, 64]",
                  "mtp.1.markov_head.head.weight: BF16 [288, 32], expected BF16 [288, 64]",
                  "mtp.1.confidence_head.proj.weight: BF16 [1, 416], expected BF16 [1, 448]"));
  EXPECT_EQ(report.wrong_count, 3u);

  ModelConfig no_drafts = Config("nano");
  no_drafts.draft_stages = 0;
  no_drafts.compress_ratios.resize(12);
  report = VerifyCheckpoint(Geometry(no_drafts), *checkpoint);
  EXPECT_EQ(report.unexpected_count, report.tensors - report.tensors_expected);
  EXPECT_EQ(report.unexpected.size(), CheckpointReport::kNamesMax) << "counted all, kept a few";
  EXPECT_GT(report.unexpected_count, CheckpointReport::kNamesMax);
  EXPECT_EQ(report.missing_count + report.wrong_count, 0u);
}

TEST(HeaderOnlyCheckpoint, OfNanoIsWhole) {
  const ModelGeometry g = Geometry("nano");
  for (const uint32_t shards : {1u, 2u, 7u, 1'092u}) {
    TempDirectory folder;
    ASSERT_TRUE(WriteHeaderOnlyCheckpoint(g, folder.path(), shards).ok());
    const auto checkpoint = Open(folder.path());
    const CheckpointReport report = VerifyCheckpoint(g, *checkpoint);
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.tensors, 1'092u);
    EXPECT_EQ(report.bytes, 38'759'008u);
    EXPECT_TRUE(CheckScales(*checkpoint).ok()) << "holes read as zeros";
  }
}

TEST(HeaderOnlyCheckpoint, RefusesWhatItCannotDo) {
  TempDirectory folder;
  const ModelGeometry g = Geometry("nano");
  const auto error = [&](const std::string& path, uint32_t shards) {
    return Message(WriteHeaderOnlyCheckpoint(g, path, shards));
  };
  EXPECT_THAT(error(folder.path(), 0), HasSubstr("0 shards"));
  EXPECT_THAT(error(folder.path(), 1'093), HasSubstr("1092 tensors"));
  EXPECT_THAT(error(folder / "none", 1), HasSubstr(folder / "none"));
  test::WriteBytes(folder / "there", "x");
  EXPECT_THAT(error(folder.path(), 1), HasSubstr("is not empty"));
}

// 510 GB of checkpoint in a few MB of disk.
TEST(HeaderOnlyCheckpoint, OfV41FlashInFortyEightShards) {
  TempDirectory folder;
  const ModelGeometry g = Geometry("v4.1-flash");
  const absl::Status written = WriteHeaderOnlyCheckpoint(g, folder.path(), 48);
  ASSERT_TRUE(written.ok()) << written;
  uint64_t disk_bytes = 0, apparent_bytes = 0, shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    struct stat facts {};
    ASSERT_EQ(stat(entry.path().c_str(), &facts), 0);
    disk_bytes += static_cast<uint64_t>(facts.st_blocks) * 512;
    apparent_bytes += static_cast<uint64_t>(facts.st_size);
    shards += entry.path().extension() == ".safetensors" ? 1 : 0;
  }
  EXPECT_EQ(shards, 48u);
  EXPECT_GT(apparent_bytes, 510'286'023'000u);
  EXPECT_LT(disk_bytes, 64_MiB);

  const auto checkpoint = Open(folder.path());
  const CheckpointReport report = VerifyCheckpoint(g, *checkpoint);
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.tensors, 96'085u);
  EXPECT_EQ(report.tensors_expected, 96'085u);
  EXPECT_EQ(report.bytes, 510'286'023'000u);
  EXPECT_EQ(report.bytes_expected, 510'286'023'000u);
  // It is mapped: the last bytes of the largest tensor are there.
  const auto table =
      checkpoint->Find("layers.14.engram.embed.weight", DType::kF8E4m3, {384'016'682, 256});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->bytes.back(), std::byte{0});
}

}  // namespace
}  // namespace reprise::engine
