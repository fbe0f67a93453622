// Kernels of the library's own. CUDA's run-time compiler compiles them on the machine where they
// run, so the build of the library needs no CUDA toolkit.
#pragma once

#include <c10/core/Device.h>

#include "cuda/backend.h"

namespace ct {

// Returns the kernel, as cudaLaunchKernel takes it. The first call for an architecture compiles
// the program for all devices of that architecture. The text `kernel` must live as long as the
// process.
const void* kernel_of(const CudaProgram& program, const char* kernel, c10::DeviceIndex device);

// Returns the device's numbers. Only the first call for a device asks CUDA.
CudaChip chip(c10::DeviceIndex device);

}  // namespace ct
