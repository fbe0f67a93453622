// Kernels of the library's own, compiled on the machine where they run by CUDA's run-time compiler, so that building the
// library needs no CUDA toolkit.
#pragma once

#include <c10/core/Device.h>

#include "cuda/backend.h"

namespace ct {

// What cudaLaunchKernel takes. Compiles the program for the device's architecture the first time, once for all devices of it.
// kernel must live as long as the process.
const void* kernel_of(const CudaProgram& program, const char* kernel, c10::DeviceIndex device);

}  // namespace ct
