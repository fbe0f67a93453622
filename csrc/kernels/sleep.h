// streamtorch::sleep: work that takes a given time and does nothing, on the CPU by waiting. Users
// are tests of waits and of parallel work, and trials that let the host run ahead.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace ct {

void sleep(const ct_stream& stream, int64_t nanoseconds);

}  // namespace ct
