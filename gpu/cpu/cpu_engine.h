#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/cpu/step.h"
#include "gpu/engine/engine.h"

namespace reprise::engine::cpu {

// The CPU backend. Forward lays all rows of a call end to end and takes them through the layers;
// the files of this folder each hold one part of a layer.
class CpuEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<CpuEngine>> Make(const ModelGeometry& geometry,
                                                         const Checkpoint& checkpoint,
                                                         std::vector<uint32_t> engram_map,
                                                         const CpuEngineOptions& options);

  const ModelGeometry& geometry() const override { return geometry_; }
  const LiveWindowLayout& window_layout() const override { return windows_; }
  std::string_view backend() const override { return backend_; }
  uint32_t rows_max() const override { return rows_max_; }
  absl::Status ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) override;
  absl::Status Draft(std::span<const DraftRequest> requests,
                     std::span<DraftResult> results) override;
  EngineCounters counters() const override { return counters_; }

  // ---- To compare with another implementation, layer by layer ----------------------------------
  // Runs one layer on the segment's rows, from `stream` [rows][copies][hidden] and `pre`
  // [rows][copies] as they enter it, and leaves there what goes on. Writes windows, and global
  // entries of rows from write_from on. A Reuse layer takes the selection that the call before
  // left, so layers come in order.
  absl::Status RunLayer(uint32_t layer, const Segment& segment, Floats* stream, Floats* pre);
  // The selections [rows][index_topk] of the last index layer.
  std::span<const int32_t> selections() const { return step_.selected; }

 private:
  CpuEngine(const ModelGeometry& geometry, ModelWeights weights, const Kernels& kernels,
            uint32_t threads, uint32_t rows_max);

  void Begin(std::span<const Segment> batch);
  void Layer(uint32_t layer, bool write_global);
  void TakeTap();
  void WriteDecoderSource();
  void EnterDecoder();
  void Logits(std::span<LogitRow> rows);

  ModelGeometry geometry_;
  ModelWeights weights_;
  LiveWindowLayout windows_;
  Machine machine_;
  Rope rope_;
  std::string backend_;
  uint32_t rows_max_;
  Step step_;
  EngineCounters counters_;
};

}  // namespace reprise::engine::cpu
