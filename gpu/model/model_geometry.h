#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/model/model_config.h"
#include "protocol/record/record_layout.h"

namespace reprise::engine {

// How a layer attends beyond its window (model-facts section 1.3).
enum class LayerMode : uint8_t {
  kWindowOnly,  // S: its window alone.
  kFull,        // F: writes main KV and indexer K, scores them, selects.
  kReindex,     // X: scores a source's indexer K with its own queries, inside the candidate pool.
  kReuse,       // U: takes the last selection.
};
std::string_view LayerModeName(LayerMode mode);  // "swa", "full", "reindex", "reuse".

inline constexpr uint32_t kNoLayer = UINT32_MAX;

struct LayerPlan {
  LayerMode mode = LayerMode::kWindowOnly;
  uint32_t ratio = 0;                // Tokens per global entry; 0: no global entries.
  uint32_t kv_source = kNoLayer;     // Layer whose main KV and indexer K are read.
  uint32_t index_source = kNoLayer;  // Layer whose selection is used.
  bool writes_pool = false;          // Its scores make the candidate pool.
  bool reads_pool = false;           // It selects inside the pool.
  uint32_t engram = kNoLayer;        // Index into engram_layers: runs before this layer.
  bool draft_tap = false;            // DSpark takes the mean of the stream that enters it.

  friend bool operator==(const LayerPlan&, const LayerPlan&) = default;
};

// A window row, as a layer keeps it for one token: head_dim E4M3 codes, then a UE8M0 scale per 32.
struct WindowRow {
  uint32_t code_bytes = 0;
  uint32_t scale_bytes = 0;
  uint32_t bytes() const { return code_bytes + scale_bytes; }
};

// Parameters that one token touches, in the half of the model that prefill runs for every token
// and in all of it. Embedding and head are counted apart.
struct ParameterCount {
  uint64_t total = 0;          // All parameters of the backbone, with Engram tables and embeddings.
  uint64_t engram_tables = 0;  // Of these.
  uint64_t routed_experts = 0;  // Of these.
  uint64_t draft = 0;           // Of the DSpark stages; not in total.
  uint64_t vision = 0;          // Of vision tower, aligner and image vectors; not in total.
  uint64_t active_encoder = 0;  // Per token, encoder layers and the decoder's KV projection.
  uint64_t active_all = 0;      // Per token, all backbone layers.
};

// Everything that follows from a configuration. Immutable; cheap to read, not to copy.
struct ModelGeometry {
  ModelConfig config;
  std::vector<LayerPlan> layers;  // Backbone layers, then the draft stages.
  uint32_t encoder_layers = 0;    // Layers [0, encoder_layers) are the encoder.

  KvGeometry kv;        // Sources and row formats of the global KV.
  RecordLayout record;  // Of a block of 128 tokens.
  WindowRow window_row;

  uint64_t window_bytes_layer = 0;    // window x row.
  uint64_t window_bytes_encoder = 0;  // Encoder layers.
  uint64_t window_bytes_all = 0;      // Backbone layers, without the draft stages.
  uint64_t window_bytes_draft = 0;    // Draft stages.
  uint64_t tail_bytes = 0;            // fp32 (a, g) of every ratio-2 source, at odd lengths.

  ParameterCount parameters;

  uint32_t bytes_per_token() const { return record.bytes_per_token(); }
  uint32_t all_layers() const { return config.layer_count + config.draft_stages; }
  bool is_draft(uint32_t layer) const { return layer >= config.layer_count; }
  // "layers.7." or "mtp.0.".
  std::string TensorPrefix(uint32_t layer) const;

  static absl::StatusOr<ModelGeometry> For(const ModelConfig& config);
};

}  // namespace reprise::engine
