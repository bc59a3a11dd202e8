#pragma once

#include "gpu/cuda/kernels.h"

// Index scores of rows each for itself, over all the keys they see, at V4.1's shape (32 heads of
// 128): keys come through a ring in shared memory.
namespace reprise::engine::cuda {

// Whether a call for keys in order is one for the ring: they lie as its copies want them, and there
// are enough for the whole chip.
bool RingTakes(const ScoreCall& call, uint32_t entries_max);
cudaError_t LaunchRingScores(const ScoreCall& call, uint32_t entries_max, cudaStream_t stream);

}  // namespace reprise::engine::cuda
