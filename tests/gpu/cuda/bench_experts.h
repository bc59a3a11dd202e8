#pragma once

namespace reprise::engine::cuda::bench {

// Products of FP4 experts at the shapes of V4.1-Flash: each with as many rows, and a layer's of an
// encoder replay, as its router deals them out.
void BenchExperts(double read_gb_per_s, double bf16_tflop_per_s);

}  // namespace reprise::engine::cuda::bench
