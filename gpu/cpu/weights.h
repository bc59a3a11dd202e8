#pragma once

#include <optional>
#include <vector>

#include "gpu/cpu/packed_matrix.h"
#include "gpu/model/model_geometry.h"
#include "gpu/tokenizer/engram_hash.h"

namespace reprise::engine::cpu {

using Floats = std::vector<float>;

// One sub-layer's hyper-connections.
struct MhcWeights {
  PackedMatrix fn;  // [24, 4 hidden], float.
  Floats base;      // 24
  Floats scale;     // 3
};

struct CompressorWeights {
  PackedMatrix wkv;
  PackedMatrix wgate;  // Ratio 2 only.
  Floats norm;
  PackedMatrix wk;  // Indexer K, from the latent.
  Floats k_norm;
};

struct IndexerWeights {
  PackedMatrix wq_b;
  PackedMatrix head_weights;  // weights_proj
};

struct AttentionWeights {
  PackedMatrix wq_a, wq_b, wkv, wo_b;
  std::vector<PackedMatrix> wo_a;  // One per output group.
  Floats q_norm, kv_norm, sinks;
  std::optional<CompressorWeights> compressor;  // Full layers.
  std::optional<IndexerWeights> indexer;        // Full and Reindex layers.
};

struct ExpertWeights {
  PackedMatrix w1, w3, w2;
};

struct MoeWeights {
  PackedMatrix gate;
  Floats bias, image_bias;
  std::vector<ExpertWeights> experts;  // The routed ones, then the shared one.
};

struct EngramWeights {
  EngramHash hash;
  Tensor embed;        // [rows, head_dim] E4M3, in the mapped file.
  Tensor embed_scale;  // [rows, head_dim / 32]
  PackedMatrix wkv;
  std::vector<Floats> qk;  // Per copy: q_weight x k_weight.
};

struct LayerWeights {
  MhcWeights hc_attn, hc_ffn;
  Floats attn_norm, ffn_norm;
  AttentionWeights attn;
  MoeWeights moe;
  std::optional<EngramWeights> engram;
};

struct DraftWeights {
  PackedMatrix main_proj;
  Floats main_norm, norm;
  PackedMatrix markov_head;
  Floats markov_embed;  // [vocab, rank]
  PackedMatrix confidence;
};

struct ModelWeights {
  Floats embed;  // [vocab, hidden]
  PackedMatrix head;
  Floats norm;
  std::vector<LayerWeights> layers;  // Backbone, then draft stages.
  std::optional<DraftWeights> draft;

  static absl::StatusOr<ModelWeights> Load(const ModelGeometry& geometry,
                                           const Checkpoint& checkpoint,
                                           const std::vector<uint32_t>& engram_map);
};

}  // namespace reprise::engine::cpu
