#include "gpu/cuda/tensor_map.h"

namespace reprise::engine::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's, which the runtime does not offer; null where there is none.
Encode FindEncode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
  const bool good = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return good ? reinterpret_cast<Encode>(found) : nullptr;
}

}  // namespace

cudaError_t MapRows(const void* data, uint64_t columns, uint64_t rows, uint64_t stride,
                    uint32_t box_rows, CUtensorMap* map) {
  static const Encode encode = FindEncode();
  if (encode == nullptr) return cudaErrorSymbolNotFound;
  const cuuint64_t sizes[] = {columns, rows}, strides[] = {stride * 2};
  const cuuint32_t box[] = {64, box_rows}, steps[] = {1, 1};
  const CUresult result =
      encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(data), sizes, strides, box,
             steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace reprise::engine::cuda
