#include "gpu/cuda/weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "gpu/cuda/mix_layout.h"
#include "gpu/formats/number_formats.h"

namespace reprise::engine::cuda {
namespace {

// Names, shapes and types of model-facts section 13, layer by layer, as gpu/cpu/weights.cc.
class Loader {
 public:
  Loader(const ModelGeometry& geometry, const Checkpoint& checkpoint, const Shard& shard)
      : geometry_(geometry), config_(geometry.config), checkpoint_(checkpoint), shard_(shard) {}

  uint64_t bytes() const { return bytes_; }

  absl::StatusOr<DeviceMemory> Upload(const void* data, uint64_t bytes) {
    RP_ASSIGN(DeviceMemory memory, DeviceMemory::Allocate(bytes));
    RP_CUDA_TRY(cudaMemcpy(memory.data(), data, bytes, cudaMemcpyHostToDevice));
    bytes_ += bytes;
    return memory;
  }

  // As it lies in the checkpoint.
  absl::StatusOr<DeviceMemory> Raw(const std::string& name, DType dtype,
                                   const std::vector<uint64_t>& shape) {
    RP_ASSIGN(const Tensor tensor, checkpoint_.Find(name, dtype, shape));
    return Upload(tensor.bytes.data(), tensor.bytes.size());
  }
  absl::StatusOr<std::vector<float>> Floats(const std::string& name,
                                            const std::vector<uint64_t>& shape) {
    RP_ASSIGN(const Tensor tensor, checkpoint_.Find(name, DType::kBf16, shape));
    std::vector<float> values(tensor.bytes.size() / 2);
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = FromBf16(LoadLe<uint16_t>(tensor.bytes.data() + 2 * i));
    }
    return values;
  }
  absl::StatusOr<DeviceMemory> Norm(const std::string& name, uint64_t count) {
    RP_ASSIGN(const std::vector<float> values, Floats(name, {count}));
    return Upload(values.data(), values.size() * sizeof(float));
  }
  absl::StatusOr<DeviceMemory> Float32(const std::string& name, uint64_t count) {
    return Raw(name, DType::kF32, {count});
  }

  absl::StatusOr<OwnedLinear> Upload(const PackedLinear& packed, bool expert = false) {
    OwnedLinear out;
    out.view = {.format = packed.format,
                .outputs = packed.outputs,
                .inputs = packed.inputs,
                .output_tiles = packed.output_tiles,
                .input_tiles = packed.input_tiles,
                .slices = SlicesOf(packed.outputs, expert)};
    RP_ASSIGN(out.codes, Upload(packed.codes.data(), packed.codes.size()));
    RP_ASSIGN(out.scales, Upload(packed.scales.data(), packed.scales.size()));
    out.view.codes = out.codes.data();
    out.view.scales = out.scales.data();
    return out;
  }
  absl::StatusOr<OwnedLinear> Matrix(const std::string& name, uint32_t outputs, uint32_t inputs) {
    RP_ASSIGN(const WeightRows rows, WeightRows::Find(checkpoint_, name, outputs, inputs));
    RP_ASSIGN(const PackedLinear packed, PackLinear(name, rows.format(), outputs, inputs, rows));
    return Upload(packed);
  }
  // Some of its outputs; and some of its inputs.
  absl::StatusOr<OwnedLinear> OutputsOf(const std::string& name, uint32_t outputs, uint32_t inputs,
                                        const Shard::Part& part) {
    RP_ASSIGN(const WeightRows rows, WeightRows::Find(checkpoint_, name, outputs, inputs));
    const auto first = static_cast<uint32_t>(part.first);
    RP_ASSIGN(const PackedLinear packed,
              PackLinear(name, rows.format(), static_cast<uint32_t>(part.count), inputs,
                         [&](uint32_t output) { return rows(first + output); }));
    return Upload(packed);
  }
  absl::StatusOr<OwnedLinear> InputsOf(const std::string& name, uint32_t outputs, uint32_t inputs,
                                       const Shard::Part& part) {
    RP_ASSIGN(const WeightRows rows, WeightRows::Find(checkpoint_, name, outputs, inputs));
    const auto first = static_cast<uint32_t>(part.first);
    RP_ASSIGN(const PackedLinear packed,
              PackLinear(name, rows.format(), outputs, static_cast<uint32_t>(part.count),
                         [&](uint32_t output) { return rows(output, first); }));
    return Upload(packed);
  }
  // Rows of a table of bytes.
  absl::StatusOr<DeviceMemory> RowsOf(const std::string& name, DType dtype, uint64_t rows,
                                      uint64_t row_bytes, const Shard::Part& part) {
    RP_ASSIGN(const Tensor tensor, checkpoint_.Find(name, dtype, {rows, row_bytes}));
    return Upload(tensor.bytes.data() + part.first * row_bytes, part.count * row_bytes);
  }

