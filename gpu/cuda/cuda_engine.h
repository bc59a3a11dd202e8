#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda/cuda_memory.h"
#include "gpu/cuda/device.h"
#include "gpu/cuda/kernels.h"
#include "gpu/cuda/linear_layout.h"
#include "gpu/cuda/shard.h"
#include "gpu/cuda/step_graphs.h"
#include "gpu/cuda/step_upload.h"
#include "gpu/cuda/weights.h"
#include "gpu/engine/engine.h"
#include "gpu/engine/rope.h"
#include "protocol/base/bytes.h"

namespace reprise::engine::cuda {

inline Bf16Bits* Bits(const DeviceMemory& memory) { return memory.as<Bf16Bits>(); }
inline float* Floats(const DeviceMemory& memory) { return memory.as<float>(); }

struct CudaEngineOptions {
  int device = 0;
  uint32_t rows_max = 512;  // Of one call: decides the memory for activations.
  bool graphs = true;       // Steps of few rows that come again are queued as one graph.
  RankPlace place;          // Of an engine that is one of several (ShardedCudaEngine).
};

// The CUDA backend, for one GPU of compute capability 9.0. Blocks and windows that segments lend
// are device memory. Forward queues all steps on one stream and waits for the last.
//
// As a rank among others it has its part of the weights (weights.h), and all KV. Its ForwardRows,
// Draft and RunLayer are then called on all ranks with the same rows, each by a thread of its
// own on its device. One that fails after the ranks met leaves the others waiting on their devices,
// until their communicators are cut off.
class CudaEngine final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEngine>> Make(const ModelGeometry& geometry,
                                                          const Checkpoint& checkpoint,
                                                          const std::vector<uint32_t>& engram_map,
                                                          const CudaEngineOptions& options);
  // With DeviceWeights::Random.
  static absl::StatusOr<std::unique_ptr<CudaEngine>> MakeRandom(
      const ModelGeometry& geometry, const std::vector<uint32_t>& engram_map,
      const CudaEngineOptions& options);

