#pragma once

namespace reprise::engine::cuda::bench {

// Tokens chosen from logits of V4.1-Flash's vocabulary, and the sequential part of drafts: rows of
// the bench's table, beside what reading HBM reaches.
void BenchSampling(double read_gb_per_s);

}  // namespace reprise::engine::cuda::bench
