#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

// Rows of the bench's table.
namespace reprise::engine::cuda::bench {

void Check(cudaError_t error);

// Median seconds of a launch, by events around so many of them; warmed up first. The device is busy
// while they are queued, so that the host's time is not in it. Of several launches that follow one
// another, each begins while the one before it still runs, as in a step.
double Seconds(cudaStream_t stream, const std::function<void(int turn)>& launch, int launches = 1);

// `target`: the share in percent that is wanted; 0: none is.
void Row(const std::string& name, double seconds, double reached, double ceiling, const char* unit,
         double target);

}  // namespace reprise::engine::cuda::bench
