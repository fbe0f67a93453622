// Counts of the memory that LibTorch allocates. On the CPU they come from a wrapper around
// LibTorch's allocator.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace ct {

// From now on, counts LibTorch's allocations on the CPU. While the stream checker is on, also
// tells the checker of them.
void count_cpu_allocations();

// Returns the bytes that LibTorch has allocated on a CUDA device.
int64_t allocated_bytes(c10::Device device);

}  // namespace ct
