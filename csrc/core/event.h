// Events. On the CPU an event is done when it is recorded.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/stream.h"

namespace ct {

// One recording on a CUDA stream. A waiter shares it: the handle can then be freed meanwhile.
struct Recording {
  Recording(const ct_stream& stream, bool timing);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  // True on a lost device, where nothing more will happen.
  bool done() const noexcept;

  const c10::Device device;
  const uint64_t stream;  // the id of the stream
  const bool timing;
  uint64_t number = 0;    // counts recordings: of two on one stream the lower is done first
  void* const native;     // a cudaEvent_t
};

}  // namespace ct

struct ct_event {
  ct_event(c10::Device device, std::shared_ptr<const ct::Recording> recording, bool timing, ct::checker::Known known);
  ~ct_event();
  const c10::Device device;
  const std::shared_ptr<const ct::Recording> recording;  // NULL on the CPU
  void* const native;                                    // the recording's
  const bool timing;
  const int64_t nanoseconds;  // on the CPU, the monotonic time of the record
  const ct::checker::Known known;
};

namespace ct {

ct_event* record(const ct_stream& stream, bool timing);
void wait(const ct_stream& stream, const ct_event& event);

}  // namespace ct
