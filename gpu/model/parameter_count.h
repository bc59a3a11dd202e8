#pragma once

#include <cstdint>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// The parameters of one layer, from the shapes of its tensors (model-facts section 13). Scales of
// quantised weights are not parameters; both codes of a packed byte are.
struct LayerParameters {
  uint64_t attention = 0;         // wq_a, q_norm, wq_b, wkv, kv_norm, wo_a, wo_b, attn_sink.
  uint64_t compressor = 0;        // wkv, norm, and wgate at ratio 2. Of main KV sources.
  uint64_t indexer_key = 0;       // wk, k_norm. Of main KV sources.
  uint64_t indexer_query = 0;     // wq_b, weights_proj. Of layers that select.
  uint64_t engram = 0;            // wkv, q_weight, k_weight.
  uint64_t engram_table = 0;      // Rows x head_dim. A token reads a few rows: never active.
  uint64_t hyper_connection = 0;  // fn, base and scale before attention and before the experts.
  uint64_t norms = 0;             // attn_norm, ffn_norm.
  uint64_t router = 0;            // gate, bias, bias_vl.
  uint64_t shared_expert = 0;     // w1, w2, w3.
  uint64_t expert = 0;            // The same of one routed expert.
  uint32_t experts = 0;           // Routed.
  uint32_t experts_per_token = 0;

  uint64_t routed() const { return experts * expert; }
  uint64_t routed_active() const { return experts_per_token * expert; }
  // All that every token uses: everything but routed experts and tables.
  uint64_t dense() const {
    return attention + compressor + indexer_key + indexer_query + engram + hyper_connection +
           norms + router + shared_expert;
  }
  uint64_t active() const { return dense() + routed_active(); }
  uint64_t total() const { return dense() + routed() + engram_table; }

  LayerParameters& operator+=(const LayerParameters& other);
};

// Of backbone layers and draft stages; heads and projections around the stages are not in it.
LayerParameters CountLayer(const ModelGeometry& geometry, uint32_t layer);

// What the first decoder layer computes of every token of a prompt: its norm, compressor and
// indexer key, which make the decoder's global KV.
uint64_t DecoderKvParameters(const ModelGeometry& geometry);

// Uses the configuration and the plan of layers.
ParameterCount CountParameters(const ModelGeometry& geometry);

}  // namespace reprise::engine
