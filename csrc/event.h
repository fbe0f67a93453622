// Events. On the CPU an event is done when it is recorded.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "cgotorch.h"
#include "stream.h"

struct ct_event {
  ct_event(c10::Device device, void* native, bool timing);
  ~ct_event();
  const c10::Device device;
  void* const native;  // a cudaEvent_t, or NULL on the CPU
  const bool timing;
  const int64_t nanoseconds;  // on the CPU, the monotonic time of the record
};

namespace ct {

ct_event* record(const ct_stream& stream, bool timing);
void wait(const ct_stream& stream, const ct_event& event);

}  // namespace ct
