#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/engine/engine.h"

namespace reprise::engine {

struct EngineOptions {
  // "cpu"; "cuda" or "cuda:<ordinal>", a GPU of compute capability 9.0; "cuda:0,1": several of
  // them, which share the model; "auto": the first GPU where the build and the machine have one,
  // else the CPU.
  std::string device = "auto";
  uint32_t threads = 0;  // Of the CPU backend, with the caller; 0: one per core.
  // Of one call: decides the memory for activations. 0: 512 on the CPU, 2,048 on a GPU.
  uint32_t rows_max = 0;
  // Of the CPU backend: "avx512", "avx2", "portable"; empty: the best of this machine.
  std::string_view kernels;
};

// Makes an engine for a checkpoint that stays as long as the engine does. `note`: what the caller
// should tell its user once; empty for nothing.
using EngineMaker = std::function<absl::StatusOr<std::unique_ptr<Engine>>(
    const ModelGeometry& geometry, const Checkpoint& checkpoint, std::vector<uint32_t> engram_map,
    const EngineOptions& options, std::string* note)>;

// Of the backend that `device` names. FAILED_PRECONDITION, with what to do, where this build or
// this machine does not have it; INVALID_ARGUMENT for a name that means nothing.
absl::StatusOr<std::unique_ptr<Engine>> MakeEngine(const ModelGeometry& geometry,
                                                   const Checkpoint& checkpoint,
                                                   std::vector<uint32_t> engram_map,
                                                   const EngineOptions& options, std::string* note);

// INVALID_ARGUMENT, with the names that there are, for a device that MakeEngine would not know.
absl::Status CheckDeviceName(const std::string& device);

// For a person: the GPU that "cuda" would be, or why there is none.
absl::StatusOr<std::string> DescribeGpu();

}  // namespace reprise::engine
