#include <utility>

#include "gpu/cuda/mix_layout.h"
#include "gpu/cuda/random_fill.h"
#include "gpu/cuda/weights.h"

namespace reprise::engine::cuda {
namespace {

// Matrices are scaled so that an output is about as large as an input. What every rank has is the
// same on all: they count seeds alike.
class Maker {
 public:
  Maker(const ModelGeometry& geometry, const Shard& shard)
      : geometry_(geometry), config_(geometry.config), shard_(shard) {}

  uint64_t bytes() const { return bytes_; }

  absl::StatusOr<DeviceMemory> Room(uint64_t bytes) {
    bytes_ += bytes;
    return DeviceMemory::Allocate(bytes);
  }
  absl::StatusOr<DeviceMemory> Floats(uint64_t count, float middle, float scale) {
    RP_ASSIGN(DeviceMemory memory, Room(count * sizeof(float)));
    FillFloat(memory.data(), count, ++seed_, middle, scale, nullptr);
    return memory;
  }
  absl::StatusOr<DeviceMemory> Bf16s(uint64_t count, float scale) {
    RP_ASSIGN(DeviceMemory memory, Room(count * 2));
    FillBf16(memory.data(), count, ++seed_, scale, nullptr);
    return memory;
  }
  absl::StatusOr<OwnedLinear> Matrix(WeightFormat format, uint32_t outputs, uint32_t inputs,
                                     uint32_t experts = 0) {
    OwnedLinear out;
    out.view = {.format = format,
                .outputs = outputs,
                .inputs = inputs,
                .output_tiles = (outputs + kTileOutputs - 1) / kTileOutputs,
                .input_tiles = (inputs + kTileInputs - 1) / kTileInputs,
                .slices = SlicesOf(outputs, experts > 0)};
    const uint64_t tiles =
        uint64_t{out.view.output_tiles} * out.view.input_tiles * (experts == 0 ? 1 : experts);
    RP_ASSIGN(out.codes, Room(tiles * TileBytes(format)));
    RP_ASSIGN(out.scales, Room(tiles * TileScaleBytes(format)));
    if (format == WeightFormat::kBf16) {
      FillBf16(out.codes.data(), out.codes.bytes() / 2, ++seed_, 0.02f, nullptr);
    } else {
      const bool fp8 = format == WeightFormat::kFp8;
      FillRandom(out.codes.data(), out.codes.bytes(), ++seed_, 255, nullptr);  // All are codes.
      // Codes are about 100 and 3 large: times 2^-13 and 2^-8, so that 5,000 inputs make about 1.
      const uint32_t low = ScaleByte(format, fp8 ? 113 : 118);
      FillScaleWords(out.scales.data(), out.scales.bytes(), ++seed_, low, low + 1, nullptr);
    }
    out.view.codes = out.codes.data();
    out.view.scales = out.scales.data();
    return out;
  }

  absl::StatusOr<MhcDevice> Mhc() {
    MhcDevice mhc;
    RP_ASSIGN(mhc.fn, Bf16s(uint64_t{kMixPieces} * kMixes * 4 * config_.hidden_size, 0.005f));
    RP_ASSIGN(mhc.base, Floats(kMixes, 0, 0.5f));
    RP_ASSIGN(mhc.scale, Floats(3, 1, 0));
    return mhc;
  }

  absl::StatusOr<LayerDevice> Layer(uint32_t layer, const std::vector<uint32_t>& engram_map) {
    const ModelConfig& c = config_;
    const LayerPlan& plan = geometry_.layers[layer];
    constexpr WeightFormat kFp8 = WeightFormat::kFp8, kBf16 = WeightFormat::kBf16;
    const uint32_t low = c.o_groups * c.o_lora_rank / shard_.ranks;
    const uint32_t heads = c.heads / shard_.ranks;
    LayerDevice out;
    RP_ASSIGN(out.hc_attn, Mhc());
    RP_ASSIGN(out.hc_ffn, Mhc());
    RP_ASSIGN(out.attn_norm, Floats(c.hidden_size, 1, 0.1f));
    RP_ASSIGN(out.ffn_norm, Floats(c.hidden_size, 1, 0.1f));
    RP_ASSIGN(out.wq_kv, Matrix(kFp8, c.q_lora_rank + c.head_dim, c.hidden_size));
    RP_ASSIGN(out.wq_b, Matrix(kFp8, heads * c.head_dim, c.q_lora_rank));
    RP_ASSIGN(out.wo_a, Matrix(kFp8, low, c.heads / c.o_groups * c.head_dim));
    RP_ASSIGN(out.wo_b, Matrix(kFp8, c.hidden_size, low));
    RP_ASSIGN(out.q_norm, Floats(c.q_lora_rank, 1, 0.1f));
    RP_ASSIGN(out.kv_norm, Floats(c.head_dim, 1, 0.1f));
    RP_ASSIGN(out.sinks, Floats(heads, 0, 1));
    if (plan.mode == LayerMode::kFull) {
      CompressorDevice compressor;
      RP_ASSIGN(compressor.wkv, Matrix(kBf16, c.head_dim, c.hidden_size));
      if (plan.ratio == 2) {
        RP_ASSIGN(compressor.wgate, Matrix(kBf16, c.head_dim, c.hidden_size));
      }
      RP_ASSIGN(compressor.wk, Matrix(kBf16, c.index_head_dim, c.head_dim));
      RP_ASSIGN(compressor.norm, Floats(c.head_dim, 1, 0.1f));
      RP_ASSIGN(compressor.k_norm, Floats(c.index_head_dim, 1, 0.1f));
      out.compressor = std::move(compressor);
    }
    if (plan.mode == LayerMode::kFull || plan.mode == LayerMode::kReindex) {
      IndexerDevice indexer;
      RP_ASSIGN(indexer.wq_b, Matrix(kFp8, c.index_heads * c.index_head_dim, c.q_lora_rank));
      RP_ASSIGN(indexer.head_weights, Matrix(kBf16, c.index_heads, c.hidden_size));
      out.indexer = std::move(indexer);
    }
    out.moe.shared_here = layer % shard_.ranks == shard_.rank;
    RP_TRY(Moe(geometry_.is_draft(layer) ? c.draft_routed_experts : c.routed_experts, &out.moe));
    if (plan.engram != kNoLayer) {
      RP_ASSIGN(EngramHash hash, EngramHash::For(c, plan.engram, engram_map));
      const Shard::Part rows = shard_.PartOf(c.engram_rows[plan.engram]);
      const uint32_t inputs = hash.rows_per_token() * c.engram_head_dim;
      EngramDevice engram{
          .hash = std::move(hash), .codes = {}, .scales = {}, .rows = rows, .wkv = {}, .qk = {}};
      RP_ASSIGN(engram.codes, Room(rows.count * c.engram_head_dim));
      RP_ASSIGN(engram.scales, Room(rows.count * c.engram_head_dim / 32));
      FillRandom(engram.codes.data(), engram.codes.bytes(), ++seed_, 0x7e, nullptr);
      FillBytes(engram.scales.data(), engram.scales.bytes(), ++seed_, 118, 120, nullptr);
      RP_ASSIGN(engram.wkv, Matrix(kFp8, 5 * c.hidden_size, inputs));
      RP_ASSIGN(engram.qk, Floats(uint64_t{4} * c.hidden_size, 1, 0.1f));
      out.engram = std::move(engram);
    }
    return out;
  }

