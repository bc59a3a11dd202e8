#include "gpu/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "gpu/model/model_limits.h"

namespace reprise::engine {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// As the model's folder has it: keys that we do not read included.
constexpr const char* kV41Flash = R"({
  "architectures": ["DeepseekV41ForCausalLM"],
  "model_type": "deepseek_v41", "dtype": "bfloat16", "transformers_version": "4.57.1",
  "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 129264,
  "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic",
    "weight_block_size": [32, 32], "scale_fmt": "ue8m0", "expert_dtype": "fp4"},
  "text_config": {
    "model_type": "deepseek_v41_text", "vocab_size": 129280, "hidden_size": 5120,
    "num_hidden_layers": 40, "moe_intermediate_size": 2304, "num_attention_heads": 64,
    "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64, "q_lora_rank": 1280,
    "o_lora_rank": 1024, "o_groups": 8, "hidden_act": "silu", "attention_bias": false,
    "swiglu_limit": 10.0, "rms_norm_eps": 1e-20, "tie_word_embeddings": false,
    "max_position_embeddings": 1048576, "rope_theta": 10000,
    "rope_scaling": {"rope_type": "yarn", "factor": 16, "beta_fast": 32, "beta_slow": 1,
      "original_max_position_embeddings": 65536},
    "compress_rope_theta": 160000, "n_routed_experts": 384, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "first_k_dense_replace": 0,
    "sliding_window": 128,
    "compress_ratios": [0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0],
    "kv_source_layer_ids": [2, 8, 14, 20],
    "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
    "index_n_heads": 32, "index_head_dim": 128, "index_topk": 512,
    "candidate_source_layer_id": 20, "candidate_topk_blocks": 2048, "candidate_block_size": 8,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
    "engram_layer_ids": [1, 14], "engram_num_embeddings": [384006168, 384016682],
    "engram_max_ngram_size": 4, "engram_vocab_size": 16000000, "engram_n_heads": 8,
    "engram_head_dim": 256, "engram_pad_token_id": 2, "engram_compressed_vocab_size": 99092,
    "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 128799,
    "dspark_target_layer_ids": [37, 38, 39], "dspark_markov_rank": 256,
    "dspark_n_routed_experts": 128, "dspark_num_experts_per_tok": 3},
  "vision_config": {"model_type": "deepseek_v41_vision", "num_hidden_layers": 32,
    "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 2816, "patch_size": 14,
    "rope_theta": 10000, "downsample_ratio": 3, "max_image_tokens": 1024, "min_pixels": 295936,
    "max_wh_ratio": null}
})";

ModelConfig Preset(const char* name) { return ModelConfig::Preset(name).value(); }
json Nano() { return json::parse(Preset("nano").ToJson()); }

// The error of a configuration; empty when it is accepted.
std::string ErrorOf(const std::string& text) {
  const auto config = ModelConfig::Parse(text);
  if (config.ok()) return "";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return Message(config.status());
}
std::string ErrorOf(const json& config) { return ErrorOf(config.dump()); }

// "/text_config/head_dim" as errors write it.
std::string KeyOf(const json::json_pointer& pointer) {
  std::string key = pointer.to_string().substr(1);
  for (char& c : key) c = c == '/' ? '.' : c;
  return key;
}

// Pointers to all keys of a configuration that hold a value, lists whole.
std::vector<json::json_pointer> Keys(const json& object,
                                     const json::json_pointer& at = json::json_pointer()) {
  std::vector<json::json_pointer> keys;
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      for (const auto& below : Keys(value, at / key)) keys.push_back(below);
    } else {
      keys.push_back(at / key);
    }
  }
  return keys;
}

TEST(ModelConfig, PresetsAreTheFiles) {
  const auto flash = ModelConfig::Parse(kV41Flash);
  ASSERT_TRUE(flash.ok()) << flash.status();
  EXPECT_EQ(*flash, Preset("v4.1-flash"));
  const auto nano = ModelConfig::Load(RP_SOURCE_DIR "/gpu/nano/config.json");
  ASSERT_TRUE(nano.ok()) << nano.status();
  EXPECT_EQ(*nano, Preset("nano"));
  EXPECT_FALSE(nano->vision.has_value());
  EXPECT_THAT(Message(ModelConfig::Preset("v4").status()),
              AllOf(HasSubstr("\"v4\""), HasSubstr("v4.1-flash and nano")));
}

