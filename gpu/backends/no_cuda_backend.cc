#include "gpu/backends/cuda_backend.h"

namespace reprise::engine {
namespace {

absl::Status NotBuilt() {
  return FailedPrecondition(
      "this program was built without the CUDA backend; build it with the preset cuda (cmake "
      "--preset cuda, with nvcc 13), for a GPU of compute capability 9.0");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> MakeCudaEngine(const ModelGeometry&, const Checkpoint&,
                                                       const std::vector<uint32_t>&,
                                                       const std::vector<int>&, uint32_t) {
  return NotBuilt();
}

absl::StatusOr<std::string> DescribeCudaDevice(int) { return NotBuilt(); }

}  // namespace reprise::engine
