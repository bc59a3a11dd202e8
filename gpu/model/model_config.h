#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/base/status.h"
#include "protocol/base/types.h"

namespace reprise::engine {

// YaRN over `original_positions`: rotation frequencies of the layers with a compress ratio.
struct YarnConfig {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  uint32_t original_positions = 0;

  friend bool operator==(const YarnConfig&, const YarnConfig&) = default;
};

struct VisionConfig {
  uint32_t layers = 0;
  uint32_t hidden_size = 0;
  uint32_t heads = 0;
  uint32_t intermediate_size = 0;
  uint32_t patch_size = 0;
  uint32_t downsample_ratio = 0;
  uint32_t max_image_tokens = 0;

  friend bool operator==(const VisionConfig&, const VisionConfig&) = default;
};

// A Hugging Face style config.json of the DeepSeek-V4.1 architecture. The comment gives the key,
// in text_config unless it says otherwise. Nothing has a default that a file may leave out: the
// toy defaults of the reference are a known trap.
struct ModelConfig {
  TokenId bos_token = 0;    // bos_token_id, top level.
  TokenId eos_token = 0;    // eos_token_id, top level.
  TokenId pad_token = 0;    // pad_token_id, top level.
  TokenId image_token = 0;  // image_token_id, top level.

  uint32_t vocab_size = 0;
  uint32_t hidden_size = 0;
  uint32_t layer_count = 0;    // num_hidden_layers: the backbone's.
  uint32_t max_positions = 0;  // max_position_embeddings
  double rms_norm_eps = 0;

  // Attention.
  uint32_t heads = 0;     // num_attention_heads
  uint32_t head_dim = 0;  // Of the latent that is key and value of all heads.
  uint32_t rope_dim = 0;  // qk_rope_head_dim: the last so many of head_dim, and of index_head_dim.
  uint32_t q_lora_rank = 0;
  uint32_t o_lora_rank = 0;  // Per output group.
  uint32_t o_groups = 0;
  uint32_t window = 0;        // sliding_window
  double rope_theta = 0;      // Of layers with ratio 0.
  double compress_theta = 0;  // compress_rope_theta: of all others, with YaRN.
  YarnConfig yarn;            // rope_scaling

  // Compressed attention (CSA2).
  std::vector<uint32_t> compress_ratios;      // layer_count backbone layers, then the draft stages.
  std::vector<uint32_t> kv_source_layers;     // kv_source_layer_ids
  std::vector<uint32_t> index_source_layers;  // index_source_layer_ids
  uint32_t index_heads = 0;                   // index_n_heads
  uint32_t index_head_dim = 0;
  uint32_t index_topk = 0;
  uint32_t candidate_source_layer = 0;  // candidate_source_layer_id: the first decoder layer.
  uint32_t candidate_topk_blocks = 0;
  uint32_t candidate_block_size = 0;

  // Mixture of experts.
  uint32_t expert_dim = 0;         // moe_intermediate_size
  uint32_t routed_experts = 0;     // n_routed_experts
  uint32_t experts_per_token = 0;  // num_experts_per_tok
  double routed_scaling = 0;       // routed_scaling_factor
  double swiglu_limit = 0;

  // Hyper-connections (mHC).
  uint32_t hc_mult = 0;
  uint32_t hc_sinkhorn_iters = 0;
  double hc_eps = 0;

  // Engram.
  std::vector<uint32_t> engram_layers;  // engram_layer_ids
  std::vector<uint64_t> engram_rows;    // engram_num_embeddings: of each table.
  uint32_t engram_max_ngram = 0;        // engram_max_ngram_size
  uint64_t engram_vocab_size = 0;       // Where the search for primes starts.
  uint32_t engram_heads = 0;            // engram_n_heads
  uint32_t engram_head_dim = 0;
  TokenId engram_pad_token = 0;          // engram_pad_token_id
  uint32_t engram_compressed_vocab = 0;  // engram_compressed_vocab_size

  // DSpark.
  uint32_t draft_stages = 0;                  // num_nextn_predict_layers
  uint32_t draft_block = 0;                   // dspark_block_size
  TokenId draft_noise_token = 0;              // dspark_noise_token_id
  std::vector<uint32_t> draft_target_layers;  // dspark_target_layer_ids
  uint32_t draft_markov_rank = 0;             // dspark_markov_rank
  uint32_t draft_routed_experts = 0;          // dspark_n_routed_experts
  uint32_t draft_experts_per_token = 0;       // dspark_num_experts_per_tok

  std::optional<VisionConfig> vision;  // vision_config, top level.

  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  // Reads and validates. Every error names the key and what it may be.
  static absl::StatusOr<ModelConfig> Parse(std::string_view json);
  static absl::StatusOr<ModelConfig> Load(const std::string& path);
  // "v4.1-flash" or "nano".
  static absl::StatusOr<ModelConfig> Preset(std::string_view name);

  // The canonical config.json: keys sorted, those alone that the model depends on. Parse gives an
  // equal configuration back; its SHA-256 may stand for the configuration.
  std::string ToJson() const;
};

// True when one of the lists of layers above has `layer`.
inline bool Contains(const std::vector<uint32_t>& layers, uint32_t layer) {
  return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

// What Parse checks after reading: ranges, divisibility, lists that fit one another.
absl::Status Validate(const ModelConfig& config);

}  // namespace reprise::engine
