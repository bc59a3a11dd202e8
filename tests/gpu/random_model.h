#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"
#include "gpu/cpu/cpu_engine.h"

namespace reprise::engine::test {

// A model of random shape and random weights of the right types, tiny, without Engram: the same for
// the same seed.
ModelConfig RandomConfig(uint64_t seed);

// Random tensors for every name that a model of this geometry has.
std::unique_ptr<Checkpoint> RandomCheckpoint(const ModelGeometry& geometry, uint64_t seed);

std::unique_ptr<cpu::CpuEngine> RandomEngine(const ModelGeometry& geometry,
                                             const Checkpoint& checkpoint, uint32_t threads);

}  // namespace reprise::engine::test
