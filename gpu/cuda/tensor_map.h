#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

// Rows of a matrix for the copy engine, which brings boxes of them into shared memory.
namespace reprise::engine::cuda {

// Boxes of 64 columns (128 bytes) x `box_rows` rows, swizzled by 128 bytes as wgmma takes them;
// what lies beyond the matrix comes as zeros. `data`: bf16, aligned to 16 bytes, as is `stride`,
// the values from row to row.
cudaError_t MapRows(const void* data, uint64_t columns, uint64_t rows, uint64_t stride,
                    uint32_t box_rows, CUtensorMap* map);

}  // namespace reprise::engine::cuda
