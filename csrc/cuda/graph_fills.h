// The fills (memsets) of captured graphs.
#pragma once

#include <c10/core/Device.h>
#include <driver_types.h>

namespace ct {

// Replaces each fill of a graph by a kernel. The graph must not be launched yet. cuDNN makes 40
// to 100 fills in a step of ResNet-50. With the fills a launch took 80 to 150 us on the host.
// Without them it took 30 us, at every batch size. The step then took 0.6 to 1.2 % less time on
// the device.
void replace_fills(cudaGraph_t graph, c10::DeviceIndex device);

}  // namespace ct
