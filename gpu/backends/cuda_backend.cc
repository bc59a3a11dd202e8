#include "gpu/backends/cuda_backend.h"

#include <utility>

#include "gpu/cuda/cuda_engine.h"

namespace reprise::engine {

absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(const ModelGeometry& geometry,
                                                       const Checkpoint& checkpoint,
                                                       const std::vector<uint32_t>& engram_map,
                                                       int ordinal, uint32_t rows_max) {
  RP_ASSIGN(std::unique_ptr<cuda::CudaEngine> engine,
            cuda::CudaEngine::Make(geometry, checkpoint, engram_map,
                                   {.device = ordinal, .rows_max = rows_max}));
  return std::unique_ptr<Engine>(std::move(engine));
}

absl::StatusOr<std::string> DescribeCudaDevice(int ordinal) {
  RP_ASSIGN(const cuda::DeviceFacts facts, cuda::UseDevice(ordinal));
  return facts.name + ", compute capability " + std::to_string(facts.major) + "." +
         std::to_string(facts.minor) + ", " + std::to_string(facts.free_bytes >> 30) + " of " +
         std::to_string(facts.memory_bytes >> 30) + " GiB free";
}

}  // namespace reprise::engine
