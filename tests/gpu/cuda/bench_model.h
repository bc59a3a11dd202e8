#pragma once

#include <span>

#include "gpu/engine/engine.h"

namespace reprise::engine::cuda::bench {

// Rows of the bench's table: the step `last` of one row for its token alone, the likeliest and one
// of a nucleus; drafts of the first request and of all.
void BenchChoices(Engine& engine, const Segment& last, std::span<const DraftRequest> requests);

// Decode, replays, prefill and resume of V4.1-Flash with random weights: rows of the bench's table.
// `read_gb_per_s`: what reading HBM reaches, for the floor of replays.
void BenchModel(double read_gb_per_s);

// Decode, replays and prefill of the same on all GPUs of the machine, with as many of V4.1's
// experts as they hold, and the time of a sum over them. Skips where there are fewer than two.
void BenchSharded();

}  // namespace reprise::engine::cuda::bench
