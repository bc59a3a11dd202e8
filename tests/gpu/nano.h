#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"
#include "gpu/cpu/cpu_engine.h"
#include "gpu/model/model_geometry.h"

namespace reprise::engine::test {

// The model of gpu/nano, loaded once for a test program.
const ModelGeometry& NanoGeometry();
const Checkpoint& NanoCheckpoint();
std::vector<uint32_t> NanoEngramMap();
std::string NanoPath(const std::string& name);  // Below gpu/nano.
std::unique_ptr<cpu::CpuEngine> NanoEngine(const CpuEngineOptions& options = {});

// Memory of one sequence, and calls on it.
class TestSequence {
 public:
  explicit TestSequence(const Engine& engine, uint32_t tokens_max = 2048);

  SequenceMemory memory() { return {.blocks = blocks_, .window = window_.data()}; }
  std::byte* window() { return window_.data(); }
  std::byte* block(uint32_t index) { return blocks_[index]; }
  uint32_t block_count() const { return static_cast<uint32_t>(blocks_.size()); }

  // All layers on tokens [first, tokens.size()), `chunk` rows a call; logits of all of them.
  std::vector<float> RunExact(Engine& engine, const std::vector<TokenId>& tokens, uint32_t first,
                              uint32_t chunk);

  // Everything that is stored for the first `length` tokens, as one string: records, the window
  // rows that a next row would see, and the tail at an odd length.
  std::string StoredBytes(const Engine& engine, uint32_t length, uint32_t windows_from = 0);
  std::string RecordBytes(const Engine& engine, uint32_t length);

 private:
  std::vector<std::byte> payloads_;
  std::vector<std::byte*> blocks_;
  std::vector<std::byte> window_;
};

}  // namespace reprise::engine::test
