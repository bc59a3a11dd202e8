#pragma once

#include "gpu/cuda/device.h"
#include "gpu/cuda/linear.h"

namespace reprise::engine::cuda::bench {

// Random matrices of equal shape in the packed layout, end to end: any bytes are codes.
struct BenchWeights {
  BenchWeights(WeightFormat format, uint32_t outputs, uint32_t inputs, uint32_t copies,
               bool experts, cudaStream_t stream);
  DeviceMemory codes, scales;
  DeviceLinear view;
};

}  // namespace reprise::engine::cuda::bench
