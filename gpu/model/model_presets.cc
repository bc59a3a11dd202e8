#include "gpu/model/model_config.h"

namespace reprise::engine {
namespace {

// `count` times `value` at the end of `list`.
void Append(std::vector<uint32_t>* list, size_t count, uint32_t value) {
  list->insert(list->end(), count, value);
}

// Model-facts section 1.1.
ModelConfig V41Flash() {
  ModelConfig config{.bos_token = 0,
                     .eos_token = 1,
                     .pad_token = 2,
                     .image_token = 129264,
                     .vocab_size = 129280,
                     .hidden_size = 5120,
                     .layer_count = 40,
                     .max_positions = 1048576,
                     .rms_norm_eps = 1e-20,
                     .heads = 64,
                     .head_dim = 512,
                     .rope_dim = 64,
                     .q_lora_rank = 1280,
                     .o_lora_rank = 1024,
                     .o_groups = 8,
                     .window = 128,
                     .rope_theta = 10000,
                     .compress_theta = 160000,
                     .yarn = {16, 32, 1, 65536},
                     .kv_source_layers = {2, 8, 14, 20},
                     .index_source_layers = {2, 8, 14, 20, 24, 28, 32, 36},
                     .index_heads = 32,
                     .index_head_dim = 128,
                     .index_topk = 512,
                     .candidate_source_layer = 20,
                     .candidate_topk_blocks = 2048,
                     .candidate_block_size = 8,
                     .expert_dim = 2304,
                     .routed_experts = 384,
                     .experts_per_token = 6,
                     .routed_scaling = 1.5,
                     .swiglu_limit = 10,
                     .hc_mult = 4,
                     .hc_sinkhorn_iters = 20,
                     .hc_eps = 1e-6,
                     .engram_layers = {1, 14},
                     .engram_rows = {384006168, 384016682},
                     .engram_max_ngram = 4,
                     .engram_vocab_size = 16000000,
                     .engram_heads = 8,
                     .engram_head_dim = 256,
                     .engram_pad_token = 2,
                     .engram_compressed_vocab = 99092,
                     .draft_stages = 3,
                     .draft_block = 5,
                     .draft_noise_token = 128799,
                     .draft_target_layers = {37, 38, 39},
                     .draft_markov_rank = 256,
                     .draft_routed_experts = 128,
                     .draft_experts_per_token = 3,
                     .vision = VisionConfig{32, 1024, 16, 2816, 14, 3, 1024}};
  Append(&config.compress_ratios, 2, 0);
  Append(&config.compress_ratios, 18, 2);
  Append(&config.compress_ratios, 20, 1);
  Append(&config.compress_ratios, 3, 0);
  return config;
}

// The small trained model of the same topology: gpu/nano/config.json.
ModelConfig Nano() {
  ModelConfig config{.bos_token = 256,
                     .eos_token = 257,
                     .pad_token = 258,
                     .image_token = 287,
                     .vocab_size = 288,
                     .hidden_size = 384,
                     .layer_count = 12,
                     .max_positions = 32768,
                     .rms_norm_eps = 1e-20,
                     .heads = 8,
                     .head_dim = 128,
                     .rope_dim = 32,
                     .q_lora_rank = 192,
                     .o_lora_rank = 128,
                     .o_groups = 2,
                     .window = 128,
                     .rope_theta = 10000,
                     .compress_theta = 160000,
                     .yarn = {4, 32, 1, 8192},
                     .kv_source_layers = {2, 4, 6},
                     .index_source_layers = {2, 4, 6, 9},
                     .index_heads = 4,
                     .index_head_dim = 64,
                     .index_topk = 64,
                     .candidate_source_layer = 6,
                     .candidate_topk_blocks = 64,
                     .candidate_block_size = 8,
                     .expert_dim = 256,
                     .routed_experts = 8,
                     .experts_per_token = 2,
                     .routed_scaling = 1.5,
                     .swiglu_limit = 10,
                     .hc_mult = 4,
                     .hc_sinkhorn_iters = 20,
                     .hc_eps = 1e-6,
                     .engram_layers = {1, 4},
                     .engram_rows = {48400, 49568},
                     .engram_max_ngram = 4,
                     .engram_vocab_size = 4000,
                     .engram_heads = 4,
                     .engram_head_dim = 32,
                     .engram_pad_token = 258,
                     .engram_compressed_vocab = 259,
                     .draft_stages = 2,
                     .draft_block = 5,
                     .draft_noise_token = 268,
                     .draft_target_layers = {9, 10, 11},
                     .draft_markov_rank = 32,
                     .draft_routed_experts = 4,
                     .draft_experts_per_token = 2};
  Append(&config.compress_ratios, 2, 0);
  Append(&config.compress_ratios, 4, 2);
  Append(&config.compress_ratios, 6, 1);
  Append(&config.compress_ratios, 2, 0);
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ModelConfig::Preset(std::string_view name) {
  if (name == "v4.1-flash") return V41Flash();
  if (name == "nano") return Nano();
  return InvalidArgument("unknown model \"" + std::string(name) +
                         "\": known are v4.1-flash and nano");
}

}  // namespace reprise::engine
