#pragma once

#include "gpu/model/model_config.h"

// Which key of config.json holds which field, once for reading and writing: `io` is called with
// every key and field, and with every key that has one value only (io.Fixed).
namespace reprise::engine {

template <typename Io, typename Config>
void TopFields(Io& io, Config& config) {
  io.Fixed("model_type", R"("deepseek_v41")");
  io("bos_token_id", config.bos_token);
  io("eos_token_id", config.eos_token);
  io("pad_token_id", config.pad_token);
  io("image_token_id", config.image_token);
}

template <typename Io>
void QuantizationFields(Io& io) {
  io.Fixed("quant_method", R"("fp8")");
  io.Fixed("activation_scheme", R"("dynamic")");
  io.Fixed("weight_block_size", "[32,32]");
  io.Fixed("scale_fmt", R"("ue8m0")");
  io.Fixed("expert_dtype", R"("fp4")");
}

template <typename Io, typename Config>
void AttentionFields(Io& io, Config& config) {
  io("num_attention_heads", config.heads);
  io.Fixed("num_key_value_heads", "1");
  io("head_dim", config.head_dim);
  io("qk_rope_head_dim", config.rope_dim);
  io("q_lora_rank", config.q_lora_rank);
  io("o_lora_rank", config.o_lora_rank);
  io("o_groups", config.o_groups);
  io.Fixed("attention_bias", "false");
  io("sliding_window", config.window);
  io("rope_theta", config.rope_theta);
  io("compress_rope_theta", config.compress_theta);
  io("compress_ratios", config.compress_ratios);
  io("kv_source_layer_ids", config.kv_source_layers);
  io("index_source_layer_ids", config.index_source_layers);
  io("index_n_heads", config.index_heads);
  io("index_head_dim", config.index_head_dim);
  io("index_topk", config.index_topk);
  io("candidate_source_layer_id", config.candidate_source_layer);
  io("candidate_topk_blocks", config.candidate_topk_blocks);
  io("candidate_block_size", config.candidate_block_size);
}

template <typename Io, typename Config>
void YarnFields(Io& io, Config& config) {
  io.Fixed("rope_type", R"("yarn")");
  io("factor", config.yarn.factor);
  io("beta_fast", config.yarn.beta_fast);
  io("beta_slow", config.yarn.beta_slow);
  io("original_max_position_embeddings", config.yarn.original_positions);
}

template <typename Io, typename Config>
void ExpertFields(Io& io, Config& config) {
  io("moe_intermediate_size", config.expert_dim);
  io("n_routed_experts", config.routed_experts);
  io.Fixed("n_shared_experts", "1");
  io("num_experts_per_tok", config.experts_per_token);
  io.Fixed("scoring_func", R"("sqrtsoftplus")");
  io.Fixed("topk_method", R"("noaux_tc")");
  io.Fixed("norm_topk_prob", "true");
  io.Fixed("first_k_dense_replace", "0");
  io.Fixed("hidden_act", R"("silu")");
  io("routed_scaling_factor", config.routed_scaling);
  io("swiglu_limit", config.swiglu_limit);
}

template <typename Io, typename Config>
void EngramFields(Io& io, Config& config) {
  io("engram_layer_ids", config.engram_layers);
  io("engram_num_embeddings", config.engram_rows);
  io("engram_max_ngram_size", config.engram_max_ngram);
  io("engram_vocab_size", config.engram_vocab_size);
  io("engram_n_heads", config.engram_heads);
  io("engram_head_dim", config.engram_head_dim);
  io("engram_pad_token_id", config.engram_pad_token);
  io("engram_compressed_vocab_size", config.engram_compressed_vocab);
}

template <typename Io, typename Config>
void DraftFields(Io& io, Config& config) {
  io("num_nextn_predict_layers", config.draft_stages);
  io("dspark_block_size", config.draft_block);
  io("dspark_noise_token_id", config.draft_noise_token);
  io("dspark_target_layer_ids", config.draft_target_layers);
  io("dspark_markov_rank", config.draft_markov_rank);
  io("dspark_n_routed_experts", config.draft_routed_experts);
  io("dspark_num_experts_per_tok", config.draft_experts_per_token);
}

// text_config, without rope_scaling.
template <typename Io, typename Config>
void TextFields(Io& io, Config& config) {
  io("vocab_size", config.vocab_size);
  io("hidden_size", config.hidden_size);
  io("num_hidden_layers", config.layer_count);
  io("max_position_embeddings", config.max_positions);
  io("rms_norm_eps", config.rms_norm_eps);
  io.Fixed("tie_word_embeddings", "false");
  io("hc_mult", config.hc_mult);
  io("hc_sinkhorn_iters", config.hc_sinkhorn_iters);
  io("hc_eps", config.hc_eps);
  AttentionFields(io, config);
  ExpertFields(io, config);
  EngramFields(io, config);
  DraftFields(io, config);
}

template <typename Io, typename Vision>
void VisionFields(Io& io, Vision& vision) {
  io("num_hidden_layers", vision.layers);
  io("hidden_size", vision.hidden_size);
  io("num_attention_heads", vision.heads);
  io("intermediate_size", vision.intermediate_size);
  io("patch_size", vision.patch_size);
  io("downsample_ratio", vision.downsample_ratio);
  io("max_image_tokens", vision.max_image_tokens);
}

}  // namespace reprise::engine
