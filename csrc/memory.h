// LibTorch's CPU allocator, wrapped.
#pragma once

namespace ct {

// Counts, from now on, what LibTorch allocates on the CPU, and tells the stream checker of it while that is on.
void count_cpu_allocations();

}  // namespace ct
