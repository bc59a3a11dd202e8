#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/cuda/communicator.h"
#include "gpu/cuda/cuda_engine.h"
#include "gpu/cuda/rank_threads.h"
#include "gpu/cuda/sharded_memory.h"

namespace reprise::engine::cuda {

struct ShardedOptions {
  std::vector<int> devices;  // Two or more, by ordinal; rank i is the i-th.
  uint32_t rows_max = 512;   // As CudaEngineOptions.
  // Collectives become part of the steps' graphs. False: to find out whether a step that hangs does
  // so without them.
  bool graphs = true;
};

// One model on several GPUs of this machine: a CudaEngine for each, and a thread that drives it.
// Experts, heads, Engram's rows and the head's tokens are cut up (weights.h); every rank computes
// and stores all KV, the same bytes. Rows become the same bytes in any pieces and batches, but not
// quite those of one GPU: sums over ranks are added in another order.
//
// A call that fails on a rank fails with its name. Errors before the ranks met (memory is short)
// leave all as it was; after others, which cut the ranks' ties so that none waits for ever, every
// call is refused.
class ShardedCudaEngine final : public Engine {
 public:
  // FAILED_PRECONDITION, with what to do: without NCCL; or in a process whose CUDA runtime was
  // started before with kernels that are loaded when first used (CUDA_MODULE_LOADING), which waits
  // for what runs on the device, and that may wait for another rank.
  static absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> Make(
      const ModelGeometry& geometry, const Checkpoint& checkpoint,
      const std::vector<uint32_t>& engram_map, const ShardedOptions& options);
  // With DeviceWeights::Random.
  static absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> MakeRandom(
      const ModelGeometry& geometry, const std::vector<uint32_t>& engram_map,
      const ShardedOptions& options);

  const ModelGeometry& geometry() const override { return engines_[0]->geometry(); }
  const LiveWindowLayout& window_layout() const override { return engines_[0]->window_layout(); }
  std::string_view backend() const override { return backend_; }
  uint32_t rows_max() const override { return engines_[0]->rows_max(); }
  EngineMemory& memory() const override { return *memory_; }
  absl::Status EnterThread() override { return engines_[0]->EnterThread(); }
  absl::Status ForwardRows(std::span<const Segment> batch, std::span<LogitRow> rows) override;
  absl::Status Draft(std::span<const DraftRequest> requests,
                     std::span<DraftResult> results) override;
  EngineCounters counters() const override { return engines_[0]->counters(); }

  uint32_t ranks() const { return static_cast<uint32_t>(engines_.size()); }
  const CudaEngine& rank(uint32_t rank) const { return *engines_[rank]; }
  // As CudaEngine::RunLayer; and the memory of all ranks, to compare them.
  absl::Status RunLayer(uint32_t layer, const Segment& segment, std::vector<float>* stream,
                        std::vector<float>* pre);
  const ShardedMemory& ranks_memory() const { return *memory_; }

 private:
  // Makes the engine of a rank, on its thread.
  using MakeRank =
      std::function<absl::StatusOr<std::unique_ptr<CudaEngine>>(const CudaEngineOptions& options)>;

  explicit ShardedCudaEngine(const ShardedOptions& options);
  static absl::StatusOr<std::unique_ptr<ShardedCudaEngine>> MakeWith(const ShardedOptions& options,
                                                                     const MakeRank& make);
  // On every rank's thread; after a failure that others could wait for, all ties are cut.
  absl::Status OnRanks(const std::function<absl::Status(uint32_t rank)>& work);
  // The segment in a rank's memory, `blocks` being its.
  absl::StatusOr<Segment> OnRank(uint32_t rank, const Segment& segment,
                                 std::vector<std::byte*>* blocks) const;
  absl::Status Named(uint32_t rank, const absl::Status& status) const;

  const std::vector<int> devices_;
  const std::string backend_;
  StepGate gate_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  std::vector<std::unique_ptr<CudaEngine>> engines_;  // Their graphs go before communicators.
  std::unique_ptr<RankThreads> threads_;
  std::unique_ptr<ShardedMemory> memory_;
  absl::Status broken_;  // Why calls are refused.
};

}  // namespace reprise::engine::cuda
