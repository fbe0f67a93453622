// CUDA graphs, and the memory that they share. The comments of cuda/backend.h describe these
// functions.
#pragma once

#include "cuda/backend.h"

namespace ct {

std::unique_ptr<CudaGraph> new_graph(c10::DeviceIndex device);
c10::MempoolId_t new_graph_pool(c10::DeviceIndex device);
void free_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
void enter_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(void*)> of);
void leave_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept;
int64_t graph_pool_bytes(c10::DeviceIndex device, c10::MempoolId_t pool);

}  // namespace ct