  absl::Status Moe(uint32_t experts, MoeDevice* out) {
    const ModelConfig& c = config_;
    const Shard::Part own = shard_.PartOf(experts);
    out->routed = experts;
    out->own_first = static_cast<uint32_t>(own.first);
    out->own = static_cast<uint32_t>(own.count);
    RP_ASSIGN(out->gate, Matrix(WeightFormat::kBf16, experts, c.hidden_size));
    RP_ASSIGN(out->bias, Floats(experts, 0, 0.1f));
    RP_ASSIGN(out->image_bias, Floats(experts, 0, 0.1f));
    RP_ASSIGN(out->up, Matrix(WeightFormat::kFp4, 2 * c.expert_dim, c.hidden_size, out->own));
    RP_ASSIGN(out->down, Matrix(WeightFormat::kFp4, c.hidden_size, c.expert_dim, out->own));
    if (!out->shared_here) {
      seed_ += 4;  // Those of its codes and scales.
      return absl::OkStatus();
    }
    RP_ASSIGN(out->shared_up, Matrix(WeightFormat::kFp8, 2 * c.expert_dim, c.hidden_size, 1));
    RP_ASSIGN(out->shared_down, Matrix(WeightFormat::kFp8, c.hidden_size, c.expert_dim, 1));
    return absl::OkStatus();
  }

  absl::StatusOr<DraftDevice> Draft() {
    const ModelConfig& c = config_;
    const auto taps = static_cast<uint32_t>(c.draft_target_layers.size());
    DraftDevice out;
    RP_ASSIGN(out.main_proj, Matrix(WeightFormat::kFp8, c.hidden_size, taps * c.hidden_size));
    RP_ASSIGN(out.markov_head, Matrix(WeightFormat::kBf16, c.vocab_size, c.draft_markov_rank));
    out.markov_head.view.slices = 1;  // Its rows are gathered.
    RP_ASSIGN(out.confidence, Matrix(WeightFormat::kBf16, 1, c.hidden_size + c.draft_markov_rank));
    RP_ASSIGN(out.main_norm, Floats(c.hidden_size, 1, 0.1f));
    RP_ASSIGN(out.norm, Floats(c.hidden_size, 1, 0.1f));
    RP_ASSIGN(out.markov_embed,
              Bf16s(uint64_t{c.vocab_size} * c.draft_markov_rank + kTileInputs, 0.02f));
    return out;
  }

 private:
  const ModelGeometry& geometry_;
  const ModelConfig& config_;
  const Shard shard_;
  uint64_t bytes_ = 0;
  uint32_t seed_ = 0;
};

}  // namespace

absl::StatusOr<DeviceWeights> DeviceWeights::Random(const ModelGeometry& geometry,
                                                    const std::vector<uint32_t>& engram_map,
                                                    const Shard& shard) {
  const ModelConfig& c = geometry.config;
  Maker maker(geometry, shard);
  DeviceWeights out;
  RP_ASSIGN(out.embed, maker.Bf16s(uint64_t{c.vocab_size} * c.hidden_size, 1));
  out.head_tokens = shard.PartOf(c.vocab_size, kTileOutputs);
  RP_ASSIGN(out.head, maker.Matrix(WeightFormat::kBf16,
                                   static_cast<uint32_t>(out.head_tokens.count), c.hidden_size));
  out.head.view.slices = 1;  // Its rows are gathered.
  RP_ASSIGN(out.norm, maker.Floats(c.hidden_size, 1, 0.1f));
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    RP_ASSIGN(LayerDevice weights, maker.Layer(layer, engram_map));
    out.layers.push_back(std::move(weights));
  }
  if (c.draft_stages > 0) {
    RP_ASSIGN(out.draft, maker.Draft());
  }
  RP_CUDA_TRY(cudaDeviceSynchronize());
  out.bytes = maker.bytes();
  return out;
}

}  // namespace reprise::engine::cuda
