#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "gpu/model/model_description.h"
#include "gpu/model/model_geometry.h"
#include "gpu/model/parameter_count.h"
#include "gpu/model/text_table.h"
#include "protocol/base/sha256.h"

namespace reprise::engine {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ModelGeometry Geometry(const char* preset) {
  return ModelGeometry::For(ModelConfig::Preset(preset).value()).value();
}

TEST(ModelGeometry, V41Flash) {
  const ModelGeometry g = Geometry("v4.1-flash");
  EXPECT_EQ(g.kv, KvGeometry::V41Flash());
  EXPECT_EQ(g.bytes_per_token(), 890u);
  EXPECT_EQ(g.record.payload_bytes, kV41PayloadBytes);
  EXPECT_EQ(g.record.record_bytes, kV41RecordBytes);
  EXPECT_EQ(g.encoder_layers, 20u);
  EXPECT_EQ(g.all_layers(), 43u);
  EXPECT_EQ(g.window_row.bytes(), 528u);
  EXPECT_EQ(g.window_bytes_layer, 67'584u);
  EXPECT_EQ(g.window_bytes_all, 2'703'360u);
  EXPECT_EQ(g.window_bytes_encoder, 1'351'680u);
  EXPECT_EQ(g.window_bytes_draft, 202'752u);
  EXPECT_EQ(g.tail_bytes, 12'288u);
  EXPECT_EQ(g.TensorPrefix(39), "layers.39.");
  EXPECT_EQ(g.TensorPrefix(40), "mtp.0.");
}

TEST(ModelGeometry, Nano) {
  const ModelGeometry g = Geometry("nano");
  EXPECT_EQ(g.kv, KvGeometry::Nano());
  EXPECT_EQ(g.bytes_per_token(), 212u);
  EXPECT_EQ(g.record.payload_bytes, 27'136u);
  EXPECT_EQ(g.record.record_bytes, 28'672u);
  EXPECT_EQ(g.encoder_layers, 6u);
  EXPECT_EQ(g.window_bytes_layer, 16'896u);
  EXPECT_EQ(g.window_bytes_all, 202'752u);
  EXPECT_EQ(g.window_bytes_encoder, 101'376u);
  EXPECT_EQ(g.window_bytes_draft, 33'792u);
  EXPECT_EQ(g.tail_bytes, 2'048u);
}

// One letter a layer, then what is besides: the table of model-facts section 1.3.
std::string Map(const ModelGeometry& g) {
  std::string map;
  for (const LayerPlan& plan : g.layers) {
    map += std::string("SFXU")[static_cast<size_t>(plan.mode)];
    if (plan.mode != LayerMode::kWindowOnly) {
      map += std::to_string(plan.ratio) + ":" + std::to_string(plan.kv_source) + "/" +
             std::to_string(plan.index_source);
    }
    if (plan.engram != kNoLayer) map += "e" + std::to_string(plan.engram);
    if (plan.writes_pool) map += "W";
    if (plan.reads_pool) map += "R";
    if (plan.draft_tap) map += "t";
    map += " ";
  }
  return map;
}

TEST(ModelGeometry, LayerMaps) {
  EXPECT_EQ(Map(Geometry("nano")),
            "S Se0 F2:2/2 U2:2/2 F2:4/4e1 U2:4/4 F1:6/6W U1:6/6 U1:6/6 X1:6/9Rt U1:6/9t U1:6/9t "
            "S S ");
  EXPECT_EQ(Map(Geometry("v4.1-flash")),
            "S Se0 F2:2/2 U2:2/2 U2:2/2 U2:2/2 U2:2/2 U2:2/2 "
            "F2:8/8 U2:8/8 U2:8/8 U2:8/8 U2:8/8 U2:8/8 "
            "F2:14/14e1 U2:14/14 U2:14/14 U2:14/14 U2:14/14 U2:14/14 "
            "F1:20/20W U1:20/20 U1:20/20 U1:20/20 X1:20/24R U1:20/24 U1:20/24 U1:20/24 "
            "X1:20/28R U1:20/28 U1:20/28 U1:20/28 X1:20/32R U1:20/32 U1:20/32 U1:20/32 "
            "X1:20/36R U1:20/36t U1:20/36t U1:20/36t S S S ");
}

// The terms of model-facts section 1.4, each from the shapes of section 13.
TEST(ModelGeometry, V41FlashParameters) {
  const ModelGeometry g = Geometry("v4.1-flash");
  const LayerParameters plain = CountLayer(g, 0);
  EXPECT_EQ(plain.attention, 1280u * 5120 + 1280 + 32768ull * 1280 + 512 * 5120 + 512 +
                                 8192 * 4096 + 5120 * 8192 + 64);
  EXPECT_NEAR(static_cast<double>(plain.attention), 126.6e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(plain.router), 1.97e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(plain.shared_expert), 35.4e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(plain.routed_active()), 212.3e6, 0.05e6);
  EXPECT_NEAR(static_cast<double>(plain.hyper_connection), 0.98e6, 0.005e6);
  EXPECT_NEAR(static_cast<double>(plain.active()), 377e6, 0.5e6);
  EXPECT_EQ(plain.compressor + plain.indexer_key + plain.indexer_query + plain.engram, 0u);
  const LayerParameters source = CountLayer(g, 20);
  EXPECT_NEAR(static_cast<double>(source.attention + source.compressor + source.indexer_key +
                                  source.indexer_query),
              134.7e6, 0.05e6);
  EXPECT_EQ(CountLayer(g, 2).compressor - source.compressor, 512u * 5120) << "the gate";
  EXPECT_EQ(CountLayer(g, 24).indexer_query, source.indexer_query);
  EXPECT_EQ(CountLayer(g, 24).indexer_key, 0u);
  EXPECT_EQ(CountLayer(g, 14).engram, 25600ull * 6144 + 2 * 4 * 5120);
  EXPECT_EQ(CountLayer(g, 14).engram_table, 384'016'682ull * 256);

  const ParameterCount& p = g.parameters;
  // 20 encoder layers are the 7.89 B of the facts; the projection that makes the decoder's KV is
  // layer 20's norm, compressor and indexer key.
  EXPECT_EQ(DecoderKvParameters(g), 5120u + 512 * 5120 + 512 + 128 * 512 + 128);
  EXPECT_EQ(p.active_encoder - DecoderKvParameters(g), 7'892'875'448u);
  EXPECT_EQ(p.active_all, 15'468'670'064u);
  EXPECT_EQ(p.engram_tables, (384'006'168ull + 384'016'682) * 256);
  EXPECT_EQ(p.routed_experts, 40ull * 384 * 3 * 2304 * 5120);
  // 551.57 B of backbone and 196.93 B of Engram, whose projections are in the latter.
  const uint64_t engram = p.engram_tables + 2 * CountLayer(g, 1).engram;
  EXPECT_NEAR(static_cast<double>(engram), 196.93e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(p.total - engram), 551.57e9, 0.005e9);
}

TEST(ModelGeometry, NanoParameters) {
  const ModelGeometry g = Geometry("nano");
  const ParameterCount& p = g.parameters;
  EXPECT_EQ(p.total + p.draft, 49'345'044u);
  EXPECT_EQ(p.total, 44'683'368u);
  EXPECT_EQ(p.routed_experts, 28'311'552u);
  EXPECT_EQ(p.engram_tables, 3'134'976u);
  EXPECT_EQ(p.draft, 4'661'676u);
  EXPECT_EQ(p.vision, 0u);
  EXPECT_EQ(p.active_encoder - DecoderKvParameters(g), 10'864'852u);
  EXPECT_EQ(p.active_all, 10'864'852u + 9'228'308u);
}

TEST(ModelGeometry, AnotherModelIsNamedByItsHash) {
  ModelConfig config = ModelConfig::Preset("v4.1-flash").value();
  config.vision.reset();
  const ModelGeometry g = ModelGeometry::For(config).value();
  EXPECT_EQ(g.kv.model, ToHex(Sha256({AsBytes(config.ToJson())})));
  EXPECT_EQ(g.kv.sources, KvGeometry::V41Flash().sources);
  EXPECT_EQ(g.bytes_per_token(), 890u);
  EXPECT_THAT(DescribeModelText(g), HasSubstr("model " + g.kv.model.substr(0, 12) + "\n"));
}

TEST(ModelGeometry, RefusesWhatValidateRefuses) {
  ModelConfig config = ModelConfig::Preset("nano").value();
  config.compress_ratios[3] = 7;
  EXPECT_THAT(Message(ModelGeometry::For(config).status()), HasSubstr("compress_ratios[3] is 7"));
}

TEST(ModelGeometry, WithoutDraftStages) {
  ModelConfig config = ModelConfig::Preset("nano").value();
  config.draft_stages = 0;
  config.compress_ratios.resize(12);
  const ModelGeometry g = ModelGeometry::For(config).value();
  EXPECT_EQ(g.layers.size(), 12u);
  EXPECT_EQ(g.parameters.draft, 0u);
  EXPECT_EQ(g.window_bytes_draft, 0u);
  EXPECT_FALSE(g.layers[9].draft_tap);
}

TEST(ModelDescription, TextHasTheTerms) {
  const std::string text = DescribeModelText(Geometry("v4.1-flash"));
  for (const char* term :
       {"890 bytes", "512 x E2M1 = 256 B, 32 x E4M3 (one per 16) = 32 B", "1,650", "3,200", "3,514",
        "3.95x", "113,920 B", "28 pages", "2,703,360 B", "1,519 tokens", "3,037 tokens", "12,288 B",
        "748,494,684,784", "15.5 B", "24       reindex"}) {
    EXPECT_THAT(text, HasSubstr(term));
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 100u) << line;
    EXPECT_FALSE(line.ends_with(' ')) << line;
  }
}

TEST(ModelDescription, JsonHasTheFigures) {
  const json flash = json::parse(DescribeModelJson(Geometry("v4.1-flash")));
  EXPECT_EQ(flash["model"], "v4.1-flash");
  EXPECT_EQ(flash["global_kv"]["bytes_per_token"], 890);
  EXPECT_EQ(flash["global_kv"]["bytes_per_token_as"],
            json({{"fp4", 890}, {"fp8", 1650}, {"bf16", 3200}, {"v4_flash", 3514}}));
  EXPECT_EQ(flash["global_kv"]["main"]["bytes"], 288);
  EXPECT_EQ(flash["global_kv"]["indexer"]["bytes"], 68);
  EXPECT_EQ(flash["window"]["all_layers_bytes"], 2'703'360);
  EXPECT_EQ(flash["block"]["record_bytes"], 114'688);
  EXPECT_EQ(flash["layer_map"].size(), 43u);
  EXPECT_EQ(flash["layer_map"][24]["mode"], "reindex");
  EXPECT_EQ(flash["layer_map"][0]["kv_source"], nullptr);
  EXPECT_EQ(flash["parameters"]["active_all"], 15'468'670'064u);
  const json nano = json::parse(DescribeModelJson(Geometry("nano")));
  EXPECT_EQ(nano["global_kv"]["bytes_per_token_as"],
            json({{"fp4", 212}, {"fp8", 396}, {"bf16", 768}, {"v4_flash", 3514}}));
}

TEST(TextTable, AlignsAndSums) {
  TextTable table("lr");
  table.Row({"one", "1"});
  table.Row({"a thousand", "1,000"});
  table.SumLine(1);
  table.Row({"", "1,001"});
  EXPECT_EQ(table.Text(),
            "  one             1\n"
            "  a thousand  1,000\n"
            "              -----\n"
            "              1,001\n");
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1'000), "1,000");
  EXPECT_EQ(Grouped(1'351'680), "1,351,680");
  EXPECT_EQ(Rounded(99'999), "99,999");
  EXPECT_EQ(Rounded(7'892'875'448), "7.89 B");
  EXPECT_EQ(Rounded(44'683'368), "44.7 M");
  EXPECT_EQ(Rounded(377'300'000), "377 M");
}

}  // namespace
}  // namespace reprise::engine
