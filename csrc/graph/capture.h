// Who captures, who has to wait meanwhile, and what is put aside.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "core/stream.h"

namespace ct {

// Note [Captures take turns]: LibTorch's generator of a device knows one capture at a time, and refuses to draw for anything else while
// it is captured. So one thread captures on a device at a time, and while it does no operator of other streams draws random numbers there.
// Neither does a backward run that may call functions again (csrc/core/recompute.cc): they would draw on LibTorch's one thread for backwards of the
// device, which the capture's own backward needs. New ones wait for a capture that waits for its turn; what a backward under way draws does not.

// The calling thread captures on the device, while it lives: waits for its turn, and for what draws just now; without wait it does not, and
// may not have it. Throws CT_NOT_CAPTURABLE where the thread captures there already.
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

// Draws random numbers of the device, while it lives: waits for a capture that the stream is no part of, and throws CT_NOT_CAPTURABLE
// where the calling thread makes it.
class RandomUse {
 public:
  explicit RandomUse(const ct_stream& stream);
  explicit RandomUse(c10::Device device);  // the host asks or sets the generator
  ~RandomUse();
  RandomUse(const RandomUse&) = delete;
  RandomUse& operator=(const RandomUse&) = delete;

 private:
  void wait();
  c10::Device device_;
  bool counted_ = false;
};

// The same for a backward as a whole.
void hold_captures(c10::Device device);
void release_captures(c10::Device device) noexcept;

// Whether the stream's work becomes part of a graph now.
bool in_capture(const ct_stream& stream);
// Throws CT_NOT_CAPTURABLE where it does; instead: what the program can do.
void refuse_in_capture(const ct_stream& stream, const char* instead);

// Runs f, or keeps it until no device is captured: for calls to CUDA that would end a capture.
void after_captures(std::function<void()> f);

}  // namespace ct
