// Kernels of the library's own. CUDA's run-time compiler compiles them on the machine where they
// run. The build of the library then needs no CUDA toolkit.
#pragma once

#include <c10/core/Device.h>

#include "cuda/backend.h"

namespace ct {

// The kernel, as an argument of cudaLaunchKernel. The first call compiles the program for the
// device's architecture, once for all devices of it. kernel must live as long as the process.
const void* kernel_of(const CudaProgram& program, const char* kernel, c10::DeviceIndex device);

}  // namespace ct
