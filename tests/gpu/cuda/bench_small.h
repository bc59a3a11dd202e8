#pragma once

namespace reprise::engine::cuda::bench {

// The kernels around products, attention and selection at the shapes of V4.1-Flash, for 1, 128 and
// 4,096 rows: rows of the bench's table, beside what reading HBM and bf16 products reach.
void BenchSmallKernels(double read_gb_per_s, double bf16_tflop_per_s);

}  // namespace reprise::engine::cuda::bench
