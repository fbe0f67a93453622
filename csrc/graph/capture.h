// The turns of captures: the thread that captures, the work that waits meanwhile, and the calls
// that are put off.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "core/stream.h"

namespace ct {

// Note [Captures take turns]: LibTorch's generator of a device knows one capture at a time. It
// refuses to draw for any other work while it is captured. So one thread captures on a device at a
// time, and meanwhile no operator of other streams draws random numbers there. A backward run that
// may call functions again (csrc/core/recompute.cc) does not run meanwhile either. Its functions
// would draw on LibTorch's one thread for backwards of the device, which the capture's own backward
// needs. New draws wait for a capture that waits for its turn. A draw inside a backward under way
// does not wait.

// The calling thread captures on the device, while the object lives. Waits for its turn, and for
// draws under way. Without wait it does not wait, and may not get its turn. Throws
// CT_NOT_CAPTURABLE where the thread captures there already.
class CaptureTurn {
 public:
  explicit CaptureTurn(c10::Device device, bool wait = true);
  ~CaptureTurn();
  CaptureTurn(const CaptureTurn&) = delete;
  CaptureTurn& operator=(const CaptureTurn&) = delete;

  bool held() const { return held_; }

 private:
  const c10::Device device_;
  bool held_ = false;
};

// The calling thread draws random numbers of the device, while the object lives. Waits for a
// capture that the stream is no part of. Throws CT_NOT_CAPTURABLE where the calling thread makes
// that capture.
class RandomUse {
 public:
  explicit RandomUse(const ct_stream& stream);
  explicit RandomUse(c10::Device device);  // for the host, which reads or sets the generator
  ~RandomUse();
  RandomUse(const RandomUse&) = delete;
  RandomUse& operator=(const RandomUse&) = delete;

 private:
  void wait();
  c10::Device device_;
  bool counted_ = false;
};

// As RandomUse, for a backward as a whole.
void hold_captures(c10::Device device);
void release_captures(c10::Device device) noexcept;

// Whether the stream's work becomes part of a graph now.
bool in_capture(const ct_stream& stream);
// Throws CT_NOT_CAPTURABLE inside a capture. instead: the call that the program can make.
void refuse_in_capture(const ct_stream& stream, const char* instead);

// Runs f, at once or when no device is captured: for calls to CUDA that would end a capture.
void after_captures(std::function<void()> f);

}  // namespace ct
