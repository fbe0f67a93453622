// Streams on parts of a device: CUDA's green contexts.
#pragma once

#include <c10/core/Device.h>
#include <cuda_runtime_api.h>

namespace ct {

// How many equal parts of at least so many multiprocessors the device is split in. They are made the first time, and stay for the life of the
// process. Throws CT_UNSUPPORTED where the driver or the device knows of none, CT_INVALID_ARGUMENT for more multiprocessors than there are.
int parts_of(c10::DeviceIndex device, int multiprocessors);

// A non-blocking stream whose kernels run on that one of them.
cudaStream_t new_part_stream(c10::DeviceIndex device, int multiprocessors, int part, int priority);

}  // namespace ct
