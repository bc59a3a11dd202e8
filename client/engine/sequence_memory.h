#pragma once

#include <cstddef>
#include <vector>

#include "gpu/engine/engine.h"
#include "protocol/base/bytes.h"

namespace reprise::bench {

// Memory of the engine's to lend to one sequence. Must not outlive the engine. One thread.
class SequenceBuffers {
 public:
  static absl::StatusOr<SequenceBuffers> Make(const engine::Engine& engine, uint32_t tokens) {
    constexpr uint64_t kAlign = 256;
    SequenceBuffers buffers(engine);
    const uint64_t payload = AlignUp(uint64_t{engine.geometry().record.payload_bytes}, kAlign);
    const uint32_t count = tokens / kBlockTokens + 1;
    RP_ASSIGN(buffers.payloads_, engine.memory().Allocate(count * payload));
    RP_ASSIGN(buffers.window_, engine.memory().Allocate(engine.window_layout().bytes));
    for (uint32_t i = 0; i < count; ++i) {
      buffers.blocks_.push_back(buffers.payloads_.data() + i * payload);
    }
    return buffers;
  }

  // Valid until the buffers are moved or gone.
  engine::SequenceMemory lent() const { return {.blocks = blocks_, .window = window_.data()}; }

  // The same state as `other`, which was made alike.
  absl::Status CopyFrom(const SequenceBuffers& other) {
    const engine::MemoryCopy copies[] = {
        {payloads_.data(), other.payloads_.data(), payloads_.bytes()},
        {window_.data(), other.window_.data(), window_.bytes()}};
    return engine_->memory().Copy(copies);
  }

 private:
  explicit SequenceBuffers(const engine::Engine& engine) : engine_(&engine) {}

  const engine::Engine* engine_;
  engine::EngineBuffer payloads_, window_;
  std::vector<std::byte*> blocks_;
};

}  // namespace reprise::bench
