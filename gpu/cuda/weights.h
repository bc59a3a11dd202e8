#pragma once

#include <optional>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear.h"
#include "gpu/model/model_geometry.h"
#include "gpu/tokenizer/engram_hash.h"

// A model's weights in device memory.
namespace reprise::engine::cuda {

// A packed matrix and the memory it lies in.
struct OwnedLinear {
  DeviceLinear view;
  DeviceMemory codes, scales;
};

struct MhcDevice {
  DeviceMemory fn;     // PackMix of [24, 4 hidden]
  DeviceMemory base;   // 24
  DeviceMemory scale;  // 3
};

struct CompressorDevice {
  OwnedLinear wkv, wgate, wk;  // wgate: ratio 2.
  DeviceMemory norm, k_norm;
};

struct IndexerDevice {
  OwnedLinear wq_b, head_weights;
};

struct MoeDevice {
  OwnedLinear gate;
  DeviceMemory bias, image_bias;
  uint32_t routed = 0;
  // Routed experts end to end; w1 and w3 interleaved by eights.
  OwnedLinear up, down;
  OwnedLinear shared_up, shared_down;
};

struct EngramDevice {
  EngramHash hash;
  DeviceMemory codes, scales;
  OwnedLinear wkv;
  DeviceMemory qk;  // [4, hidden] float
};

struct LayerDevice {
  MhcDevice hc_attn, hc_ffn;
  DeviceMemory attn_norm, ffn_norm;
  OwnedLinear wq_kv;  // wq_a's outputs, then wkv's.
  OwnedLinear wq_b, wo_a, wo_b;
  DeviceMemory q_norm, kv_norm, sinks;
  std::optional<CompressorDevice> compressor;
  std::optional<IndexerDevice> indexer;
  MoeDevice moe;
  std::optional<EngramDevice> engram;
};

struct DraftDevice {
  OwnedLinear main_proj, markov_head, confidence;
  DeviceMemory main_norm, norm;
  DeviceMemory markov_embed;  // [vocab, rank] bf16
};

struct DeviceWeights {
  DeviceMemory embed;  // [vocab, hidden] bf16
  OwnedLinear head;
  DeviceMemory norm;
  std::vector<LayerDevice> layers;  // Backbone, then draft stages.
  std::optional<DraftDevice> draft;
  uint64_t bytes = 0;

  static absl::StatusOr<DeviceWeights> Load(const ModelGeometry& geometry,
                                            const Checkpoint& checkpoint,
                                            const std::vector<uint32_t>& engram_map);
  // Made on the device, in the right types and sizes and of magnitudes that keep activations
  // finite: to measure with, where no checkpoint is.
  static absl::StatusOr<DeviceWeights> Random(const ModelGeometry& geometry,
                                              const std::vector<uint32_t>& engram_map);
};

}  // namespace reprise::engine::cuda