  const ModelGeometry& geometry() const override { return geometry_; }
  const LiveWindowLayout& window_layout() const override { return windows_; }
  std::string_view backend() const override { return "cuda/sm90"; }
  uint32_t rows_max() const override { return rows_max_; }
  // A rank among others gives its columns of logits that are asked for, and the same tokens as all.
  absl::Status ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) override;
  absl::Status Draft(std::span<const DraftRequest> requests,
                     std::span<DraftResult> results) override;
  EngineCounters counters() const override { return counters_; }

  EngineMemory& memory() const override { return *memory_; }
  CudaMemory& device_memory() const { return *memory_; }
  absl::Status EnterThread() override { return memory_->MakeCurrent(); }

  const Stream& stream() const { return stream_; }
  uint64_t weight_bytes() const { return weights_.bytes; }
  uint64_t workspace_bytes() const { return workspace_bytes_; }

  // As CpuEngine::RunLayer: one layer on the segment's rows, from `stream` [rows][copies][hidden]
  // and `pre` [rows][copies], which it leaves as they go on.
  absl::Status RunLayer(uint32_t layer, const Segment& segment, std::vector<float>* stream,
                        std::vector<float>* pre);
  // Of an engine that is alone: launches that one layer takes for the segment's rows, of which all
  // go through it.
  absl::StatusOr<uint32_t> LaunchesOfLayer(uint32_t layer, const Segment& segment);
  // Steps that ran as graphs.
  uint64_t graphs_replayed() const { return graphs_.replayed(); }
  void DropGraphs() { graphs_.Clear(); }
  // Of a rank: whether the ranks met since BeginApart, so that they may be waiting for one another.
  bool met() const { return met_; }
  void BeginApart() { met_ = false; }
  // [rows][index_topk], of the last index layer that ran.
  absl::StatusOr<std::vector<int32_t>> Selections(uint32_t rows);

 private:
  // Device memory for what the steps of a layer leave to one another.
  struct Workspace {
    DeviceMemory stream[2], pre[2], partials, post, comb;
    DeviceMemory y, x, x_round, h;
    DeviceMemory projected, kv_codes, kv_scales, query, attended, low;
    DeviceMemory a, g, latents, keys;
    DeviceMemory index_query, index_weights, selected, scores, candidates, candidate_counts;
    DeviceMemory select_room, attention_room;
    DeviceMemory gate, expert_of, weight_of, slot_of, row_of, slot_weights, tiles, tile_count;
    DeviceMemory tickets;  // The router's.
    DeviceMemory inner, expert_out, shared_inner, shared_out;
    DeviceMemory engram, engram_kv, taps, logits;
    // Of drafts: what corrects the logits of one row of each request; what confidence follows from.
    DeviceMemory corrections, draft_inputs;
    DeviceMemory chosen;  // Tokens [rows_max], then confidences.
    DeviceMemory frequencies[2];
    // Of several ranks: sums before they are added; what all gave; the logits of all.
    DeviceMemory part, gathered, joined_logits;
  };

  CudaEngine(const ModelGeometry& geometry, const CudaEngineOptions& options);
  static absl::StatusOr<std::unique_ptr<CudaEngine>> MakeWith(const ModelGeometry& geometry,
                                                              DeviceWeights weights,
                                                              const CudaEngineOptions& options);
  absl::Status Allocate();
  absl::Status Begin(std::span<const Segment> batch, uint32_t draws = 0);
  absl::Status BeginLayer(uint32_t layer, const Segment& segment);
  absl::Status Embed();
  // All launches of a call that was begun.
  absl::Status Run(bool choose);
  absl::Status RunDrafts();
  // Begin a call; *graph: what its launches are, null when they are to be queued one by one.
  absl::Status Prepare(std::span<const Segment> batch, std::span<const LogitRow> rows,
                       cudaGraphExec_t* graph);
  absl::Status PrepareDrafts(std::span<const DraftRequest> requests, cudaGraphExec_t* graph);
  enum class StepKind : uint64_t { kForward, kForwardAndChoose, kDrafts };
  absl::Status FindGraph(StepKind kind, const std::function<absl::Status()>& run,
                         cudaGraphExec_t* graph);
  // Wait, and take what the call gave.
  absl::Status TakeRows(std::span<LogitRow> rows);
  absl::Status TakeDrafts(std::span<DraftResult> results);
  // With the other ranks, when all that needs memory is done and nothing is queued that they wait
  // for.
  absl::Status Meet(const absl::Status& prepared);
  void Count();
  void FillEngram(std::span<const Segment> batch);

  // The steps of a layer, on the rows of `half`.
  absl::Status Layer(uint32_t layer, const HalfStep& half, bool write_global);
  absl::Status Mix(const MhcDevice& mhc, const DeviceMemory& norm, uint32_t rows);
  // What the last sublayer gave is added to the stream; else the next Mix does it on its way.
  absl::Status Update(uint32_t rows);
  absl::Status Linear(const OwnedLinear& matrix, const DeviceMemory& x, const DeviceMemory& y,
                      uint32_t rows, LinearOutput output = LinearOutput::kBf16);
  absl::Status Project(uint32_t layer, const HalfStep& half, bool drafts);
  // From the queries' low-rank part.
  absl::Status FromLow(const OwnedLinear& matrix, const DeviceMemory& y, uint32_t rows);
  absl::Status WriteGlobal(uint32_t layer, const HalfStep& half);
  absl::Status Select(uint32_t layer, const HalfStep& half);
  absl::Status Attend(uint32_t layer, const HalfStep& half, bool drafts);
  absl::Status ProjectOut(uint32_t layer, uint32_t rows);
  absl::Status FeedForward(uint32_t layer, const HalfStep& half);
  absl::Status AddEngram(uint32_t layer, const HalfStep& half);
  absl::Status WriteDecoderSource();
  absl::Status WriteDraftContext(const HalfStep& half);
  absl::Status RunDraftStages();
  absl::Status QueueDraftChoices();
  absl::Status Logits(const HalfStep& half);
  float* Confidences() const { return Floats(work_.chosen) + AlignUp(rows_max_, 64); }

  // Among ranks (cuda_ranks.cc). Where this rank's part of a sum [rows][hidden] goes; and the sum
  // over all of them, to be added to the stream next.
  float* OwnPart(uint32_t rows);
  absl::Status SumOverRanks(uint32_t rows);
  absl::Status LookUpEngram(const EngramDevice& engram, const uint64_t* table_rows, uint32_t rows);
  // All columns of the rows' logits on every rank, in WholeLogits.
  absl::Status JoinLogits(uint32_t rows);
  uint64_t WidestLogits() const {
    return place_.shard.LargestPart(config_.vocab_size, kTileOutputs);
  }
  const DeviceMemory& WholeLogits() const {
    return place_.shard.alone() ? work_.logits : work_.joined_logits;
  }
  // This rank's columns of some rows' logits, [rows][vocab_size] on the host.
  absl::Status CopyLogits(uint32_t first, uint32_t rows, float* to);

  WindowView WindowsOf(uint32_t layer) const;
  EntryView EntriesOf(uint32_t layer) const;
  int RotationOf(uint32_t layer) const { return geometry_.layers[layer].ratio == 0 ? 0 : 1; }

  ModelGeometry geometry_;
  const ModelConfig& config_;
  RankPlace place_;
  uint32_t heads_, groups_;  // Of attention and of wo_a, on this rank.
  bool graphs_wanted_;
  bool met_ = false;
  LiveWindowLayout windows_;
  Rope rope_;
  uint32_t rows_max_;
  StreamShape shape_;
  DeviceWeights weights_;
  Workspace work_;
  uint64_t workspace_bytes_ = 0;
  Stream stream_;
  std::unique_ptr<CudaMemory> memory_;
  StepUpload step_;
  PinnedMemory chosen_;  // As work_.chosen.
  StepGraphs graphs_;
  uint64_t graphs_of_ = 0;  // StepUpload::moved when they were made.
  int now_ = 0;             // Of stream[2].
  int pre_ = 0;             // Of pre[2].
  StreamAdd pending_;       // Not yet in the stream.
  MixesCall mixes_left_;    // By the last Mix, for the next launch that takes them along.
  bool pooled_ = false;     // Candidates of the last source that writes them exclude some.
  uint32_t taps_taken_ = 0;
  uint64_t scores_max_ = 0;             // Floats of `scores`.
  std::vector<uint64_t> engram_first_;  // By engram layer: where its table rows begin.
  EngineCounters counters_;
};

}  // namespace reprise::engine::cuda
