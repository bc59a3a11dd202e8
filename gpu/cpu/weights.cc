#include "gpu/cpu/weights.h"

#include <string>

namespace reprise::engine::cpu {
namespace {

// Names, shapes and types of model-facts section 13, layer by layer.
class Loader {
 public:
  Loader(const ModelGeometry& geometry, const Checkpoint& checkpoint)
      : geometry_(geometry), config_(geometry.config), checkpoint_(checkpoint) {}

  absl::StatusOr<PackedMatrix> Matrix(const std::string& name, uint32_t outputs, uint32_t inputs) {
    return PackedMatrix::Load(checkpoint_, name, outputs, inputs);
  }
  absl::StatusOr<Floats> Norm(const std::string& name, uint64_t count) {
    return LoadFloats(checkpoint_, name, DType::kBf16, {count});
  }
  absl::StatusOr<Floats> Float32(const std::string& name, uint64_t count) {
    return LoadFloats(checkpoint_, name, DType::kF32, {count});
  }

  absl::StatusOr<MhcWeights> Mhc(const std::string& prefix) {
    const uint32_t mixes = config_.hc_mult * (2 + config_.hc_mult);
    MhcWeights mhc;
    RP_ASSIGN(mhc.fn, Matrix(prefix + "_fn", mixes, config_.hc_mult * config_.hidden_size));
    RP_ASSIGN(mhc.base, Float32(prefix + "_base", mixes));
    RP_ASSIGN(mhc.scale, Float32(prefix + "_scale", 3));
    return mhc;
  }

  absl::StatusOr<CompressorWeights> Compressor(const std::string& prefix, uint32_t ratio) {
    CompressorWeights out;
    const uint32_t hidden = config_.hidden_size, dim = config_.head_dim;
    RP_ASSIGN(out.wkv, Matrix(prefix + "compressor.wkv.weight", dim, hidden));
    if (ratio == 2) {
      RP_ASSIGN(out.wgate, Matrix(prefix + "compressor.wgate.weight", dim, hidden));
    }
    RP_ASSIGN(out.norm, Norm(prefix + "compressor.norm.weight", dim));
    RP_ASSIGN(out.wk, Matrix(prefix + "indexer.wk.weight", config_.index_head_dim, dim));
    RP_ASSIGN(out.k_norm, Norm(prefix + "indexer.k_norm.weight", config_.index_head_dim));
    return out;
  }

  absl::StatusOr<AttentionWeights> Attention(const std::string& prefix, const LayerPlan& plan) {
    const ModelConfig& c = config_;
    const std::string p = prefix + "attn.";
    AttentionWeights out;
    RP_ASSIGN(out.wq_a, Matrix(p + "wq_a.weight", c.q_lora_rank, c.hidden_size));
    RP_ASSIGN(out.q_norm, Norm(p + "q_norm.weight", c.q_lora_rank));
    RP_ASSIGN(out.wq_b, Matrix(p + "wq_b.weight", c.heads * c.head_dim, c.q_lora_rank));
    RP_ASSIGN(out.wkv, Matrix(p + "wkv.weight", c.head_dim, c.hidden_size));
    RP_ASSIGN(out.kv_norm, Norm(p + "kv_norm.weight", c.head_dim));
    RP_ASSIGN(out.sinks, Float32(p + "attn_sink", c.heads));
    const uint32_t low = c.o_groups * c.o_lora_rank;
    const uint32_t group_inputs = c.heads / c.o_groups * c.head_dim;
    for (uint32_t g = 0; g < c.o_groups; ++g) {
      RP_ASSIGN(PackedMatrix group,
                PackedMatrix::LoadRows(checkpoint_, p + "wo_a.weight", low, g * c.o_lora_rank,
                                       c.o_lora_rank, group_inputs));
      out.wo_a.push_back(std::move(group));
    }
    RP_ASSIGN(out.wo_b, Matrix(p + "wo_b.weight", c.hidden_size, low));
    if (plan.mode == LayerMode::kFull) {
      RP_ASSIGN(out.compressor, Compressor(p, plan.ratio));
    }
    if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
      IndexerWeights indexer;
      RP_ASSIGN(indexer.wq_b,
                Matrix(p + "indexer.wq_b.weight", c.index_heads * c.index_head_dim, c.q_lora_rank));
      RP_ASSIGN(indexer.head_weights,
                Matrix(p + "indexer.weights_proj.weight", c.index_heads, c.hidden_size));
      out.indexer = std::move(indexer);
    }
    return out;
  }

  absl::StatusOr<ExpertWeights> Expert(const std::string& prefix) {
    ExpertWeights out;
    RP_ASSIGN(out.w1, Matrix(prefix + "w1.weight", config_.expert_dim, config_.hidden_size));
    RP_ASSIGN(out.w3, Matrix(prefix + "w3.weight", config_.expert_dim, config_.hidden_size));
    RP_ASSIGN(out.w2, Matrix(prefix + "w2.weight", config_.hidden_size, config_.expert_dim));
    return out;
  }

  absl::StatusOr<MoeWeights> Moe(const std::string& prefix, uint32_t experts) {
    const std::string p = prefix + "ffn.";
    MoeWeights out;
    RP_ASSIGN(out.gate, Matrix(p + "gate.weight", experts, config_.hidden_size));
    RP_ASSIGN(out.bias, Float32(p + "gate.bias", experts));
    RP_ASSIGN(out.image_bias, Float32(p + "gate.bias_vl", experts));
    for (uint32_t e = 0; e < experts; ++e) {
      RP_ASSIGN(ExpertWeights expert, Expert(p + "experts." + std::to_string(e) + "."));
      out.experts.push_back(std::move(expert));
    }
    RP_ASSIGN(ExpertWeights shared, Expert(p + "shared_experts."));
    out.experts.push_back(std::move(shared));
    return out;
  }

