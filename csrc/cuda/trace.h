// Traces: the work of devices, as CUPTI records it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "witness/trace.h"

namespace ct {

void start_trace(size_t limit);
void stop_trace(ct_trace& out);
// Returns CUPTI's number of a stream of the current device.
uint32_t trace_number(cudaStream_t stream);

}  // namespace ct
