#include "cuda/boxes.h"

#include <c10/cuda/CUDAException.h>
#include <c10/util/Exception.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>

namespace ct {
namespace {

// The driver's function, found at run time, because the library is not linked to the driver.
using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result));
    TORCH_CHECK(result == cudaDriverEntryPointSuccess, "the driver has no cuTensorMapEncodeTiled: it needs CUDA 12");
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

}  // namespace

CudaBoxes boxes(const void* matrix, int64_t count, int64_t together, int64_t rows, int64_t row_bytes, int box_rows, int box_bytes) {
  // A box has at most 256 elements in a row, so elements of 8 bytes give the longest lines. Zeros
  // are written for what lies outside.
  constexpr int kElement = 8;
  CUtensorMap map{};
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(row_bytes / kElement), static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(row_bytes * rows)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(box_bytes / kElement), static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(together)};
  const cuuint32_t steps[] = {1, 1, 1};
  const CUresult code = encode()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT64, 3, const_cast<void*>(matrix), sizes, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(code == CUDA_SUCCESS, "cuTensorMapEncodeTiled: CUDA error ", static_cast<int>(code), " for ", count, " matrices of ", rows, " rows of ", row_bytes, " bytes");
  CudaBoxes result;
  static_assert(sizeof result == sizeof map);
  std::memcpy(&result, &map, sizeof map);
  return result;
}

}  // namespace ct
