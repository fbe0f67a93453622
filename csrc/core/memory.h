// LibTorch's allocators: the CPU's, wrapped, and what they count.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace ct {

// Counts, from now on, what LibTorch allocates on the CPU, and tells the stream checker of it while that is on.
void count_cpu_allocations();

// What LibTorch has allocated of a CUDA device's memory.
int64_t allocated_bytes(c10::Device device);

}  // namespace ct