TEST(ModelConfig, IsWrittenAndReadBack) {
  for (const char* name : {"v4.1-flash", "nano"}) {
    const ModelConfig preset = Preset(name);
    const auto again = ModelConfig::Parse(preset.ToJson());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, preset);
    EXPECT_EQ(again->ToJson(), preset.ToJson());
  }
  EXPECT_EQ(json::parse(Preset("v4.1-flash").ToJson())["text_config"]["rms_norm_eps"], 1e-20);
}

TEST(ModelConfig, LoadNamesTheFile) {
  const std::string path = RP_SOURCE_DIR "/gpu/nano/none.json";
  EXPECT_THAT(Message(ModelConfig::Load(path).status()), HasSubstr(path + ": cannot be opened"));
  EXPECT_FALSE(ModelConfig::Load(RP_SOURCE_DIR).ok()) << "a folder";
  const std::string other = RP_SOURCE_DIR "/CMakePresets.json";
  EXPECT_THAT(Message(ModelConfig::Load(other).status()), HasSubstr(other + ": model_type"));
}

TEST(ModelConfig, NeedsEveryKey) {
  const json whole = json::parse(kV41Flash);
  const json canonical = json::parse(Preset("v4.1-flash").ToJson());
  for (const auto& key : Keys(canonical)) {
    json without = whole;
    ASSERT_TRUE(without.contains(key));
    without[key.parent_pointer()].erase(key.back());
    EXPECT_THAT(ErrorOf(without), HasSubstr(KeyOf(key) + " is missing"));
  }
  for (const char* part : {"text_config", "quantization_config"}) {
    json without = whole;
    without.erase(part);
    EXPECT_THAT(ErrorOf(without), HasSubstr(std::string(part) + " is missing"));
    without[part] = 7;
    EXPECT_THAT(ErrorOf(without), HasSubstr(std::string(part) + " is 7: it must be an object"));
  }
}

TEST(ModelConfig, VisionMayBeAbsent) {
  json config = json::parse(kV41Flash);
  config["vision_config"] = nullptr;
  EXPECT_EQ(ErrorOf(config), "");
  config.erase("vision_config");
  EXPECT_EQ(ErrorOf(config), "");
  config["vision_config"] = json::object();
  EXPECT_THAT(ErrorOf(config), HasSubstr("vision_config.num_hidden_layers is missing"));
}

