#pragma once

#include <optional>
#include <vector>

#include "gpu/cuda/device.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear.h"
#include "gpu/cuda/shard.h"
#include "gpu/model/model_geometry.h"
#include "gpu/tokenizer/engram_hash.h"

// A model's weights in device memory; or a rank's part of them (Shard). A rank has heads by groups
// of wo_a, with what reads and writes them; experts and Engram rows side by side; tokens of the
// head; and all the rest, so that every rank makes all KV. The shared expert of a layer is whole on
// one rank, by turns: its launch with the routed ones takes a matrix of their shape.
//
// V4.1-Flash: of 510 GB, 507 are cut up (experts 296, Engram's tables 203) and 3 are on every rank.
// A rank of 2 has 256 GB, of 4 has 130, of 8 has 66: four GPUs of 141 GB hold it with a few GB for
// KV, eight with half of their memory.
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
  uint32_t own_first = 0, own = 0;  // Of them, those that this rank has.
  // Routed experts end to end; w1 and w3 interleaved by eights.
  OwnedLinear up, down;
  OwnedLinear shared_up, shared_down;
  bool shared_here = true;
};

struct EngramDevice {
  EngramHash hash;
  DeviceMemory codes, scales;
  Shard::Part rows;  // Of the table.
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
  DeviceMemory markov_embed;  // [vocab, rank] bf16, then a tile of inputs.
};

// INVALID_ARGUMENT, with what does not divide, for a model that so many ranks cannot share.
absl::Status CheckShards(const ModelConfig& config, uint32_t ranks);

struct DeviceWeights {
  DeviceMemory embed;  // [vocab, hidden] bf16
  OwnedLinear head;
  Shard::Part head_tokens;
  DeviceMemory norm;
  std::vector<LayerDevice> layers;  // Backbone, then draft stages.
  std::optional<DraftDevice> draft;
  uint64_t bytes = 0;

  static absl::StatusOr<DeviceWeights> Load(const ModelGeometry& geometry,
                                            const Checkpoint& checkpoint,
                                            const std::vector<uint32_t>& engram_map,
                                            const Shard& shard);
  // Made on the device, in the right types and sizes and of magnitudes that keep activations
  // finite: to measure with, where no checkpoint is.
  static absl::StatusOr<DeviceWeights> Random(const ModelGeometry& geometry,
                                              const std::vector<uint32_t>& engram_map,
                                              const Shard& shard);
};

}  // namespace reprise::engine::cuda
