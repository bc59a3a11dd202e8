#pragma once

#include "gpu/cuda/kernels.h"

namespace reprise::engine::cuda {

// V4.1's shape, 64 heads of 512, or eights of them: by the matrix units. LaunchAttention chooses it
// where it fits.
bool MatrixAttentionFits(const AttentionCall& call);
cudaError_t LaunchMatrixAttention(const AttentionCall& call, cudaStream_t stream);
// The same of few rows, sooner: where there is room, and MatrixAttention fits.
bool SpreadAttentionFits(const AttentionCall& call);
cudaError_t LaunchSpreadAttention(const AttentionCall& call, cudaStream_t stream);

}  // namespace reprise::engine::cuda
