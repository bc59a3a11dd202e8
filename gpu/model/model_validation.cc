#include <algorithm>
#include <cstdio>
#include <string>

#include "gpu/model/model_config.h"
#include "gpu/model/model_limits.h"

namespace reprise::engine {
namespace {

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Collects the first thing that is wrong.
class Checks {
 public:
  explicit Checks(std::string path) : path_(std::move(path)) {}

  // `key` is `value`, which it must not be.
  void Fail(const std::string& key, const std::string& value, const std::string& must) {
    if (status_.ok()) {
      status_ = InvalidArgument(path_ + key + " is " + value + ": it must be " + must);
    }
  }
  void Range(const char* key, uint64_t value, uint64_t min, uint64_t max) {
    if (value >= min && value <= max) return;
    Fail(key, std::to_string(value), "from " + std::to_string(min) + " to " + std::to_string(max));
  }
  void Multiple(const char* key, uint64_t value, uint64_t of, uint64_t max) {
    if (value > 0 && value <= max && value % of == 0) return;
    Fail(key, std::to_string(value),
         "a multiple of " + std::to_string(of) + " up to " + std::to_string(max));
  }
  void Between(const char* key, double value, double min, double max) {
    if (value >= min && value <= max) return;  // False for NaN.
    Fail(key, Text(value), "from " + Text(min) + " to " + Text(max));
  }
  // Numbers near 0, which may not be 0 themselves.
  void Epsilon(const char* key, double value) {
    if (!(value > 0 && value < 1)) Fail(key, Text(value), "more than 0 and less than 1");
  }
  void Token(const char* key, TokenId token, const ModelConfig& config) {
    if (token >= 0 && static_cast<uint32_t>(token) < config.vocab_size) return;
    Fail(key, std::to_string(token),
         "a token id below vocab_size, " + std::to_string(config.vocab_size));
  }
  // Ascending numbers of backbone layers.
  void Layers(const char* key, const std::vector<uint32_t>& layers, const ModelConfig& config) {
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string item = std::string(key) + "[" + std::to_string(i) + "]";
      if (layers[i] >= config.layer_count) {
        Fail(item, std::to_string(layers[i]),
             "a layer below num_hidden_layers, " + std::to_string(config.layer_count));
      } else if (i > 0 && layers[i] <= layers[i - 1]) {
        Fail(item, std::to_string(layers[i]), "above the entry before it: layers ascend");
      }
    }
  }

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }

 private:
  std::string path_;
  absl::Status status_;
};

std::string Entries(size_t count) { return "a list of " + std::to_string(count); }

void CheckShape(const ModelConfig& c, Checks* checks) {
  checks->Range("vocab_size", c.vocab_size, 1, kVocabMax);
  checks->Multiple("hidden_size", c.hidden_size, kQuantBlock, kHiddenMax);
  checks->Range("num_hidden_layers", c.layer_count, 2, kLayersMax);
  checks->Range("num_nextn_predict_layers", c.draft_stages, 0, kDraftStagesMax);
  checks->Range("max_position_embeddings", c.max_positions, 1, kPositionsMax);
  checks->Epsilon("rms_norm_eps", c.rms_norm_eps);
  checks->Range("hc_mult", c.hc_mult, 1, kHcMultMax);
  checks->Range("hc_sinkhorn_iters", c.hc_sinkhorn_iters, 1, kSinkhornItersMax);
  checks->Epsilon("hc_eps", c.hc_eps);
}

void CheckAttention(const ModelConfig& c, Checks* checks) {
  checks->Range("num_attention_heads", c.heads, 1, kHeadsMax);
  checks->Multiple("head_dim", c.head_dim, kQuantBlock, kHeadDimMax);
  checks->Multiple("index_head_dim", c.index_head_dim, kQuantBlock, kHeadDimMax);
  if (c.rope_dim == 0 || c.rope_dim % 2 != 0 ||
      c.rope_dim > std::min(c.head_dim, c.index_head_dim)) {
    checks->Fail("qk_rope_head_dim", std::to_string(c.rope_dim),
                 "even, above 0, and not above head_dim and index_head_dim (" +
                     std::to_string(c.head_dim) + " and " + std::to_string(c.index_head_dim) + ")");
  }
  checks->Multiple("q_lora_rank", c.q_lora_rank, kQuantBlock, kRankMax);
  checks->Multiple("o_lora_rank", c.o_lora_rank, kQuantBlock, kRankMax);
  checks->Range("o_groups", c.o_groups, 1, kHeadsMax);
  if (checks->ok() && c.heads % c.o_groups != 0) {
    checks->Fail("o_groups", std::to_string(c.o_groups),
                 "a divisor of num_attention_heads, " + std::to_string(c.heads));
  }
  checks->Range("sliding_window", c.window, 1, kWindowMax);
  checks->Between("rope_theta", c.rope_theta, 1, 1e12);
  checks->Between("compress_rope_theta", c.compress_theta, 1, 1e12);
  checks->Between("rope_scaling.factor", c.yarn.factor, 1, 1e6);
  checks->Between("rope_scaling.beta_slow", c.yarn.beta_slow, 1e-3, 1e6);
  checks->Between("rope_scaling.beta_fast", c.yarn.beta_fast, c.yarn.beta_slow, 1e6);
  checks->Range("rope_scaling.original_max_position_embeddings", c.yarn.original_positions, 1,
                kPositionsMax);
  checks->Range("index_n_heads", c.index_heads, 1, kHeadsMax);
  checks->Range("index_topk", c.index_topk, 1, kTopkMax);
}

