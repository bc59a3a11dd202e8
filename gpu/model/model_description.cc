#include "gpu/model/model_description.h"

#include <cstdio>

#include "gpu/model/cache_formats.h"
#include "gpu/model/parameter_count.h"
#include "gpu/model/text_table.h"
#include "protocol/base/units.h"

namespace reprise::engine {
namespace {

constexpr uint64_t kMillionTokens = 1 << 20;  // The longest prompt of V4.1-Flash.

std::string Decimal(double value, const char* format = "%.2f") {
  char text[32];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Upper(std::string text) {
  for (char& c : text) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  return text;
}

// "0-5", or "3" alone.
std::string Span(uint32_t first, uint32_t last) {
  return first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last);
}

std::string Plural(uint64_t count, const std::string& word) {
  return Grouped(count) + " " + word + (count == 1 ? "" : "s");
}

std::string Headline(const ModelGeometry& g) {
  const ModelConfig& c = g.config;
  const uint32_t last = c.layer_count - 1;
  // A model without a name of its own is named by a hash.
  const std::string name =
      g.kv.model.size() == 64 ? "model " + g.kv.model.substr(0, 12) : g.kv.model;
  return name + "\n  " + Plural(c.layer_count, "layer") + " (encoder " +
         Span(0, g.encoder_layers - 1) + ", decoder " + Span(g.encoder_layers, last) + "), " +
         Plural(c.draft_stages, "draft stage") + (c.vision ? ", vision" : "") + "\n  width " +
         Grouped(c.hidden_size) + ", " + Plural(c.heads, "head") + " of " + Grouped(c.head_dim) +
         ", " + Grouped(c.experts_per_token) + " of " + Plural(c.routed_experts, "expert") + "\n";
}

std::string LayerRemarks(const LayerPlan& plan) {
  std::string text;
  const auto add = [&text](const char* remark) {
    text += (text.empty() ? "" : ", ") + std::string(remark);
  };
  if (plan.engram != kNoLayer) add("Engram before it");
  if (plan.writes_pool) add("makes the candidate pool");
  if (plan.reads_pool) add("selects inside the pool");
  if (plan.draft_tap) add("read by the draft stages");
  return text;
}

std::string LayerOrNone(uint32_t layer) { return layer == kNoLayer ? "-" : std::to_string(layer); }

// Layers that follow one another and do the same are one line.
std::string LayersSection(const ModelGeometry& g) {
  TextTable table("llrrrl");
  table.Row({"layer", "mode", "ratio", "reads KV of", "selection of", ""});
  uint32_t first = 0;
  for (uint32_t layer = 0; layer < g.config.layer_count; ++layer) {
    const LayerPlan& plan = g.layers[layer];
    if (layer + 1 < g.config.layer_count && g.layers[layer + 1] == plan) continue;
    table.Row({Span(first, layer), std::string(LayerModeName(plan.mode)),
               LayerOrNone(plan.ratio == 0 ? kNoLayer : plan.ratio), LayerOrNone(plan.kv_source),
               LayerOrNone(plan.index_source), LayerRemarks(plan)});
    first = layer + 1;
  }
  if (g.config.draft_stages > 0) {
    table.Row({"mtp." + Span(0, g.config.draft_stages - 1), "swa", "-", "-", "-", "drafting only"});
  }
  return "\nLayers\n" + table.Text();
}

// "512 x E2M1, an E4M3 scale per 16".
std::string RowText(const RowFormat& row) {
  return Grouped(row.values) + " x " + Upper(row.codes) + " = " + Grouped(row.code_bytes()) +
         " B, " + Grouped(row.scale_bytes()) + " x " + Upper(row.scales) + " (one per " +
         std::to_string(row.group) + ") = " + Grouped(row.scale_bytes()) + " B";
}

std::string GlobalKvSection(const ModelGeometry& g) {
  const uint32_t main = g.kv.main.row_bytes();
  const uint32_t indexer = g.kv.indexer.row_bytes();
  TextTable rows("llr");
  rows.Row({"main KV", RowText(g.kv.main), Grouped(main) + " B"});
  rows.Row({"indexer K", RowText(g.kv.indexer), Grouped(indexer) + " B"});
  TextTable table("lrrrrr");
  table.Row({"source", "main KV", "indexer K", "entry", "tokens an entry", "bytes a token"});
  for (const KvSource& source : g.kv.sources) {
    table.Row({"layer " + std::to_string(source.layer), Grouped(main), Grouped(indexer),
               Grouped(main + indexer), std::to_string(source.ratio),
               Decimal(SourceBytesPerToken(g.kv, source), "%g")});
  }
  table.SumLine(5);
  table.Row({"", "", "", "", "", Grouped(g.bytes_per_token())});
  return "\nGlobal KV of a token: " + Grouped(g.bytes_per_token()) + " bytes\n" + rows.Text() +
         "\n" + table.Text();
}

std::string FormatsSection(const ModelGeometry& g) {
  TextTable table("lrrr");
  table.Row({"", "bytes a token", "of ours", "1,048,576 tokens"});
  for (const CacheFormat& format : CacheFormats(g)) {
    const double ratio = static_cast<double>(format.bytes_per_token) / g.bytes_per_token();
    table.Row({format.name, Grouped(format.bytes_per_token), Decimal(ratio) + "x",
               FormatBytes(format.bytes_per_token * kMillionTokens)});
  }
  return "\nThe same in other formats\n" + table.Text();
}

std::string BlockSection(const ModelGeometry& g) {
  TextTable table("lrl");
  table.Row(
      {"payload", Grouped(g.record.payload_bytes) + " B", "128 x " + Grouped(g.bytes_per_token())});
  table.Row({"record", Grouped(g.record.record_bytes) + " B",
             Plural(g.record.record_bytes / kPageBytes, "page") +
                 " of 4 KiB, with header and token ids"});
  return "\nBlock of 128 tokens\n" + table.Text();
}

// What `bytes` of windows compare with.
std::string AsGlobalKv(const ModelGeometry& g, uint64_t bytes) {
  const uint32_t token = g.bytes_per_token();
  return ", as much as " + Grouped((bytes + token / 2) / token) + " tokens of global KV";
}

std::string WindowSection(const ModelGeometry& g) {
  const ModelConfig& c = g.config;
  const std::string layer = " x " + Grouped(g.window_bytes_layer);
  uint64_t tails = 0;
  for (const KvSource& source : g.kv.sources) tails += source.ratio == 2 ? 1 : 0;
  TextTable table("lrl");
  table.Row({"row", Grouped(g.window_row.bytes()) + " B",
             Grouped(g.window_row.code_bytes) + " x E4M3 and " + Grouped(g.window_row.scale_bytes) +
                 " x UE8M0"});
  table.Row({"layer", Grouped(g.window_bytes_layer) + " B",
             Grouped(c.window) + " x " + Grouped(g.window_row.bytes())});
  table.Row({"encoder", Grouped(g.window_bytes_encoder) + " B",
             Grouped(g.encoder_layers) + layer + AsGlobalKv(g, g.window_bytes_encoder)});
  table.Row({"all layers", Grouped(g.window_bytes_all) + " B",
             Grouped(c.layer_count) + layer + AsGlobalKv(g, g.window_bytes_all)});
  table.Row(
      {"draft stages", Grouped(g.window_bytes_draft) + " B", Grouped(c.draft_stages) + layer});
  table.Row({"tail", Grouped(g.tail_bytes) + " B",
             Plural(tails, "ratio-2 source") + " x 2 x " + Grouped(c.head_dim) +
                 " x 4; at odd lengths only"});
  return "\nWindow of " + Grouped(c.window) + " tokens, of a session\n" + table.Text();
}

LayerParameters Sum(const ModelGeometry& g, uint32_t begin, uint32_t end) {
  LayerParameters sum;
  for (uint32_t layer = begin; layer < end; ++layer) sum += CountLayer(g, layer);
  return sum;
}

std::string UsedSection(const ModelGeometry& g) {
  const LayerParameters encoder = Sum(g, 0, g.encoder_layers);
  const LayerParameters all = Sum(g, 0, g.config.layer_count);
  TextTable table("lrr");
  const auto row = [&table](const std::string& name, uint64_t in_encoder, uint64_t in_all) {
    table.Row({name, Rounded(in_encoder), Rounded(in_all)});
  };
  table.Row({"", "encoder", "all layers"});
  row("attention", encoder.attention, all.attention);
  row("compressors", encoder.compressor, all.compressor);
  row("indexers", encoder.indexer_key + encoder.indexer_query, all.indexer_key + all.indexer_query);
  row("Engram projections", encoder.engram, all.engram);
  row("hyper-connections", encoder.hyper_connection, all.hyper_connection);
  row("norms", encoder.norms, all.norms);
  row("routers", encoder.router, all.router);
  row("shared experts", encoder.shared_expert, all.shared_expert);
  row(Grouped(g.config.experts_per_token) + " routed experts of each layer",
      encoder.routed_active(), all.routed_active());
  table.Row({"the decoder's KV projection", Rounded(DecoderKvParameters(g)), "in it"});
  table.SumLine(1);
  row("", g.parameters.active_encoder, g.parameters.active_all);
  return "\nParameters that a token uses, without embedding and head\n" + table.Text();
}

std::string StoredSection(const ModelGeometry& g) {
  const ParameterCount& p = g.parameters;
  const ModelConfig& c = g.config;
  const uint64_t ends = 2ull * c.vocab_size * c.hidden_size;
  TextTable table("lrr");
  const auto row = [&table](const char* name, uint64_t count) {
    table.Row({name, Rounded(count), Grouped(count)});
  };
  row("routed experts", p.routed_experts);
  row("Engram tables", p.engram_tables);
  row("embedding and head", ends);
  row("all else", p.total - p.routed_experts - p.engram_tables - ends);
  table.SumLine(1);
  row("backbone", p.total);
  row("draft stages", p.draft);
  if (p.vision > 0) row("vision", p.vision);
  return "\nParameters that are stored\n" + table.Text();
}

}  // namespace

std::string DescribeModelText(const ModelGeometry& geometry) {
  return Headline(geometry) + LayersSection(geometry) + GlobalKvSection(geometry) +
         FormatsSection(geometry) + BlockSection(geometry) + WindowSection(geometry) +
         UsedSection(geometry) + StoredSection(geometry);
}

}  // namespace reprise::engine
