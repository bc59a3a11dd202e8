#pragma once

#include <cstddef>
#include <vector>

#include "gpu/engine/engine.h"

namespace reprise::bench {

// Memory to lend to one sequence, on the heap. Copies hold the same state.
struct SequenceBuffers {
  SequenceBuffers(const engine::Engine& engine, uint32_t tokens)
      : payload_bytes(AlignUp(engine.geometry().record.payload_bytes, 64)),
        payloads((tokens / kBlockTokens + 1) * payload_bytes),
        window(engine.window_layout().bytes) {}

  // Valid until the buffers are copied to, moved or gone.
  engine::SequenceMemory lent() {
    blocks.clear();
    for (size_t at = 0; at < payloads.size(); at += payload_bytes) {
      blocks.push_back(payloads.data() + at);
    }
    return {.blocks = blocks, .window = window.data()};
  }

  size_t payload_bytes;
  std::vector<std::byte> payloads;
  std::vector<std::byte> window;
  std::vector<std::byte*> blocks;
};

}  // namespace reprise::bench