void CheckRatios(const ModelConfig& c, Checks* checks) {
  const size_t layers = size_t{c.layer_count} + c.draft_stages;
  if (c.compress_ratios.size() != layers) {
    return checks->Fail("compress_ratios", Entries(c.compress_ratios.size()),
                        Entries(layers) +
                            ", one for each of num_hidden_layers and then of "
                            "num_nextn_predict_layers");
  }
  for (size_t i = 0; i < layers; ++i) {
    const std::string key = "compress_ratios[" + std::to_string(i) + "]";
    const uint32_t ratio = c.compress_ratios[i];
    if (ratio > 2) {
      checks->Fail(key, std::to_string(ratio),
                   "0 (the window alone), 1 or 2: no other is supported");
    } else if (i >= c.layer_count && ratio != 0) {
      checks->Fail(key, std::to_string(ratio), "0: a draft stage has its window alone");
    }
  }
}

// Every source writes what it is listed for, and every layer that reads has a source of its ratio.
void CheckSources(const ModelConfig& c, Checks* checks) {
  checks->Layers("kv_source_layer_ids", c.kv_source_layers, c);
  checks->Layers("index_source_layer_ids", c.index_source_layers, c);
  if (c.kv_source_layers.empty()) {
    checks->Fail("kv_source_layer_ids", "empty", "one layer at least");
  }
  if (!checks->ok()) return;
  for (const uint32_t layer : c.kv_source_layers) {
    if (!Contains(c.index_source_layers, layer)) {
      checks->Fail("index_source_layer_ids", "without " + std::to_string(layer),
                   "a list with all of kv_source_layer_ids: they select from what they write");
    }
  }
  for (const uint32_t layer : c.index_source_layers) {
    if (c.compress_ratios[layer] == 0) {
      checks->Fail("compress_ratios[" + std::to_string(layer) + "]", "0",
                   "1 or 2: index_source_layer_ids names this layer");
    }
  }
  uint32_t source_ratio = 0;  // Of the last source so far; 0 before the first.
  for (uint32_t layer = 0; layer < c.layer_count; ++layer) {
    const uint32_t ratio = c.compress_ratios[layer];
    if (Contains(c.kv_source_layers, layer)) source_ratio = ratio;
    if (ratio != 0 && ratio != source_ratio) {
      checks->Fail("compress_ratios[" + std::to_string(layer) + "]", std::to_string(ratio),
                   "the ratio of the layer's source, the last of kv_source_layer_ids up to it (" +
                       (source_ratio == 0 ? "there is none"
                                          : "its ratio is " + std::to_string(source_ratio)) +
                       ")");
    }
  }
}

void CheckCandidates(const ModelConfig& c, Checks* checks) {
  checks->Range("candidate_block_size", c.candidate_block_size, 1, kCandidateBlockMax);
  checks->Range("candidate_topk_blocks", c.candidate_topk_blocks, 1, kTopkMax);
  if (!checks->ok()) return;
  const uint32_t source = c.candidate_source_layer;
  if (source != c.kv_source_layers.back() || source == 0) {
    checks->Fail("candidate_source_layer_id", std::to_string(source),
                 "the last of kv_source_layer_ids and above 0: it is the first decoder layer, from "
                 "which all others of the decoder read");
  } else if (c.compress_ratios[source] != 1) {
    checks->Fail("compress_ratios[" + std::to_string(source) + "]",
                 std::to_string(c.compress_ratios[source]),
                 "1: candidate_source_layer_id names this layer, and the pool is of single tokens");
  }
  if (uint64_t{c.candidate_topk_blocks} * c.candidate_block_size < c.index_topk) {
    checks->Fail("candidate_topk_blocks", std::to_string(c.candidate_topk_blocks),
                 "so large that times candidate_block_size it is not below index_topk, " +
                     std::to_string(c.index_topk));
  }
}

