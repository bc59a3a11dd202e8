#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/cuda/shared_room.h"

// Launches that begin while earlier ones of the stream still run (programmatic dependent launch),
// so that a kernel's start, its tables and its first weights cost no time of their own. In a graph
// they stay what they are on a stream.
//
// A kernel that is launched so calls WaitForEarlier in every thread before it touches anything that
// earlier launches read or write, also if it then has nothing to do: the wait of a kernel ends when
// its predecessor has ended, which has waited likewise. What is the same for the whole life of an
// engine, as weights are, may be read before; and, past the multiprocessor's own cache, what
// launches wrote that came before the one right before: that one let this one begin when all its
// blocks had waited for them.
namespace reprise::engine::cuda {

// Earlier launches have ended, and what they wrote is seen.
__device__ inline void WaitForEarlier() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The next launch may begin, once every block has said so or ended: its blocks take what room is
// left on the multiprocessors, and wait. Best said at once after the wait, as no block is then
// still to come whose room they might take; before it, launches would pile up behind the running
// one, and the next must read nothing that the one before this wrote until its own wait: so a short
// launch does it that a product follows, whose weights then come meanwhile.
__device__ inline void LetNextBegin() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// Both.
__device__ inline void FollowEarlier() {
  WaitForEarlier();
  LetNextBegin();
}

struct LaunchShape {
  dim3 grid;
  dim3 threads;
  uint32_t shared = 0;   // Bytes, dynamic; at most what AllowShared allowed.
  uint32_t cluster = 1;  // Blocks along x.
};

// Queues `kernel`, which calls WaitForEarlier.
template <typename... Parameters, typename... Arguments>
cudaError_t QueueNext(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                      const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {.x = shape.cluster, .y = 1, .z = 1};
  const cudaLaunchConfig_t config = {.gridDim = shape.grid,
                                     .blockDim = shape.threads,
                                     .dynamicSmemBytes = shape.shared,
                                     .stream = stream,
                                     .attrs = attributes,
                                     .numAttrs = shape.cluster > 1 ? 2u : 1u};
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace reprise::engine::cuda