  // wq_a and wkv, which read the same rows.
  absl::StatusOr<OwnedLinear> QueriesAndWindows(const std::string& p) {
    const uint32_t low = config_.q_lora_rank, dim = config_.head_dim, hidden = config_.hidden_size;
    RP_ASSIGN(const WeightRows queries,
              WeightRows::Find(checkpoint_, p + "wq_a.weight", low, hidden));
    RP_ASSIGN(const WeightRows windows,
              WeightRows::Find(checkpoint_, p + "wkv.weight", dim, hidden));
    RP_ASSIGN(const PackedLinear packed,
              PackLinear(p + "wq_a.weight", queries.format(), low + dim, hidden,
                         [&](uint32_t o) { return o < low ? queries(o) : windows(o - low); }));
    return Upload(packed);
  }

  // Rows of w1 and w3 by turns of eight.
  absl::StatusOr<PackedLinear> PackUp(const std::string& prefix) {
    const uint32_t inner = config_.expert_dim, hidden = config_.hidden_size;
    RP_ASSIGN(const WeightRows w1,
              WeightRows::Find(checkpoint_, prefix + "w1.weight", inner, hidden));
    RP_ASSIGN(const WeightRows w3,
              WeightRows::Find(checkpoint_, prefix + "w3.weight", inner, hidden));
    return PackLinear(prefix + "w1.weight", w1.format(), 2 * inner, hidden, [&](uint32_t output) {
      const uint32_t of_both = output / 16 * 8 + output % 8;
      return output % 16 < 8 ? w1(of_both) : w3(of_both);
    });
  }
  absl::StatusOr<PackedLinear> PackDown(const std::string& prefix) {
    const std::string name = prefix + "w2.weight";
    RP_ASSIGN(const WeightRows rows,
              WeightRows::Find(checkpoint_, name, config_.hidden_size, config_.expert_dim));
    return PackLinear(name, rows.format(), config_.hidden_size, config_.expert_dim, rows);
  }
  // Experts end to end.
  template <typename Pack>
  absl::StatusOr<OwnedLinear> Experts(const std::string& prefix, uint32_t first, uint32_t count,
                                      Pack&& pack) {
    OwnedLinear out;
    for (uint32_t e = 0; e < count; ++e) {
      RP_ASSIGN(const PackedLinear one, pack(prefix + std::to_string(first + e) + "."));
      if (e == 0) {
        out.view = {.format = one.format,
                    .outputs = one.outputs,
                    .inputs = one.inputs,
                    .output_tiles = one.output_tiles,
                    .input_tiles = one.input_tiles};
        RP_ASSIGN(out.codes, DeviceMemory::Allocate(count * one.codes.size()));
        RP_ASSIGN(out.scales, DeviceMemory::Allocate(count * one.scales.size()));
        bytes_ += out.codes.bytes() + out.scales.bytes();
      }
      RP_CUDA_TRY(cudaMemcpy(out.codes.data() + e * one.codes.size(), one.codes.data(),
                             one.codes.size(), cudaMemcpyHostToDevice));
      RP_CUDA_TRY(cudaMemcpy(out.scales.data() + e * one.scales.size(), one.scales.data(),
                             one.scales.size(), cudaMemcpyHostToDevice));
    }
    out.view.codes = out.codes.data();
    out.view.scales = out.scales.data();
    return out;
  }

  absl::StatusOr<MhcDevice> Mhc(const std::string& prefix) {
    MhcDevice mhc;
    RP_ASSIGN(const Tensor fn,
              checkpoint_.Find(prefix + "_fn", DType::kF32,
                               {kMixes, uint64_t{config_.hc_mult} * config_.hidden_size}));
    std::vector<float> values(fn.bytes.size() / sizeof(float));
    std::memcpy(values.data(), fn.bytes.data(), fn.bytes.size());
    const std::vector<uint16_t> packed = PackMix(values, config_.hidden_size);
    RP_ASSIGN(mhc.fn, Upload(packed.data(), packed.size() * sizeof(uint16_t)));
    RP_ASSIGN(mhc.base, Float32(prefix + "_base", kMixes));
    RP_ASSIGN(mhc.scale, Float32(prefix + "_scale", 3));
    return mhc;
  }

