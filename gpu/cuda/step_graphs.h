#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <vector>

#include "protocol/base/status.h"

// Steps of few rows are hundreds of short launches, which the host cannot queue as fast as they
// run. A step whose launches were seen before is queued as one CUDA graph.
namespace reprise::engine::cuda {

// Everything that decides a step's launches and their arguments; what they read of it in device
// memory may differ from step to step.
using StepKey = std::vector<uint64_t>;

// One thread.
class StepGraphs {
 public:
  StepGraphs() = default;
  StepGraphs(StepGraphs&&) = default;
  ~StepGraphs() { Clear(); }

  // The graph of a step, to be given to Launch: null the first time, when the caller queues the
  // step itself; the second time what `launch` queues on `stream` becomes one, which is kept.
  // `launch` must queue the same whenever the key is the same, and only launches.
  absl::StatusOr<cudaGraphExec_t> Find(const StepKey& key, cudaStream_t stream,
                                       const std::function<absl::Status()>& launch);
  absl::Status Launch(cudaGraphExec_t graph, cudaStream_t stream);
  // Launches that `launch` queues, which are not run.
  static absl::StatusOr<uint32_t> Count(cudaStream_t stream,
                                        const std::function<absl::Status()>& launch);
  // When pointers that graphs hold are no longer valid.
  void Clear();

  uint64_t replayed() const { return replayed_; }

 private:
  static constexpr size_t kKept = 64;  // Of the keys used last.
  struct Entry {
    cudaGraphExec_t graph = nullptr;
    std::list<const StepKey*>::iterator used;
  };

  std::map<StepKey, Entry> entries_;
  std::list<const StepKey*> by_use_;  // Latest first.
  uint64_t replayed_ = 0;
};

}  // namespace reprise::engine::cuda
