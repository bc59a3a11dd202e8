#include "gpu/model/parameter_count.h"

namespace reprise::engine {
namespace {

// The three matrices of a SwiGLU expert.
uint64_t ExpertSize(const ModelConfig& c) { return 3ull * c.expert_dim * c.hidden_size; }

uint64_t AttentionSize(const ModelConfig& c) {
  const uint64_t hidden = c.hidden_size;
  const uint64_t heads_dim = uint64_t{c.heads} * c.head_dim;
  const uint64_t groups_rank = uint64_t{c.o_groups} * c.o_lora_rank;
  const uint64_t query = c.q_lora_rank * hidden + c.q_lora_rank + heads_dim * c.q_lora_rank;
  const uint64_t latent = c.head_dim * hidden + c.head_dim;
  const uint64_t output = groups_rank * (heads_dim / c.o_groups) + hidden * groups_rank;
  return query + latent + output + c.heads;
}

// Pre, post and the square of both, of every copy of the stream; twice in a layer.
uint64_t HyperConnectionSize(const ModelConfig& c) {
  const uint64_t mixes = uint64_t{c.hc_mult} * (c.hc_mult + 2);
  return 2 * (mixes * c.hc_mult * c.hidden_size + mixes + 3);
}

uint64_t DraftHeadSize(const ModelConfig& c) {
  if (c.draft_stages == 0) return 0;
  const uint64_t hidden = c.hidden_size;
  const uint64_t projection = hidden * (c.draft_target_layers.size() * hidden) + hidden;
  const uint64_t markov = 2ull * c.vocab_size * c.draft_markov_rank;
  const uint64_t confidence = hidden + c.draft_markov_rank;
  return projection + hidden + markov + confidence;
}

uint64_t VisionSize(const ModelConfig& c) {
  if (!c.vision) return 0;
  const uint64_t width = c.vision->hidden_size;
  const uint64_t inner = c.vision->intermediate_size;
  const uint64_t hidden = c.hidden_size;
  const uint64_t pixels = 3ull * c.vision->patch_size * c.vision->patch_size;
  const uint64_t patches = uint64_t{c.vision->downsample_ratio} * c.vision->downsample_ratio;
  const uint64_t attention = 3 * width * width + 3 * width + width * width + width;
  const uint64_t block = 2 * width + attention + 2 * inner * width + width * inner;
  const uint64_t tower = width * pixels + width + c.vision->layers * block + width;
  const uint64_t aligner = hidden * (patches * width) + hidden + hidden * hidden + hidden;
  return tower + aligner + 3 * hidden;  // And the vectors for start, end and line break.
}

}  // namespace

LayerParameters& LayerParameters::operator+=(const LayerParameters& other) {
  attention += other.attention;
  compressor += other.compressor;
  indexer_key += other.indexer_key;
  indexer_query += other.indexer_query;
  engram += other.engram;
  engram_table += other.engram_table;
  hyper_connection += other.hyper_connection;
  norms += other.norms;
  router += other.router;
  shared_expert += other.shared_expert;
  expert = other.expert;  // The same in all layers that are added up.
  experts += other.experts;
  experts_per_token += other.experts_per_token;
  return *this;
}

LayerParameters CountLayer(const ModelGeometry& geometry, uint32_t layer) {
  const ModelConfig& c = geometry.config;
  const LayerPlan& plan = geometry.layers[layer];
  const uint64_t hidden = c.hidden_size;
  const bool draft = geometry.is_draft(layer);

  LayerParameters p;
  p.attention = AttentionSize(c);
  p.hyper_connection = HyperConnectionSize(c);
  p.norms = 2 * hidden;
  if (plan.mode == LayerMode::kFull) {
    const uint64_t latent = c.head_dim * hidden;
    p.compressor = (plan.ratio == 2 ? 2 * latent : latent) + c.head_dim;
    p.indexer_key = uint64_t{c.index_head_dim} * c.head_dim + c.index_head_dim;
  }
  if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
    p.indexer_query =
        uint64_t{c.index_heads} * c.index_head_dim * c.q_lora_rank + c.index_heads * hidden;
  }
  if (plan.engram != kNoLayer) {
    const uint64_t row_values =
        uint64_t{c.engram_max_ngram - 1} * c.engram_heads * c.engram_head_dim;
    p.engram = (c.hc_mult + 1) * hidden * row_values + 2 * c.hc_mult * hidden;
    p.engram_table = c.engram_rows[plan.engram] * c.engram_head_dim;
  }
  p.experts = draft ? c.draft_routed_experts : c.routed_experts;
  p.experts_per_token = draft ? c.draft_experts_per_token : c.experts_per_token;
  p.expert = ExpertSize(c);
  p.shared_expert = ExpertSize(c);
  p.router = p.experts * hidden + 2 * uint64_t{p.experts};
  return p;
}

uint64_t DecoderKvParameters(const ModelGeometry& geometry) {
  const LayerParameters p = CountLayer(geometry, geometry.encoder_layers);
  return geometry.config.hidden_size + p.compressor + p.indexer_key;
}

ParameterCount CountParameters(const ModelGeometry& geometry) {
  const ModelConfig& c = geometry.config;
  ParameterCount count;
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    const LayerParameters p = CountLayer(geometry, layer);
    if (geometry.is_draft(layer)) {
      count.draft += p.total();
      continue;
    }
    count.total += p.total();
    count.engram_tables += p.engram_table;
    count.routed_experts += p.routed();
    count.active_all += p.active();
    if (layer < geometry.encoder_layers) count.active_encoder += p.active();
  }
  count.total += 2ull * c.vocab_size * c.hidden_size + c.hidden_size;  // Embedding, head, norm.
  count.draft += DraftHeadSize(c);
  count.vision = VisionSize(c);
  count.active_encoder += DecoderKvParameters(geometry);
  return count;
}

}  // namespace reprise::engine
