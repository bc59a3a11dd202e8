#include "client/economics/model_costs.h"

#include <algorithm>
#include <limits>

#include "gpu/model/model_geometry.h"
#include "protocol/record/record_layout.h"

namespace reprise {
namespace {

using engine::LayerMode;
using engine::LayerPlan;
using engine::ModelConfig;
using engine::ModelGeometry;

constexpr double kAll = std::numeric_limits<double>::max();

// A score and a weighted sum, a multiply and an add each, for one entry in all heads.
double AttentionOperations(double heads, double score_dim, double value_dim) {
  return 2 * heads * (score_dim + value_dim);
}

// ---- Models that are compared with -------------------------------------------------------------

// Layers of a kind in a model of another generation: what they store for a token and what it sees.
struct LayerKind {
  uint32_t layers = 0;
  double ratio = 1;            // Tokens for an entry.
  uint32_t entry_bytes = 0;    // Main KV.
  uint32_t indexer_bytes = 0;  // 0: no indexer, everything is seen.
  double entries_max = kAll;   // Selected.
};

struct ComparedModel {
  const char* name;
  double active_parameters;
  std::vector<LayerKind> kinds;
  double heads, score_dim, value_dim;
  double index_heads, index_dim;
  uint32_t layers, window;
  uint32_t window_row_bytes;  // Of a token and layer; 0: no windows.
};

// From their published configurations and reports. V3.2: 61 layers of MLA, a latent of 512 FP8 with
// 4 scales and 64 BF16 RoPE values, an index key of 128 FP8 with a scale; 37B active. V4-Flash: 43
// layers, of which 21 keep an entry per 4 tokens with an index key of 128 FP4, and 20 one per 128;
// an entry is 448 FP8 with 8 scales and 64 BF16; 13B active.
std::vector<ComparedModel> ComparedModels() {
  constexpr uint32_t kLatentV32 = 512 + 4 * 4 + 64 * 2;
  constexpr uint32_t kIndexV32 = 128 + 4;
  constexpr uint32_t kEntryV4 = 448 + 8 + 64 * 2;
  constexpr uint32_t kIndexV4 = 128 / 2 + 4;
  return {{"v3.2", 37e9, {{61, 1, kLatentV32, kIndexV32, 2048}}, 128, 576, 512, 64, 128, 61, 0, 0},
          {"v4-flash",
           13e9,
           {{21, 4, kEntryV4, kIndexV4, 512}, {20, 128, kEntryV4, 0, kAll}},
           64,
           512,
           512,
           64,
           128,
           43,
           128,
           kEntryV4}};
}

}  // namespace

absl::StatusOr<ModelCosts> ModelCosts::For(const std::string& model) {
  for (const ComparedModel& known : ComparedModels()) {
    if (model != known.name) continue;
    ModelCosts costs;
    costs.name_ = known.name;
    costs.active_ = known.active_parameters;
    for (const LayerKind& kind : known.kinds) {
      costs.bytes_per_token_ += kind.layers * (kind.entry_bytes + kind.indexer_bytes) / kind.ratio;
      costs.terms_.push_back(
          {kind.layers * AttentionOperations(known.heads, known.score_dim, known.value_dim),
           kind.ratio, kind.entries_max});
      if (kind.indexer_bytes == 0) continue;
      costs.terms_.push_back(
          {kind.layers * 2 * known.index_heads * known.index_dim, kind.ratio, kAll});
    }
    if (known.window_row_bytes > 0) {
      costs.window_bytes_ = uint64_t{known.layers} * known.window * known.window_row_bytes;
      // No bounded replay: windows are exact, or rebuilt from all the layers' reach.
      costs.replay_tokens_ = costs.rebuild_tokens_ = known.layers * known.window;
      costs.terms_.push_back(
          {known.layers * AttentionOperations(known.heads, known.score_dim, known.value_dim), 1,
           static_cast<double>(known.window)});
    }
    costs.record_bytes_ =
        RecordBytesFor(static_cast<uint32_t>(costs.bytes_per_token_ * kBlockTokens + 0.5));
    return costs;
  }
  return FromConfig(model);
}

absl::StatusOr<ModelCosts> ModelCosts::FromConfig(const std::string& model) {
  absl::StatusOr<ModelConfig> config = ModelConfig::Preset(model);
  if (!config.ok()) config = ModelConfig::Load(model + "/config.json");
  if (!config.ok()) {
    return InvalidArgument(
        Message(config.status()) +
        " (--model is v4.1-flash, v4-flash, v3.2, nano, or a folder with a config.json)");
  }
  RP_ASSIGN(const ModelGeometry geometry, ModelGeometry::For(*config));
  ModelCosts costs;
  costs.name_ = model;
  costs.bytes_per_token_ = geometry.bytes_per_token();
  costs.record_bytes_ = geometry.record.record_bytes;
  costs.window_bytes_ = geometry.window_bytes_all;
  costs.replay_tokens_ = config->window;
  costs.rebuild_tokens_ = config->window * geometry.encoder_layers;
  costs.active_ = static_cast<double>(geometry.parameters.active_encoder);
  costs.tail_active_ =
      static_cast<double>(geometry.parameters.active_all - geometry.parameters.active_encoder);
  const double attention = AttentionOperations(config->heads, config->head_dim, config->head_dim);
  const double index = 2.0 * config->index_heads * config->index_head_dim;
  for (uint32_t layer = 0; layer < config->layer_count; ++layer) {
    const LayerPlan& plan = geometry.layers[layer];
    std::vector<Term>& terms = layer < geometry.encoder_layers ? costs.terms_ : costs.tail_terms_;
    terms.push_back({attention, 1, static_cast<double>(config->window)});
    if (plan.ratio == 0) continue;
    const double ratio = plan.ratio;
    terms.push_back({attention, ratio, static_cast<double>(config->index_topk)});
    if (plan.mode != LayerMode::kFull && plan.mode != LayerMode::kReindex) continue;
    const double pool = double{1} * config->candidate_topk_blocks * config->candidate_block_size;
    terms.push_back({index, ratio, plan.reads_pool ? pool : kAll});
  }
  return costs;
}

// The sum over positions of min(entries_max, p / ratio), as an integral.
double ModelCosts::AttentionFlops(const std::vector<Term>& terms, double from, double to) {
  double flops = 0;
  for (const Term& term : terms) {
    const double knee = term.entries_max == kAll ? kAll : term.entries_max * term.ratio;
    const double low = std::min(from, knee), high = std::min(to, knee);
    double entries = (high * high - low * low) / 2 / term.ratio;
    if (to > knee) entries += (to - std::max(from, knee)) * term.entries_max;
    flops += term.operations * entries;
  }
  return flops;
}

double ModelCosts::PrefillFlops(double from, double to) const {
  if (to <= from) return 0;
  return 2 * active_ * (to - from) + AttentionFlops(terms_, from, to);
}

double ModelCosts::TailFlops(double length) const {
  const double rows = std::min<double>(length, tail_active_ > 0 ? replay_tokens_ : 0);
  return 2 * tail_active_ * rows + AttentionFlops(tail_terms_, length - rows, length);
}

double ModelCosts::ReplayFlops(double hit) const {
  return PrefillFlops(hit - std::min<double>(hit, replay_tokens_), hit);
}

}  // namespace reprise
