#include <nlohmann/json.hpp>

#include "gpu/model/cache_formats.h"
#include "gpu/model/model_description.h"
#include "gpu/model/parameter_count.h"

namespace reprise::engine {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson LayerOrNull(uint32_t layer) {
  return layer == kNoLayer ? OrderedJson(nullptr) : OrderedJson(layer);
}

OrderedJson LayerJson(const ModelGeometry& g, uint32_t layer) {
  const LayerPlan& plan = g.layers[layer];
  const LayerParameters p = CountLayer(g, layer);
  return {{"layer", layer},
          {"tensors", g.TensorPrefix(layer)},
          {"mode", LayerModeName(plan.mode)},
          {"ratio", plan.ratio},
          {"kv_source", LayerOrNull(plan.kv_source)},
          {"index_source", LayerOrNull(plan.index_source)},
          {"writes_pool", plan.writes_pool},
          {"reads_pool", plan.reads_pool},
          {"engram", LayerOrNull(plan.engram)},
          {"draft_tap", plan.draft_tap},
          {"parameters", p.total()},
          {"active_parameters", p.active()}};
}

OrderedJson RowJson(const RowFormat& row) {
  return {{"codes", row.codes},
          {"scales", row.scales},
          {"values", row.values},
          {"group", row.group},
          {"code_bytes", row.code_bytes()},
          {"scale_bytes", row.scale_bytes()},
          {"bytes", row.row_bytes()}};
}

OrderedJson GlobalKvJson(const ModelGeometry& g) {
  OrderedJson sources = OrderedJson::array();
  for (const KvSource& source : g.kv.sources) {
    sources.push_back({{"layer", source.layer},
                       {"ratio", source.ratio},
                       {"entry_bytes", g.kv.main.row_bytes() + g.kv.indexer.row_bytes()},
                       {"bytes_per_token", SourceBytesPerToken(g.kv, source)}});
  }
  OrderedJson formats = OrderedJson::object();
  for (const CacheFormat& format : CacheFormats(g)) formats[format.key] = format.bytes_per_token;
  return {{"bytes_per_token", g.bytes_per_token()},
          {"main", RowJson(g.kv.main)},
          {"indexer", RowJson(g.kv.indexer)},
          {"sources", std::move(sources)},
          {"bytes_per_token_as", std::move(formats)}};
}

OrderedJson WindowJson(const ModelGeometry& g) {
  return {{"tokens", g.config.window},
          {"row_bytes", g.window_row.bytes()},
          {"layer_bytes", g.window_bytes_layer},
          {"encoder_bytes", g.window_bytes_encoder},
          {"all_layers_bytes", g.window_bytes_all},
          {"draft_bytes", g.window_bytes_draft},
          {"tail_bytes", g.tail_bytes}};
}

OrderedJson ParametersJson(const ModelGeometry& g) {
  const ParameterCount& p = g.parameters;
  return {{"total", p.total},
          {"engram_tables", p.engram_tables},
          {"routed_experts", p.routed_experts},
          {"embedding_and_head", 2ull * g.config.vocab_size * g.config.hidden_size},
          {"draft", p.draft},
          {"vision", p.vision},
          {"active_encoder", p.active_encoder},
          {"active_all", p.active_all}};
}

}  // namespace

std::string DescribeModelJson(const ModelGeometry& geometry) {
  OrderedJson layers = OrderedJson::array();
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    layers.push_back(LayerJson(geometry, layer));
  }
  const OrderedJson json = {{"model", geometry.kv.model},
                            {"layers", geometry.config.layer_count},
                            {"encoder_layers", geometry.encoder_layers},
                            {"draft_stages", geometry.config.draft_stages},
                            {"hidden_size", geometry.config.hidden_size},
                            {"global_kv", GlobalKvJson(geometry)},
                            {"block",
                             {{"tokens", kBlockTokens},
                              {"payload_bytes", geometry.record.payload_bytes},
                              {"record_bytes", geometry.record.record_bytes}}},
                            {"window", WindowJson(geometry)},
                            {"parameters", ParametersJson(geometry)},
                            {"layer_map", std::move(layers)}};
  return json.dump(2) + "\n";
}

}  // namespace reprise::engine
