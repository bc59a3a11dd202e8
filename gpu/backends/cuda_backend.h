#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu/backends/make_engine.h"

// The CUDA backend as far as this build has it: cuda_backend.cc, or no_cuda_backend.cc.
namespace reprise::engine {

// On one GPU, or shared by several. FAILED_PRECONDITION, with what to do, where there is none.
absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(const ModelGeometry& geometry,
                                                       const Checkpoint& checkpoint,
                                                       const std::vector<uint32_t>& engram_map,
                                                       const std::vector<int>& ordinals,
                                                       uint32_t rows_max);
absl::StatusOr<std::string> DescribeCudaDevice(int ordinal);

}  // namespace reprise::engine
