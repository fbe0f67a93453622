// Fills in captured graphs.
#pragma once

#include <c10/core/Device.h>
#include <driver_types.h>

namespace ct {

// Puts a kernel in the place of each fill (memset) of a graph that is not launched yet. cuDNN makes
// 40 to 100 fills in a step of ResNet-50. With them the launch took 80 to 150 us of the host,
// without them 30, whatever the batch. The step took 0.6 to 1.2 % less of the device.
void replace_fills(cudaGraph_t graph, c10::DeviceIndex device);

}  // namespace ct
