// Events. On the CPU all work is done when an event is recorded, so the event is done too.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/stream.h"

namespace ct {

// One recording of an event on a CUDA stream. A waiter shares the recording, so the event's
// handle can be freed before the recording is done.
struct Recording {
  Recording(const ct_stream& stream, bool timing);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  // Returns true if all work before the recording is done. Also returns true on a lost device,
  // because no more work will run there.
  bool done() const noexcept;

  const c10::Device device;
  const uint64_t stream;  // the id of the stream
  const bool timing;
  uint64_t number = 0;    // the number of this recording; on one stream, recordings with lower numbers are done first
  void* const native;     // a cudaEvent_t
};

}  // namespace ct

struct ct_event {
  ct_event(c10::Device device, std::shared_ptr<const ct::Recording> recording, bool timing, ct::checker::Known known);
  ~ct_event();
  const c10::Device device;
  const std::shared_ptr<const ct::Recording> recording;  // NULL on the CPU
  void* const native;                                    // the cudaEvent_t of the recording, NULL on the CPU
  const bool timing;
  const int64_t nanoseconds;  // on the CPU: the monotonic time at which the event was recorded
  const ct::checker::Known known;
};

namespace ct {

ct_event* record(const ct_stream& stream, bool timing);
void wait(const ct_stream& stream, const ct_event& event);

}  // namespace ct