  absl::StatusOr<CompressorDevice> Compressor(const std::string& prefix, uint32_t ratio) {
    CompressorDevice out;
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

  absl::Status Attention(const std::string& p, const LayerPlan& plan, LayerDevice* out) {
    const ModelConfig& c = config_;
    RP_ASSIGN(out->wq_kv, QueriesAndWindows(p));
    RP_ASSIGN(out->q_norm, Norm(p + "q_norm.weight", c.q_lora_rank));
    const Shard::Part heads = shard_.PartOf(c.heads);
    RP_ASSIGN(out->wq_b, OutputsOf(p + "wq_b.weight", c.heads * c.head_dim, c.q_lora_rank,
                                   shard_.PartOf(c.heads * c.head_dim)));
    RP_ASSIGN(out->kv_norm, Norm(p + "kv_norm.weight", c.head_dim));
    RP_ASSIGN(const Tensor sinks, checkpoint_.Find(p + "attn_sink", DType::kF32, {c.heads}));
    RP_ASSIGN(out->sinks, Upload(sinks.bytes.data() + heads.first * sizeof(float),
                                 heads.count * sizeof(float)));
    const uint32_t low = c.o_groups * c.o_lora_rank;
    const Shard::Part own_low = shard_.PartOf(low);
    RP_ASSIGN(out->wo_a,
              OutputsOf(p + "wo_a.weight", low, c.heads / c.o_groups * c.head_dim, own_low));
    RP_ASSIGN(out->wo_b, InputsOf(p + "wo_b.weight", c.hidden_size, low, own_low));
    if (plan.mode == LayerMode::kFull) {
      RP_ASSIGN(out->compressor, Compressor(p, plan.ratio));
    }
    if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
      IndexerDevice indexer;
      RP_ASSIGN(indexer.wq_b,
                Matrix(p + "indexer.wq_b.weight", c.index_heads * c.index_head_dim, c.q_lora_rank));
      RP_ASSIGN(indexer.head_weights,
                Matrix(p + "indexer.weights_proj.weight", c.index_heads, c.hidden_size));
      out->indexer = std::move(indexer);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<MoeDevice> Moe(const std::string& p, uint32_t experts, bool shared_here) {
    MoeDevice out;
    const Shard::Part own = shard_.PartOf(experts);
    out.routed = experts;
    out.own_first = static_cast<uint32_t>(own.first);
    out.own = static_cast<uint32_t>(own.count);
    out.shared_here = shared_here;
    RP_ASSIGN(out.gate, Matrix(p + "gate.weight", experts, config_.hidden_size));
    RP_ASSIGN(out.bias, Float32(p + "gate.bias", experts));
    RP_ASSIGN(out.image_bias, Float32(p + "gate.bias_vl", experts));
    const auto up = [this](const std::string& prefix) { return PackUp(prefix); };
    const auto down = [this](const std::string& prefix) { return PackDown(prefix); };
    RP_ASSIGN(out.up, Experts(p + "experts.", out.own_first, out.own, up));
    RP_ASSIGN(out.down, Experts(p + "experts.", out.own_first, out.own, down));
    if (!shared_here) return out;
    RP_ASSIGN(const PackedLinear shared_up, PackUp(p + "shared_experts."));
    RP_ASSIGN(out.shared_up, Upload(shared_up, /*expert=*/true));
    RP_ASSIGN(const PackedLinear shared_down, PackDown(p + "shared_experts."));
    RP_ASSIGN(out.shared_down, Upload(shared_down, /*expert=*/true));
    return out;
  }

  absl::StatusOr<EngramDevice> Engram(const std::string& p, uint32_t engram,
                                      const std::vector<uint32_t>& map) {
    const ModelConfig& c = config_;
    const uint64_t rows = c.engram_rows[engram];
    RP_ASSIGN(EngramHash hash, EngramHash::For(c, engram, map));
    const uint32_t inputs = hash.rows_per_token() * c.engram_head_dim;
    EngramDevice out{.hash = std::move(hash),
                     .codes = {},
                     .scales = {},
                     .rows = shard_.PartOf(rows),
                     .wkv = {},
                     .qk = {}};
    RP_ASSIGN(out.codes,
              RowsOf(p + "embed.weight", DType::kF8E4m3, rows, c.engram_head_dim, out.rows));
    RP_ASSIGN(out.scales,
              RowsOf(p + "embed.scale", DType::kF8E8m0, rows, c.engram_head_dim / 32, out.rows));
    RP_ASSIGN(out.wkv, Matrix(p + "wkv.weight", (c.hc_mult + 1) * c.hidden_size, inputs));
    const std::vector<uint64_t> shape = {c.hc_mult, c.hidden_size};
    RP_ASSIGN(std::vector<float> qk, Floats(p + "q_weight", shape));
    RP_ASSIGN(const std::vector<float> k, Floats(p + "k_weight", shape));
    for (size_t i = 0; i < qk.size(); ++i) qk[i] *= k[i];
    RP_ASSIGN(out.qk, Upload(qk.data(), qk.size() * sizeof(float)));
    return out;
  }

  absl::StatusOr<LayerDevice> Layer(uint32_t layer, const std::vector<uint32_t>& engram_map) {
    const std::string p = geometry_.TensorPrefix(layer);
    const LayerPlan& plan = geometry_.layers[layer];
    LayerDevice out;
    RP_ASSIGN(out.hc_attn, Mhc(p + "hc_attn"));
    RP_ASSIGN(out.hc_ffn, Mhc(p + "hc_ffn"));
    RP_ASSIGN(out.attn_norm, Norm(p + "attn_norm.weight", config_.hidden_size));
    RP_ASSIGN(out.ffn_norm, Norm(p + "ffn_norm.weight", config_.hidden_size));
    RP_TRY(Attention(p + "attn.", plan, &out));
    const uint32_t experts =
        geometry_.is_draft(layer) ? config_.draft_routed_experts : config_.routed_experts;
    RP_ASSIGN(out.moe, Moe(p + "ffn.", experts, layer % shard_.ranks == shard_.rank));
    if (plan.engram != kNoLayer) {
      RP_ASSIGN(out.engram, Engram(p + "engram.", plan.engram, engram_map));
    }
    return out;
  }

  absl::StatusOr<DraftDevice> Draft() {
    const ModelConfig& c = config_;
    const std::string first = geometry_.TensorPrefix(c.layer_count);
    const std::string last = geometry_.TensorPrefix(geometry_.all_layers() - 1);
    const auto taps = static_cast<uint32_t>(c.draft_target_layers.size());
    DraftDevice out;
    RP_ASSIGN(out.main_proj,
              Matrix(first + "main_proj.weight", c.hidden_size, taps * c.hidden_size));
    RP_ASSIGN(out.main_norm, Norm(first + "main_norm.weight", c.hidden_size));
    RP_ASSIGN(out.norm, Norm(last + "norm.weight", c.hidden_size));
    RP_ASSIGN(out.markov_head,
              Matrix(last + "markov_head.head.weight", c.vocab_size, c.draft_markov_rank));
    out.markov_head.view.slices = 1;  // Its rows are gathered.
    RP_ASSIGN(const Tensor embed, checkpoint_.Find(last + "markov_head.embed.weight", DType::kBf16,
                                                   {c.vocab_size, c.draft_markov_rank}));
    // A product reads whole tiles of inputs, behind the last row too.
    std::vector<std::byte> rows(embed.bytes.begin(), embed.bytes.end());
    rows.resize(rows.size() + kTileInputs * sizeof(uint16_t));
    RP_ASSIGN(out.markov_embed, Upload(rows.data(), rows.size()));
    RP_ASSIGN(out.confidence,
              Matrix(last + "confidence_head.proj.weight", 1, c.hidden_size + c.draft_markov_rank));
    return out;
  }

 private:
  const ModelGeometry& geometry_;
  const ModelConfig& config_;
  const Checkpoint& checkpoint_;
  const Shard shard_;
  uint64_t bytes_ = 0;
};

}  // namespace

absl::Status CheckShards(const ModelConfig& config, uint32_t ranks) {
  const auto refuse = [&](const std::string& key, uint64_t value, const std::string& what) {
    return InvalidArgument(std::to_string(ranks) + " GPUs cannot share the model: its " + key +
                           " of " + std::to_string(value) + " " + what + "; choose fewer");
  };
  if (config.o_groups % ranks != 0) {
    return refuse("o_groups", config.o_groups, "is no multiple of their number");
  }
  const uint32_t experts = config.draft_stages > 0
                               ? std::min(config.routed_experts, config.draft_routed_experts)
                               : config.routed_experts;
  if (experts < ranks) return refuse("routed experts", experts, "are fewer");
  if (config.vocab_size / kTileOutputs < ranks) {
    return refuse("vocab_size", config.vocab_size, "does not give each 64 tokens");
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceWeights> DeviceWeights::Load(const ModelGeometry& geometry,
                                                  const Checkpoint& checkpoint,
                                                  const std::vector<uint32_t>& engram_map,
                                                  const Shard& shard) {
  const ModelConfig& c = geometry.config;
  Loader loader(geometry, checkpoint, shard);
  DeviceWeights out;
  RP_ASSIGN(out.embed, loader.Raw("embed.weight", DType::kBf16, {c.vocab_size, c.hidden_size}));
  out.head_tokens = shard.PartOf(c.vocab_size, kTileOutputs);
  RP_ASSIGN(out.head,
            loader.OutputsOf("head.weight", c.vocab_size, c.hidden_size, out.head_tokens));
  out.head.view.slices = 1;  // Its rows are gathered.
  RP_ASSIGN(out.norm, loader.Norm("norm.weight", c.hidden_size));
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    RP_ASSIGN(LayerDevice weights, loader.Layer(layer, engram_map));
    out.layers.push_back(std::move(weights));
  }
  if (c.draft_stages > 0) {
    RP_ASSIGN(out.draft, loader.Draft());
  }
  out.bytes = loader.bytes();
  return out;
}

}  // namespace reprise::engine::cuda