// Whatever a key holds instead of its value, the error names it.
TEST(ModelConfig, RefusesWrongKindsAndAbsurdSizesByKey) {
  const std::vector<json> wrong = {"text", nullptr,        json::array({"a"}), json::object(),
                                   -1,     -5'000'000'000, UINT64_MAX,         true};
  const json whole = json::parse(Preset("v4.1-flash").ToJson());
  for (const auto& key : Keys(whole)) {
    for (const json& value : wrong) {
      json config = whole;
      if (config[key] == value) continue;
      config[key] = value;
      EXPECT_THAT(ErrorOf(config), HasSubstr(KeyOf(key))) << value;
    }
    if (!whole[key].is_number_unsigned()) continue;
    json fraction = whole;
    fraction[key] = whole[key].get<double>() + 0.5;
    EXPECT_THAT(ErrorOf(fraction), AllOf(HasSubstr(KeyOf(key)), HasSubstr("must be")));
  }
}

TEST(ModelConfig, RefusesZeroSizes) {
  const json whole = json::parse(Preset("v4.1-flash").ToJson());
  for (const auto& key : Keys(whole)) {
    const std::string name = key.back();
    const bool zero_is_a_value = name.ends_with("token_id") || name == "first_k_dense_replace";
    // Without draft stages the ratios no longer fit: that error names another key.
    if (!whole[key].is_number() || zero_is_a_value || name == "num_nextn_predict_layers") continue;
    json config = whole;
    config[key] = 0;
    EXPECT_THAT(ErrorOf(config), HasSubstr(KeyOf(key)));
  }
}

struct Refusal {
  const char* pointer;
  const char* value;               // JSON.
  std::vector<const char*> words;  // Of the error.
};

TEST(ModelConfig, SaysWhatAKeyMayBe) {
  const std::vector<Refusal> refusals = {
      {"/model_type", R"("deepseek_v4")", {"model_type is \"deepseek_v4\"", "\"deepseek_v41\""}},
      {"/quantization_config/quant_method", R"("awq")", {"quant_method is \"awq\"", "\"fp8\""}},
      {"/quantization_config/weight_block_size", "[128, 128]", {"weight_block_size", "[32,32]"}},
      {"/quantization_config/scale_fmt", R"("fp32")", {"scale_fmt is \"fp32\"", "\"ue8m0\""}},
      {"/quantization_config/expert_dtype", R"("fp8")", {"expert_dtype is \"fp8\"", "\"fp4\""}},
      {"/text_config/scoring_func", R"("softmax")", {"scoring_func", "\"sqrtsoftplus\""}},
      {"/text_config/topk_method", R"("greedy")", {"topk_method", "\"noaux_tc\""}},
      {"/text_config/hidden_act", R"("gelu")", {"hidden_act is \"gelu\"", "\"silu\""}},
      {"/text_config/attention_bias", "true", {"attention_bias is true", "false"}},
      {"/text_config/tie_word_embeddings", "true", {"tie_word_embeddings is true"}},
      {"/text_config/num_key_value_heads", "8", {"num_key_value_heads is 8", "must be 1"}},
      {"/text_config/n_shared_experts", "2", {"n_shared_experts is 2"}},
      {"/text_config/norm_topk_prob", "false", {"norm_topk_prob is false", "true"}},
      {"/text_config/first_k_dense_replace", "3", {"first_k_dense_replace is 3"}},
      {"/text_config/rope_scaling/rope_type", R"("linear")", {"rope_scaling.rope_type", "yarn"}},
      {"/text_config/rope_scaling/factor", "0.5", {"rope_scaling.factor is 0.5", "from 1"}},
      {"/text_config/rope_scaling/beta_fast", "0.5", {"rope_scaling.beta_fast is 0.5"}},
      {"/text_config/hidden_size", "400", {"hidden_size is 400", "a multiple of 32"}},
      {"/text_config/head_dim", "120", {"head_dim is 120", "a multiple of 32"}},
      {"/text_config/qk_rope_head_dim", "31", {"qk_rope_head_dim is 31", "even"}},
      {"/text_config/qk_rope_head_dim", "66", {"qk_rope_head_dim is 66", "index_head_dim"}},
      {"/text_config/q_lora_rank", "100", {"q_lora_rank is 100", "a multiple of 32"}},
      {"/text_config/o_groups", "3", {"o_groups is 3", "divisor of num_attention_heads, 8"}},
      {"/text_config/num_hidden_layers", "1000000000", {"num_hidden_layers", "from 2 to 256"}},
      {"/text_config/rms_norm_eps", "1e300", {"rms_norm_eps is 1e+300", "less than 1"}},
      {"/text_config/num_experts_per_tok", "9", {"num_experts_per_tok is 9", "from 1 to 8"}},
      {"/text_config/compress_ratios", "[0, 0]", {"compress_ratios is a list of 2", "list of 14"}},
      {"/text_config/compress_ratios/3", "4", {"compress_ratios[3] is 4", "1 or 2"}},
      {"/text_config/compress_ratios/12", "1", {"compress_ratios[12] is 1", "draft stage"}},
      {"/text_config/compress_ratios/1", "2", {"compress_ratios[1] is 2", "there is none"}},
      {"/text_config/compress_ratios/5", "1", {"compress_ratios[5] is 1", "its ratio is 2"}},
      {"/text_config/compress_ratios/6", "0", {"compress_ratios[6] is 0"}},
      {"/text_config/compress_ratios/9", "0", {"compress_ratios[9] is 0", "index_source"}},
      {"/text_config/kv_source_layer_ids", "[]", {"kv_source_layer_ids is empty"}},
      {"/text_config/kv_source_layer_ids", "[4, 2, 6]", {"kv_source_layer_ids[1] is 2", "ascend"}},
      {"/text_config/kv_source_layer_ids/0", "3", {"index_source_layer_ids is without 3"}},
      {"/text_config/kv_source_layer_ids/2", "12", {"kv_source_layer_ids[2] is 12", "below"}},
      {"/text_config/index_source_layer_ids/3", "6", {"index_source_layer_ids[3] is 6"}},
      {"/text_config/index_source_layer_ids", "[2, 4, 9]", {"index_source_layer_ids", "without 6"}},
      {"/text_config/candidate_source_layer_id", "4", {"candidate_source_layer_id is 4", "last"}},
      {"/text_config/candidate_topk_blocks", "7", {"candidate_topk_blocks is 7", "index_topk, 64"}},
      {"/text_config/engram_layer_ids", "[1]", {"engram_num_embeddings is a list of 2"}},
      {"/text_config/engram_layer_ids/1", "40", {"engram_layer_ids[1] is 40"}},
      {"/text_config/engram_num_embeddings/0", "47999", {"embeddings[0] is 47999", "from 48000"}},
      {"/text_config/engram_max_ngram_size", "1", {"engram_max_ngram_size is 1", "from 2"}},
      {"/text_config/engram_pad_token_id", "288", {"engram_pad_token_id is 288", "vocab_size"}},
      {"/text_config/engram_compressed_vocab_size", "289", {"engram_compressed_vocab_size"}},
      {"/text_config/dspark_target_layer_ids", "[]", {"dspark_target_layer_ids is empty"}},
      {"/text_config/dspark_target_layer_ids/0", "12", {"dspark_target_layer_ids[0] is 12"}},
      {"/text_config/dspark_num_experts_per_tok", "5", {"dspark_num_experts_per_tok is 5"}},
      {"/eos_token_id", "288", {"eos_token_id is 288", "288"}},
  };
  for (const Refusal& refusal : refusals) {
    json config = Nano();
    config[json::json_pointer(refusal.pointer)] = json::parse(refusal.value);
    const std::string error = ErrorOf(config);
    for (const char* word : refusal.words) EXPECT_THAT(error, HasSubstr(word)) << refusal.pointer;
  }
}

TEST(ModelConfig, RefusesTheDecoderOfAnotherRatio) {
  json config = Nano();
  for (int layer = 6; layer < 12; ++layer) config["text_config"]["compress_ratios"][layer] = 2;
  EXPECT_THAT(ErrorOf(config), HasSubstr("compress_ratios[6] is 2: it must be 1"));
}

TEST(ModelConfig, AcceptsOtherModelsOfTheKind) {
  json config = Nano();
  config["text_config"]["num_nextn_predict_layers"] = 0;
  config["text_config"]["compress_ratios"] = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1};
  config["text_config"]["dspark_target_layer_ids"] = json::array();
  config["text_config"]["engram_layer_ids"] = json::array();
  config["text_config"]["engram_num_embeddings"] = json::array();
  config["text_config"]["rope_theta"] = 10000.5;
  EXPECT_EQ(ErrorOf(config), "");
}

