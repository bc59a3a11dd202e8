#include "tests/gpu/random_model.h"

#include <cmath>
#include <cstring>

#include "gpu/checkpoint/tensor_inventory.h"
#include "gpu/formats/number_formats.h"
#include "protocol/base/check.h"
#include "protocol/base/prng.h"

namespace reprise::engine::test {
namespace {

class MemoryCheckpoint final : public Checkpoint {
 public:
  absl::StatusOr<Tensor> Find(std::string_view name, DType dtype,
                              const std::vector<uint64_t>& shape) const override {
    const Tensor* found = Find(name);
    if (found == nullptr) return NotFound("no tensor " + std::string(name));
    if (found->dtype != dtype || found->shape != shape) {
      return InvalidArgument("tensor " + std::string(name) + " has another type or shape");
    }
    return *found;
  }
  const Tensor* Find(std::string_view name) const override {
    const auto at = tensors_.find(std::string(name));
    return at == tensors_.end() ? nullptr : &at->second;
  }
  std::vector<std::string> Names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  uint64_t total_bytes() const override { return 0; }
  Hash256 Digest() const override { return {}; }

  void Add(const TensorSpec& spec, std::vector<std::byte> bytes) {
    std::vector<std::byte>& kept = bytes_[spec.name] = std::move(bytes);
    tensors_[spec.name] = {.dtype = spec.dtype, .shape = spec.shape, .bytes = kept};
  }

 private:
  std::map<std::string, std::vector<std::byte>> bytes_;
  std::map<std::string, Tensor> tensors_;
};

double Gaussian(Prng* prng) {
  return std::sqrt(-2 * std::log(1 - prng->Unit())) * std::cos(6.283185307 * prng->Unit());
}

// Weights of about 1 / sqrt(inputs), norms near 1, and codes and scales that give the like.
std::vector<std::byte> RandomTensor(const TensorSpec& spec, Prng* prng) {
  uint64_t count = 1;
  for (const uint64_t size : spec.shape) count *= size;
  std::vector<std::byte> bytes(count * DTypeBytes(spec.dtype));
  const bool vector = spec.shape.size() == 1;
  const double inputs = static_cast<double>(spec.shape.back());
  for (uint64_t i = 0; i < count; ++i) {
    switch (spec.dtype) {
      case DType::kBf16: {
        const double x = vector ? 1 + 0.1 * Gaussian(prng) : Gaussian(prng) / std::sqrt(inputs);
        const uint16_t code = ToBf16(static_cast<float>(x));
        std::memcpy(bytes.data() + 2 * i, &code, 2);
        break;
      }
      case DType::kF32: {
        const auto x = static_cast<float>(Gaussian(prng) * (vector ? 0.5 : 1 / std::sqrt(inputs)));
        std::memcpy(bytes.data() + 4 * i, &x, 4);
        break;
      }
      case DType::kF8E4m3:  // Values from 1/8 to 2, of either sign.
        bytes[i] = static_cast<std::byte>((4 + prng->Below(4)) << 3 | prng->Below(8) |
                                          prng->Below(2) << 7);
        break;
      case DType::kI8:
        bytes[i] = static_cast<std::byte>(prng->Next());
        break;
      case DType::kF8E8m0:
        bytes[i] = static_cast<std::byte>(127 - std::lround(std::log2(inputs * 32) / 2) - 1 +
                                          static_cast<long>(prng->Below(3)));
        break;
    }
  }
  return bytes;
}

}  // namespace

ModelConfig RandomConfig(uint64_t seed) {
  Prng prng(seed);
  ModelConfig c = *ModelConfig::Preset("nano");
  c.vocab_size = 288;
  c.hidden_size = static_cast<uint32_t>(64 + 32 * prng.Below(3));
  c.heads = static_cast<uint32_t>(4 * (1 + prng.Below(2)));
  c.head_dim = static_cast<uint32_t>(32 * (1 + prng.Below(3)));
  c.rope_dim = 16;
  c.q_lora_rank = static_cast<uint32_t>(32 * (1 + prng.Below(2)));
  c.o_groups = static_cast<uint32_t>(1 + prng.Below(2));
  c.o_lora_rank = 32;
  c.window = static_cast<uint32_t>(64 * (1 + prng.Below(2)));
  c.expert_dim = static_cast<uint32_t>(32 * (1 + prng.Below(2)));
  c.routed_experts = static_cast<uint32_t>(3 + prng.Below(4));
  c.experts_per_token = static_cast<uint32_t>(1 + prng.Below(3));
  c.index_heads = static_cast<uint32_t>(4 * (1 + prng.Below(2)));
  c.index_head_dim = static_cast<uint32_t>(32 * (1 + prng.Below(2)));
  c.index_topk = static_cast<uint32_t>(16 + 8 * prng.Below(10));
  c.candidate_block_size = static_cast<uint32_t>(4 << prng.Below(2));
  c.candidate_topk_blocks = c.index_topk / c.candidate_block_size + 4;
  c.engram_layers.clear();
  c.engram_rows.clear();
  // Ratio-2 sources, then a ratio-1 source and a layer that indexes again; others reuse.
  const auto encoder = static_cast<uint32_t>(3 + prng.Below(3));
  const auto decoder = static_cast<uint32_t>(3 + prng.Below(2));
  c.layer_count = encoder + decoder;
  c.compress_ratios.assign(c.layer_count + 2, 0);
  for (uint32_t layer = 1; layer < encoder; ++layer) c.compress_ratios[layer] = 2;
  for (uint32_t layer = encoder; layer < c.layer_count; ++layer) c.compress_ratios[layer] = 1;
  c.kv_source_layers = {1};
  if (encoder > 3) c.kv_source_layers.push_back(3);
  c.kv_source_layers.push_back(encoder);
  c.index_source_layers = c.kv_source_layers;
  c.index_source_layers.push_back(encoder + 2);
  c.candidate_source_layer = encoder;
  c.draft_stages = 2;
  c.draft_target_layers = {encoder, encoder + 1, encoder + 2};
  c.draft_routed_experts = 3;
  c.draft_experts_per_token = 2;
  RP_CHECK(Validate(c).ok());
  return c;
}

std::unique_ptr<Checkpoint> RandomCheckpoint(const ModelGeometry& geometry, uint64_t seed) {
  auto checkpoint = std::make_unique<MemoryCheckpoint>();
  Prng prng(seed);
  ForEachTensor(geometry,
                [&](const TensorSpec& spec) { checkpoint->Add(spec, RandomTensor(spec, &prng)); });
  return checkpoint;
}

std::unique_ptr<cpu::CpuEngine> RandomEngine(const ModelGeometry& geometry,
                                             const Checkpoint& checkpoint, uint32_t threads) {
  auto engine =
      cpu::CpuEngine::Make(geometry, checkpoint, {}, {.threads = threads, .rows_max = 1024});
  RP_CHECK(engine.ok());
  return *std::move(engine);
}

}  // namespace reprise::engine::test
