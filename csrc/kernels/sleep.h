// Work that takes a given time and does nothing: for tests of what waits and what overlaps, and to let the host run ahead.
#pragma once

#include <cstdint>

#include "core/stream.h"

namespace ct {

void sleep(const ct_stream& stream, int64_t nanoseconds);

}  // namespace ct
