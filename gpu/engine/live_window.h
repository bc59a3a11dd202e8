#pragma once

#include <cstdint>
#include <vector>

#include "gpu/model/model_geometry.h"

namespace reprise::engine {

// The window state of a sequence that is being run: for every layer and draft stage a ring of
// window rows (E4M3 codes, then UE8M0 scales), and for every ratio-2 source a ring of the fp32
// (a, g) of even positions. A row's place follows from its absolute position alone.
//
// The rings are a little longer than the window: so many rows of a verified draft can be taken back
// without anything that the earlier position needs having been overwritten.
struct LiveWindowLayout {
  static constexpr uint32_t kDraftRowsMax = 16;  // Rows of one call that may be taken back.
  static constexpr uint32_t kTailRows = 16;      // Even positions in a tail ring.

  uint32_t window = 0;     // Positions that a row sees, itself included: 128.
  uint32_t ring_rows = 0;  // window + kDraftRowsMax
  uint32_t code_bytes = 0;
  uint32_t scale_bytes = 0;
  uint32_t latent = 0;        // Values of a tail's a, and of its g.
  uint64_t layer_stride = 0;  // Bytes from layer to layer; draft stages follow the backbone.
  uint64_t tails_offset = 0;  // After all layers.
  uint64_t tail_stride = 0;   // Bytes from source to source.
  std::vector<uint32_t> tail_of_layer;  // Index of a layer's tail ring, or kNoLayer.
  uint64_t bytes = 0;

  static LiveWindowLayout For(const ModelGeometry& geometry);

  uint8_t* codes(std::byte* state, uint32_t layer, uint32_t position) const {
    return reinterpret_cast<uint8_t*>(state + layer * layer_stride) +
           size_t{position % ring_rows} * code_bytes;
  }
  uint8_t* scales(std::byte* state, uint32_t layer, uint32_t position) const {
    return reinterpret_cast<uint8_t*>(state + layer * layer_stride) +
           size_t{ring_rows} * code_bytes + size_t{position % ring_rows} * scale_bytes;
  }
  // (a, g) of an even position: 2 x latent floats.
  float* tail(std::byte* state, uint32_t layer, uint32_t position) const {
    return reinterpret_cast<float*>(state + tails_offset + tail_of_layer[layer] * tail_stride) +
           size_t{position / 2 % kTailRows} * 2 * latent;
  }
};

}  // namespace reprise::engine