  absl::StatusOr<EngramWeights> Engram(const std::string& prefix, uint32_t engram,
                                       const std::vector<uint32_t>& map) {
    const ModelConfig& c = config_;
    const std::string p = prefix + "engram.";
    const uint64_t rows = c.engram_rows[engram];
    RP_ASSIGN(EngramHash hash, EngramHash::For(c, engram, map));
    const uint32_t inputs = hash.rows_per_token() * c.engram_head_dim;
    EngramWeights out{.hash = std::move(hash), .embed = {}, .embed_scale = {}, .wkv = {}, .qk = {}};
    RP_ASSIGN(out.embed, checkpoint_.Find(p + "embed.weight", DType::kF8E4m3,
                                          {rows, uint64_t{c.engram_head_dim}}));
    RP_ASSIGN(out.embed_scale, checkpoint_.Find(p + "embed.scale", DType::kF8E8m0,
                                                {rows, uint64_t{c.engram_head_dim} / 32}));
    RP_ASSIGN(out.wkv, Matrix(p + "wkv.weight", (c.hc_mult + 1) * c.hidden_size, inputs));
    const std::vector<uint64_t> shape = {c.hc_mult, c.hidden_size};
    RP_ASSIGN(const Floats q, LoadFloats(checkpoint_, p + "q_weight", DType::kBf16, shape));
    RP_ASSIGN(const Floats k, LoadFloats(checkpoint_, p + "k_weight", DType::kBf16, shape));
    for (uint32_t copy = 0; copy < c.hc_mult; ++copy) {
      Floats product(c.hidden_size);
      for (uint32_t i = 0; i < c.hidden_size; ++i) {
        product[i] = q[copy * c.hidden_size + i] * k[copy * c.hidden_size + i];
      }
      out.qk.push_back(std::move(product));
    }
    return out;
  }

  absl::StatusOr<LayerWeights> Layer(uint32_t layer, const std::vector<uint32_t>& engram_map) {
    const std::string p = geometry_.TensorPrefix(layer);
    const LayerPlan& plan = geometry_.layers[layer];
    LayerWeights out;
    RP_ASSIGN(out.hc_attn, Mhc(p + "hc_attn"));
    RP_ASSIGN(out.hc_ffn, Mhc(p + "hc_ffn"));
    RP_ASSIGN(out.attn_norm, Norm(p + "attn_norm.weight", config_.hidden_size));
    RP_ASSIGN(out.ffn_norm, Norm(p + "ffn_norm.weight", config_.hidden_size));
    RP_ASSIGN(out.attn, Attention(p, plan));
    RP_ASSIGN(out.moe, Moe(p, geometry_.is_draft(layer) ? config_.draft_routed_experts
                                                        : config_.routed_experts));
    if (plan.engram != kNoLayer) {
      RP_ASSIGN(out.engram, Engram(p, plan.engram, engram_map));
    }
    return out;
  }

  absl::StatusOr<DraftWeights> Draft() {
    const ModelConfig& c = config_;
    const std::string first = geometry_.TensorPrefix(c.layer_count);
    const std::string last = geometry_.TensorPrefix(geometry_.all_layers() - 1);
    const auto taps = static_cast<uint32_t>(c.draft_target_layers.size());
    DraftWeights out;
    RP_ASSIGN(out.main_proj,
              Matrix(first + "main_proj.weight", c.hidden_size, taps * c.hidden_size));
    RP_ASSIGN(out.main_norm, Norm(first + "main_norm.weight", c.hidden_size));
    RP_ASSIGN(out.norm, Norm(last + "norm.weight", c.hidden_size));
    RP_ASSIGN(out.markov_head,
              Matrix(last + "markov_head.head.weight", c.vocab_size, c.draft_markov_rank));
    RP_ASSIGN(out.markov_embed, LoadFloats(checkpoint_, last + "markov_head.embed.weight",
                                           DType::kBf16, {c.vocab_size, c.draft_markov_rank}));
    RP_ASSIGN(out.confidence,
              Matrix(last + "confidence_head.proj.weight", 1, c.hidden_size + c.draft_markov_rank));
    return out;
  }

 private:
  const ModelGeometry& geometry_;
  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
};

}  // namespace

absl::StatusOr<ModelWeights> ModelWeights::Load(const ModelGeometry& geometry,
                                                const Checkpoint& checkpoint,
                                                const std::vector<uint32_t>& engram_map) {
  const ModelConfig& c = geometry.config;
  Loader loader(geometry, checkpoint);
  ModelWeights out;
  RP_ASSIGN(out.embed,
            LoadFloats(checkpoint, "embed.weight", DType::kBf16, {c.vocab_size, c.hidden_size}));
  RP_ASSIGN(out.head, loader.Matrix("head.weight", c.vocab_size, c.hidden_size));
  RP_ASSIGN(out.norm, loader.Norm("norm.weight", c.hidden_size));
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    RP_ASSIGN(LayerWeights weights, loader.Layer(layer, engram_map));
    out.layers.push_back(std::move(weights));
  }
  if (c.draft_stages > 0) {
    RP_ASSIGN(out.draft, loader.Draft());
  }
  return out;
}

}  // namespace reprise::engine::cpu
