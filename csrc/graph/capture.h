// On each device only one thread at a time captures. This file says which thread captures on a
// device. It also makes other work wait for the capture, or delays a call until the capture ends.
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
// While a thread waits to capture, operators that want to draw random numbers wait too. Otherwise
// the thread might never get its turn. But while a backward holds off captures, operators do not
// wait for that thread. Otherwise the backward and the thread would wait for each other.

// Makes the calling thread the one that captures on the device, while the object lives. The
// constructor waits for its turn. It also waits until no operator draws random numbers and no
// backward holds off captures. If `wait` is false, the constructor does not wait, and `held`
// tells whether it got its turn. Throws CT_NOT_CAPTURABLE if the thread captures on the device
// already.
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

// Says that the calling thread draws random numbers of the device, while the object lives. If
// another thread captures, the constructor waits for the end of the capture, unless the stream is
// part of it. Throws CT_NOT_CAPTURABLE if the calling thread itself captures and the stream is
// not part of the capture.
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

// Between the two calls no capture begins on the device. They are made around a backward whose
// functions may draw random numbers. hold_captures first waits for the capture that runs, and for
// the captures of threads that wait already.
void hold_captures(c10::Device device);
void release_captures(c10::Device device) noexcept;

// Returns whether the stream's work becomes part of a graph now.
bool in_capture(const ct_stream& stream);
// Throws CT_NOT_CAPTURABLE inside a capture. The text `instead` becomes a part of the message:
// what the program can do instead.
void refuse_in_capture(const ct_stream& stream, const char* instead);

// Runs f at once, or after the last running capture if there is one. To be used for calls to CUDA
// that would break a capture.
void after_captures(std::function<void()> f);

}  // namespace ct
