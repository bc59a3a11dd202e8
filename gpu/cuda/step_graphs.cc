#include "gpu/cuda/step_graphs.h"

#include "gpu/cuda/device.h"

namespace reprise::engine::cuda {
namespace {

// What `launch` queues, as a graph that the caller destroys.
absl::StatusOr<cudaGraph_t> Capture(cudaStream_t stream,
                                    const std::function<absl::Status()>& launch) {
  RP_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const absl::Status launched = launch();
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (launched.ok() && ended == cudaSuccess) return graph;
  if (graph != nullptr) cudaGraphDestroy(graph);
  return launched.ok() ? CudaStatus(ended, "capturing a step") : launched;
}

}  // namespace

absl::StatusOr<cudaGraphExec_t> StepGraphs::Find(const StepKey& key, cudaStream_t stream,
                                                 const std::function<absl::Status()>& launch) {
  const auto [at, first] = entries_.try_emplace(key);
  Entry& entry = at->second;
  if (first) {
    by_use_.push_front(&at->first);
    entry.used = by_use_.begin();
    if (entries_.size() > kKept) {
      const auto oldest = entries_.find(*by_use_.back());
      if (oldest->second.graph != nullptr) cudaGraphExecDestroy(oldest->second.graph);
      by_use_.pop_back();
      entries_.erase(oldest);
    }
    return nullptr;
  }
  by_use_.splice(by_use_.begin(), by_use_, entry.used);
  if (entry.graph == nullptr) {
    RP_ASSIGN(const cudaGraph_t graph, Capture(stream, launch));
    const cudaError_t made = cudaGraphInstantiate(&entry.graph, graph, 0);
    cudaGraphDestroy(graph);
    RP_TRY(CudaStatus(made, "making a step's graph"));
  }
  return entry.graph;
}

absl::Status StepGraphs::Launch(cudaGraphExec_t graph, cudaStream_t stream) {
  ++replayed_;
  return CudaStatus(cudaGraphLaunch(graph, stream), "a step's graph");
}

absl::StatusOr<uint32_t> StepGraphs::Count(cudaStream_t stream,
                                           const std::function<absl::Status()>& launch) {
  RP_ASSIGN(const cudaGraph_t graph, Capture(stream, launch));
  size_t nodes = 0;
  const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes);
  cudaGraphDestroy(graph);
  RP_TRY(CudaStatus(counted, "counting launches"));
  return static_cast<uint32_t>(nodes);
}

void StepGraphs::Clear() {
  for (const auto& [key, entry] : entries_) {
    if (entry.graph != nullptr) cudaGraphExecDestroy(entry.graph);
  }
  entries_.clear();
  by_use_.clear();
}

}  // namespace reprise::engine::cuda
