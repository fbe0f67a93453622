// Streams and events. On the CPU a stream runs its work at once: it is a name, and its events are done when recorded.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>

#include "cgotorch.h"

struct ct_stream {
  ct_stream(c10::Device device, c10::Stream stream, uint64_t id, bool own, int32_t priority);
  ~ct_stream();
  const c10::Device device;
  const c10::Stream stream;
  const uint64_t id;
  const bool own;  // goes back to the free list
  const int32_t priority;
};

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
