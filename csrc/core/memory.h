// LibTorch's allocators: the CPU's, wrapped, and their counts.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace ct {

// Counts LibTorch's allocations on the CPU from now on, and tells the stream checker of them while
// it is on.
void count_cpu_allocations();

// The bytes that LibTorch has allocated of a CUDA device's memory.
int64_t allocated_bytes(c10::Device device);

}  // namespace ct
