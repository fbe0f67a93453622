// The turns of captures. They say which thread captures on a device, which work waits for the
// capture, and which calls are delayed until its end.
#pragma once

#include <c10/core/Device.h>

#include <functional>

#include "core/stream.h"

namespace ct {

// Note [Captures take turns]
//
// LibTorch has one generator for each device, and it can serve one capture at a time. During a
// capture it refuses to draw for any other work. So one thread at a time captures on a device.
// Meanwhile operators of other streams that draw random numbers there must wait.
//
// A backward that may call functions again (csrc/core/recompute.cc) must not run during a capture
// either. Its functions may draw random numbers, and would then wait for the capture. They would
// wait on the one thread that LibTorch has for backwards of the device. The capture's own
// backward needs that thread.
//
// A draw that begins waits while a thread waits to capture, so that captures get their turn. A
// draw inside a backward that has begun does not wait for such a thread.

// Makes the calling thread the one that captures on the device, while the object lives. The
// constructor waits for its turn, and until draws and backwards that have begun are over. If
// `wait` is false, it does not wait, and may not get its turn: see held. Throws CT_NOT_CAPTURABLE
// if the thread captures on the device already.
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

// Says that the calling thread draws random numbers of the device, while the object lives. The
// constructor waits for a capture unless the stream is a part of it. Throws CT_NOT_CAPTURABLE if
// the calling thread makes that capture.
class RandomUse {
 public:
  explicit RandomUse(const ct_stream& stream);
  explicit RandomUse(c10::Device device);  // for the host, when it reads or sets the generator
  ~RandomUse();
  RandomUse(const RandomUse&) = delete;
  RandomUse& operator=(const RandomUse&) = delete;

 private:
  void wait();
  c10::Device device_;
  bool counted_ = false;
};

// Between the two calls no capture begins on the device. The two calls do for a whole backward
// what RandomUse does for an operator.
void hold_captures(c10::Device device);
void release_captures(c10::Device device) noexcept;

// Returns whether the stream's work becomes part of a graph now.
bool in_capture(const ct_stream& stream);
// Throws CT_NOT_CAPTURABLE inside a capture. instead: what the program can do instead, for the
// message.
void refuse_in_capture(const ct_stream& stream, const char* instead);

// Runs f at once, or after the last running capture if there is one. To be used for calls to CUDA
// that would break a capture.
void after_captures(std::function<void()> f);

}  // namespace ct