void CheckExperts(const ModelConfig& c, Checks* checks) {
  checks->Multiple("moe_intermediate_size", c.expert_dim, kQuantBlock, kExpertDimMax);
  checks->Range("n_routed_experts", c.routed_experts, 1, kExpertsMax);
  checks->Range("num_experts_per_tok", c.experts_per_token, 1, c.routed_experts);
  checks->Between("routed_scaling_factor", c.routed_scaling, 1e-6, 1e6);
  checks->Between("swiglu_limit", c.swiglu_limit, 1e-6, 1e6);
}

void CheckEngram(const ModelConfig& c, Checks* checks) {
  checks->Layers("engram_layer_ids", c.engram_layers, c);
  checks->Range("engram_max_ngram_size", c.engram_max_ngram, 2, kEngramNgramMax);
  checks->Range("engram_n_heads", c.engram_heads, 1, kEngramHeadsMax);
  checks->Multiple("engram_head_dim", c.engram_head_dim, kQuantBlock, kHeadDimMax);
  checks->Range("engram_vocab_size", c.engram_vocab_size, 2, kEngramVocabMax);
  checks->Range("engram_compressed_vocab_size", c.engram_compressed_vocab, 1, c.vocab_size);
  checks->Token("engram_pad_token_id", c.engram_pad_token, c);
  if (c.engram_rows.size() != c.engram_layers.size()) {
    checks->Fail("engram_num_embeddings", Entries(c.engram_rows.size()),
                 Entries(c.engram_layers.size()) + ", one for each of engram_layer_ids");
  }
  if (!checks->ok()) return;
  // A table has a part for each order of n-grams and head, whose rows are a prime from
  // engram_vocab_size on.
  const uint64_t rows_min = uint64_t{c.engram_max_ngram - 1} * c.engram_heads * c.engram_vocab_size;
  for (size_t i = 0; i < c.engram_rows.size(); ++i) {
    const std::string key = "engram_num_embeddings[" + std::to_string(i) + "]";
    checks->Range(key.c_str(), c.engram_rows[i], rows_min, kEngramRowsMax);
  }
}

void CheckDraft(const ModelConfig& c, Checks* checks) {
  checks->Range("dspark_block_size", c.draft_block, 1, kDraftBlockMax);
  checks->Range("dspark_markov_rank", c.draft_markov_rank, 1, kRankMax);
  checks->Range("dspark_n_routed_experts", c.draft_routed_experts, 1, kExpertsMax);
  checks->Range("dspark_num_experts_per_tok", c.draft_experts_per_token, 1, c.draft_routed_experts);
  checks->Token("dspark_noise_token_id", c.draft_noise_token, c);
  checks->Layers("dspark_target_layer_ids", c.draft_target_layers, c);
  if (c.draft_stages > 0 && c.draft_target_layers.empty()) {
    checks->Fail("dspark_target_layer_ids", "empty",
                 "one layer at least where num_nextn_predict_layers is not 0");
  }
}

absl::Status CheckVision(const VisionConfig& vision) {
  Checks checks("vision_config.");
  checks.Range("num_hidden_layers", vision.layers, 1, kLayersMax);
  checks.Range("hidden_size", vision.hidden_size, 1, kHiddenMax);
  checks.Range("num_attention_heads", vision.heads, 1, kHeadsMax);
  checks.Range("intermediate_size", vision.intermediate_size, 1, kExpertDimMax);
  checks.Range("patch_size", vision.patch_size, 1, kVisionPatchMax);
  checks.Range("downsample_ratio", vision.downsample_ratio, 1, kVisionDownsampleMax);
  checks.Range("max_image_tokens", vision.max_image_tokens, 1, kVisionImageTokensMax);
  if (checks.ok() && vision.hidden_size % (4 * vision.heads) != 0) {
    checks.Fail("hidden_size", std::to_string(vision.hidden_size),
                "a multiple of 4 x num_attention_heads, " + std::to_string(4 * vision.heads) +
                    ": a head is rotated in pairs, half of them by row and half by column");
  }
  return checks.status();
}

}  // namespace

absl::Status Validate(const ModelConfig& config) {
  Checks text("text_config.");
  CheckShape(config, &text);
  CheckAttention(config, &text);
  RP_TRY(text.status());
  CheckRatios(config, &text);
  RP_TRY(text.status());
  CheckSources(config, &text);
  RP_TRY(text.status());
  CheckCandidates(config, &text);
  CheckExperts(config, &text);
  CheckEngram(config, &text);
  CheckDraft(config, &text);
  RP_TRY(text.status());
  Checks top("");
  top.Token("bos_token_id", config.bos_token, config);
  top.Token("eos_token_id", config.eos_token, config);
  top.Token("pad_token_id", config.pad_token, config);
  top.Token("image_token_id", config.image_token, config);
  RP_TRY(top.status());
  return config.vision ? CheckVision(*config.vision) : absl::OkStatus();
}

}  // namespace reprise::engine
