#include "gpu/engine/live_window.h"

#include "protocol/base/bytes.h"

namespace reprise::engine {

LiveWindowLayout LiveWindowLayout::For(const ModelGeometry& geometry) {
  constexpr uint64_t kLine = 64;
  LiveWindowLayout layout;
  layout.window = geometry.config.window;
  layout.ring_rows = layout.window + kDraftRowsMax;
  layout.code_bytes = geometry.window_row.code_bytes;
  layout.scale_bytes = geometry.window_row.scale_bytes;
  layout.latent = geometry.config.head_dim;
  layout.layer_stride =
      AlignUp(uint64_t{layout.ring_rows} * (layout.code_bytes + layout.scale_bytes), kLine);
  layout.tails_offset = geometry.all_layers() * layout.layer_stride;
  layout.tail_stride = AlignUp(uint64_t{kTailRows} * 2 * layout.latent * sizeof(float), kLine);
  uint32_t tails = 0;
  for (uint32_t layer = 0; layer < geometry.all_layers(); ++layer) {
    const LayerPlan& plan = geometry.layers[layer];
    const bool has_tail = plan.mode == LayerMode::kFull && plan.ratio == 2;
    layout.tail_of_layer.push_back(has_tail ? tails++ : kNoLayer);
  }
  layout.bytes = layout.tails_offset + tails * layout.tail_stride;
  return layout;
}

}  // namespace reprise::engine
