// streamtorch::sleep is work that takes a given time and does nothing. On the CPU it makes the
// calling thread wait. Tests of waits and of parallel work use it. The trials of
// parallel/choice.h use it to let the host run ahead of the device.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace ct {

void sleep(const ct_stream& stream, int64_t nanoseconds);

}  // namespace ct
