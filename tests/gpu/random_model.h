#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu/checkpoint/checkpoint.h"
#include "gpu/cpu/cpu_engine.h"

namespace reprise::engine::test {

// How many shapes, from seed 1, a test goes through. Sanitizers take ten times as long; what TSan
// looks for does not depend on the shape.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kRandomShapes = 2;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kRandomShapes = 3;
#else
inline constexpr uint64_t kRandomShapes = 8;
#endif

// A model of random shape and random weights of the right types, tiny, without Engram: the same for
// the same seed.
ModelConfig RandomConfig(uint64_t seed);

// Random tensors for every name that a model of this geometry has.
std::unique_ptr<Checkpoint> RandomCheckpoint(const ModelGeometry& geometry, uint64_t seed);

std::unique_ptr<cpu::CpuEngine> RandomEngine(const ModelGeometry& geometry,
                                             const Checkpoint& checkpoint, uint32_t threads);

}  // namespace reprise::engine::test
