#include "gpu/backends/cuda_backend.h"

#include <utility>

#include "gpu/cuda/cuda_engine.h"
#include "gpu/cuda/sharded_engine.h"

namespace reprise::engine {
namespace {

// What a machine without a GPU says, with what to do.
absl::Status Explain(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return status;
  return FailedPrecondition(Message(status) +
                            "; the CUDA backend needs a GPU of compute capability 9.0 and its "
                            "driver: choose the device cpu, or a machine with one");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(const ModelGeometry& geometry,
                                                       const Checkpoint& checkpoint,
                                                       const std::vector<uint32_t>& engram_map,
                                                       const std::vector<int>& ordinals,
                                                       uint32_t rows_max) {
  if (ordinals.size() > 1) {
    auto sharded = cuda::ShardedCudaEngine::Make(geometry, checkpoint, engram_map,
                                                 {.devices = ordinals, .rows_max = rows_max});
    if (!sharded.ok()) return Explain(sharded.status());
    return std::unique_ptr<Engine>(*std::move(sharded));
  }
  auto engine = cuda::CudaEngine::Make(geometry, checkpoint, engram_map,
                                       {.device = ordinals.at(0), .rows_max = rows_max});
  if (!engine.ok()) return Explain(engine.status());
  return std::unique_ptr<Engine>(*std::move(engine));
}

absl::StatusOr<std::string> DescribeCudaDevice(int ordinal) {
  const auto facts = cuda::UseDevice(ordinal);
  if (!facts.ok()) return Explain(facts.status());
  return facts->name + ", compute capability " + std::to_string(facts->major) + "." +
         std::to_string(facts->minor) + ", " + std::to_string(facts->free_bytes >> 30) + " of " +
         std::to_string(facts->memory_bytes >> 30) + " GiB free";
}

}  // namespace reprise::engine
