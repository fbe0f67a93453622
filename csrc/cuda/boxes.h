// Maps of matrices for copies in boxes: CudaBoxes in backend.h.
#pragma once

#include <cstdint>

#include "cuda/backend.h"

namespace ct {

// As CudaBackend::boxes.
CudaBoxes boxes(const void* matrix, int64_t count, int64_t together, int64_t rows, int64_t row_bytes, int box_rows, int box_bytes);

}  // namespace ct