TEST(ModelConfig, RefusesHostileText) {
  const std::string deep(200'000, '[');
  const std::string long_text(kConfigBytesMax + 1, ' ');
  json config = Nano();
  config["model_type"] = std::string(5'000, 'x');
  EXPECT_LT(ErrorOf(config).size(), 200u) << "values are cut in errors";
  EXPECT_THAT(ErrorOf(std::string()), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(std::string("[1]")), HasSubstr("an object at the top"));
  EXPECT_THAT(ErrorOf(std::string("{\"a\": 1e999}")), HasSubstr("not valid JSON"));
  EXPECT_THAT(ErrorOf(long_text), HasSubstr("1048577 bytes"));
  EXPECT_THAT(ErrorOf(deep), HasSubstr("not valid JSON"));
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_THAT(ErrorOf("{\"model_type\": " + closed + "}"), HasSubstr("model_type is a list"));
  EXPECT_THAT(ErrorOf(std::string("{\"a\": {\"b\": 1, \"b\": 2}}")),
              HasSubstr("key \"b\" is there twice"));
}

// Parse cannot bring these in, a caller that fills the struct can.
TEST(ModelConfig, ValidateRefusesWhatIsNotANumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (double ModelConfig::*field :
       {&ModelConfig::rms_norm_eps, &ModelConfig::rope_theta, &ModelConfig::compress_theta,
        &ModelConfig::routed_scaling, &ModelConfig::swiglu_limit, &ModelConfig::hc_eps}) {
    ModelConfig config = Preset("nano");
    config.*field = nan;
    EXPECT_THAT(Message(Validate(config)), HasSubstr("is nan"));
  }
  ModelConfig config = Preset("nano");
  config.eos_token = -1;
  EXPECT_THAT(Message(Validate(config)), HasSubstr("eos_token_id is -1"));
}

}  // namespace
}  // namespace reprise::engine
