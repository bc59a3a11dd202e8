#pragma once

namespace reprise::engine::cuda::bench {

// Decode, replays, prefill and resume of V4.1-Flash with random weights: rows of the bench's table.
// `read_gb_per_s`: what reading HBM reaches, for the floor of replays.
void BenchModel(double read_gb_per_s);

}  // namespace reprise::engine::cuda::bench
