#include "gpu/model/model_geometry.h"

#include <algorithm>

#include "gpu/model/parameter_count.h"
#include "protocol/base/sha256.h"

namespace reprise::engine {
namespace {

// Values that share a scale: E4M3 scales of main KV, UE8M0 scales of everything else.
constexpr uint32_t kMainGroup = 16;
constexpr uint32_t kScaleGroup = 32;

std::vector<LayerPlan> PlanLayers(const ModelConfig& config) {
  std::vector<LayerPlan> layers(config.layer_count + config.draft_stages);
  uint32_t kv_source = kNoLayer, index_source = kNoLayer;  // The last so far.
  for (uint32_t layer = 0; layer < config.layer_count; ++layer) {
    LayerPlan& plan = layers[layer];
    const bool writes = Contains(config.kv_source_layers, layer);
    const bool selects = Contains(config.index_source_layers, layer);
    if (writes) kv_source = layer;
    if (selects) index_source = layer;
    plan.ratio = config.compress_ratios[layer];
    if (plan.ratio > 0) {
      plan.mode = writes ? LayerMode::kFull : selects ? LayerMode::kReindex : LayerMode::kReuse;
      plan.kv_source = kv_source;
      plan.index_source = index_source;
      plan.writes_pool = layer == config.candidate_source_layer;
      plan.reads_pool =
          plan.mode == LayerMode::kReindex && kv_source == config.candidate_source_layer;
    }
    plan.draft_tap = config.draft_stages > 0 && Contains(config.draft_target_layers, layer);
  }
  for (uint32_t i = 0; i < config.engram_layers.size(); ++i) {
    layers[config.engram_layers[i]].engram = i;
  }
  return layers;
}

// A preset's name, so that a known model and its config.json make one namespace; any other
// configuration is named by its hash.
absl::StatusOr<std::string> ModelName(const ModelConfig& config) {
  for (const char* name : {"v4.1-flash", "nano"}) {
    RP_ASSIGN(const ModelConfig preset, ModelConfig::Preset(name));
    if (preset == config) return std::string(name);
  }
  return ToHex(Sha256({AsBytes(config.ToJson())}));
}

absl::StatusOr<KvGeometry> KvOf(const ModelConfig& config) {
  KvGeometry kv;
  RP_ASSIGN(kv.model, ModelName(config));
  for (const uint32_t layer : config.kv_source_layers) {
    kv.sources.push_back({layer, config.compress_ratios[layer]});
  }
  kv.main = {.codes = "e2m1", .scales = "e4m3", .values = config.head_dim, .group = kMainGroup};
  kv.indexer = {
      .codes = "e2m1", .scales = "ue8m0", .values = config.index_head_dim, .group = kScaleGroup};
  return kv;
}

}  // namespace

std::string_view LayerModeName(LayerMode mode) {
  switch (mode) {
    case LayerMode::kWindowOnly:
      return "swa";
    case LayerMode::kFull:
      return "full";
    case LayerMode::kReindex:
      return "reindex";
    case LayerMode::kReuse:
      return "reuse";
  }
  return "unknown";
}

std::string ModelGeometry::TensorPrefix(uint32_t layer) const {
  return is_draft(layer) ? "mtp." + std::to_string(layer - config.layer_count) + "."
                         : "layers." + std::to_string(layer) + ".";
}

absl::StatusOr<ModelGeometry> ModelGeometry::For(const ModelConfig& config) {
  RP_TRY(Validate(config));
  ModelGeometry g;
  g.config = config;
  g.layers = PlanLayers(config);
  g.encoder_layers = config.candidate_source_layer;
  RP_ASSIGN(g.kv, KvOf(config));
  RP_ASSIGN(g.record, RecordLayout::For(g.kv));
  g.window_row = {.code_bytes = config.head_dim, .scale_bytes = config.head_dim / kScaleGroup};
  g.window_bytes_layer = uint64_t{config.window} * g.window_row.bytes();
  g.window_bytes_encoder = g.encoder_layers * g.window_bytes_layer;
  g.window_bytes_all = config.layer_count * g.window_bytes_layer;
  g.window_bytes_draft = config.draft_stages * g.window_bytes_layer;
  for (const KvSource& source : g.kv.sources) {
    if (source.ratio == 2) g.tail_bytes += 2 * config.head_dim * sizeof(float);
  }
  g.parameters = CountParameters(g);
  return g;
}

}  // namespace reprise::engine
