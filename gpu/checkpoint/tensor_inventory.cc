#include "gpu/checkpoint/tensor_inventory.h"

#include <utility>

#include "gpu/model/model_limits.h"

namespace reprise::engine {
namespace {

// Names tensors and hands them on, one function for each way to store a matrix.
class Inventory {
 public:
  Inventory(const ModelGeometry& geometry, const std::function<void(const TensorSpec&)>& visit)
      : g_(geometry), c_(geometry.config), visit_(visit) {}

  void All() {
    Bf16("embed.weight", {c_.vocab_size, c_.hidden_size});
    Bf16("head.weight", {c_.vocab_size, c_.hidden_size});
    Bf16("norm.weight", {c_.hidden_size});
    for (uint32_t layer = 0; layer < g_.all_layers(); ++layer) {
      Layer(g_.TensorPrefix(layer), g_.is_draft(layer));
      LayerExtras(g_.TensorPrefix(layer), g_.layers[layer]);
    }
    if (c_.draft_stages > 0) DraftEnds();
    if (c_.vision) Vision(*c_.vision);
  }

 private:
  void Visit(std::string name, DType dtype, std::vector<uint64_t> shape) {
    visit_({std::move(name), dtype, std::move(shape)});
  }
  void Bf16(std::string name, std::vector<uint64_t> shape) {
    Visit(std::move(name), DType::kBf16, std::move(shape));
  }
  void F32(std::string name, std::vector<uint64_t> shape) {
    Visit(std::move(name), DType::kF32, std::move(shape));
  }
  // E4M3 with a UE8M0 scale per block of 32 x 32.
  void Fp8(const std::string& name, uint64_t out, uint64_t in) {
    Visit(name + ".weight", DType::kF8E4m3, {out, in});
    Visit(name + ".scale", DType::kF8E8m0, {DivideUp(out, kQuantBlock), DivideUp(in, kQuantBlock)});
  }
  // Two E2M1 a byte with a UE8M0 scale per row and 32 of its inputs.
  void Fp4(const std::string& name, uint64_t out, uint64_t in) {
    Visit(name + ".weight", DType::kI8, {out, in / 2});
    Visit(name + ".scale", DType::kF8E8m0, {out, in / kQuantBlock});
  }
  // BF16 with a bias.
  void Biased(const std::string& name, uint64_t out, uint64_t in) {
    Bf16(name + ".weight", {out, in});
    Bf16(name + ".bias", {out});
  }

  void Layer(const std::string& prefix, bool draft) {
    Bf16(prefix + "attn_norm.weight", {c_.hidden_size});
    Bf16(prefix + "ffn_norm.weight", {c_.hidden_size});
    HyperConnection(prefix + "hc_attn_");
    HyperConnection(prefix + "hc_ffn_");
    Attention(prefix + "attn.");
    Experts(prefix + "ffn.", draft ? c_.draft_routed_experts : c_.routed_experts);
  }

  void HyperConnection(const std::string& prefix) {
    const uint64_t mixes = uint64_t{c_.hc_mult} * (c_.hc_mult + 2);
    F32(prefix + "fn", {mixes, uint64_t{c_.hc_mult} * c_.hidden_size});
    F32(prefix + "base", {mixes});
    F32(prefix + "scale", {3});
  }

  void Attention(const std::string& prefix) {
    const uint64_t heads_dim = uint64_t{c_.heads} * c_.head_dim;
    const uint64_t groups_rank = uint64_t{c_.o_groups} * c_.o_lora_rank;
    Fp8(prefix + "wq_a", c_.q_lora_rank, c_.hidden_size);
    Bf16(prefix + "q_norm.weight", {c_.q_lora_rank});
    Fp8(prefix + "wq_b", heads_dim, c_.q_lora_rank);
    Fp8(prefix + "wkv", c_.head_dim, c_.hidden_size);
    Bf16(prefix + "kv_norm.weight", {c_.head_dim});
    Fp8(prefix + "wo_a", groups_rank, heads_dim / c_.o_groups);
    Fp8(prefix + "wo_b", c_.hidden_size, groups_rank);
    F32(prefix + "attn_sink", {c_.heads});
  }

  void Experts(const std::string& prefix, uint64_t experts) {
    Bf16(prefix + "gate.weight", {experts, c_.hidden_size});
    F32(prefix + "gate.bias", {experts});
    F32(prefix + "gate.bias_vl", {experts});
    for (uint64_t expert = 0; expert < experts; ++expert) {
      const std::string name = prefix + "experts." + std::to_string(expert) + ".";
      Fp4(name + "w1", c_.expert_dim, c_.hidden_size);
      Fp4(name + "w2", c_.hidden_size, c_.expert_dim);
      Fp4(name + "w3", c_.expert_dim, c_.hidden_size);
    }
    Fp8(prefix + "shared_experts.w1", c_.expert_dim, c_.hidden_size);
    Fp8(prefix + "shared_experts.w2", c_.hidden_size, c_.expert_dim);
    Fp8(prefix + "shared_experts.w3", c_.expert_dim, c_.hidden_size);
  }

