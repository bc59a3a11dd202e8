#pragma once

namespace reprise::engine::cuda::bench {

// Decode, replays, prefill and resume of V4.1-Flash with random weights: rows of the bench's table.
// `read_gb_per_s`: what reading HBM reaches, for the floor of replays.
void BenchModel(double read_gb_per_s);

// Decode, replays and prefill of the same on all GPUs of the machine, with as many of V4.1's
// experts as they hold, and the time of a sum over them. Skips where there are fewer than two.
void BenchSharded();

}  // namespace reprise::engine::cuda::bench