  void LayerExtras(const std::string& prefix, const LayerPlan& plan) {
    if (plan.mode == LayerMode::kFull) {
      Bf16(prefix + "attn.compressor.wkv.weight", {c_.head_dim, c_.hidden_size});
      if (plan.ratio == 2) {
        Bf16(prefix + "attn.compressor.wgate.weight", {c_.head_dim, c_.hidden_size});
      }
      Bf16(prefix + "attn.compressor.norm.weight", {c_.head_dim});
      Bf16(prefix + "attn.indexer.wk.weight", {c_.index_head_dim, c_.head_dim});
      Bf16(prefix + "attn.indexer.k_norm.weight", {c_.index_head_dim});
    }
    if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
      Fp8(prefix + "attn.indexer.wq_b", uint64_t{c_.index_heads} * c_.index_head_dim,
          c_.q_lora_rank);
      Bf16(prefix + "attn.indexer.weights_proj.weight", {c_.index_heads, c_.hidden_size});
    }
    if (plan.engram != kNoLayer) Engram(prefix + "engram.", c_.engram_rows[plan.engram]);
  }

  void Engram(const std::string& prefix, uint64_t rows) {
    const uint64_t values =
        uint64_t{c_.engram_max_ngram - 1} * c_.engram_heads * c_.engram_head_dim;
    Visit(prefix + "embed.weight", DType::kF8E4m3, {rows, c_.engram_head_dim});
    Visit(prefix + "embed.scale", DType::kF8E8m0, {rows, c_.engram_head_dim / kQuantBlock});
    Fp8(prefix + "wkv", (uint64_t{c_.hc_mult} + 1) * c_.hidden_size, values);
    Bf16(prefix + "q_weight", {c_.hc_mult, c_.hidden_size});
    Bf16(prefix + "k_weight", {c_.hc_mult, c_.hidden_size});
  }

  // What the first stage has before its layer and the last stage after it.
  void DraftEnds() {
    const std::string first = g_.TensorPrefix(c_.layer_count);
    const std::string last = g_.TensorPrefix(g_.all_layers() - 1);
    Fp8(first + "main_proj", c_.hidden_size, c_.draft_target_layers.size() * c_.hidden_size);
    Bf16(first + "main_norm.weight", {c_.hidden_size});
    Bf16(last + "norm.weight", {c_.hidden_size});
    Bf16(last + "markov_head.embed.weight", {c_.vocab_size, c_.draft_markov_rank});
    Bf16(last + "markov_head.head.weight", {c_.vocab_size, c_.draft_markov_rank});
    Bf16(last + "confidence_head.proj.weight",
         {1, uint64_t{c_.hidden_size} + c_.draft_markov_rank});
  }

  void Vision(const VisionConfig& v) {
    const uint64_t width = v.hidden_size;
    for (const char* name : {"image_start", "image_end", "image_newline"}) {
      Bf16(name, {c_.hidden_size});
    }
    Biased("vision.patch_embed.proj", width, 3ull * v.patch_size * v.patch_size);
    for (uint32_t block = 0; block < v.layers; ++block) {
      const std::string prefix = "vision.blocks." + std::to_string(block) + ".";
      Bf16(prefix + "norm1.weight", {width});
      Bf16(prefix + "norm2.weight", {width});
      Biased(prefix + "attn.wqkv", 3 * width, width);
      Biased(prefix + "attn.wo", width, width);
      Bf16(prefix + "mlp.w1.weight", {2ull * v.intermediate_size, width});
      Bf16(prefix + "mlp.w2.weight", {width, v.intermediate_size});
    }
    Bf16("vision.norm.weight", {width});
    Biased("aligner.w1", c_.hidden_size, uint64_t{v.downsample_ratio} * v.downsample_ratio * width);
    Biased("aligner.w2", c_.hidden_size, c_.hidden_size);
  }

  const ModelGeometry& g_;
  const ModelConfig& c_;
  const std::function<void(const TensorSpec&)>& visit_;
};

}  // namespace

void ForEachTensor(const ModelGeometry& geometry,
                   const std::function<void(const TensorSpec&)>& visit) {
  Inventory(geometry, visit).All();
}

}  // namespace reprise::engine
