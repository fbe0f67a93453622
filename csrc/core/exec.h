// The execution context of one call: LibTorch's thread-local state set on entry and restored on
// return.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/StreamGuard.h>

#include <memory>
#include <optional>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/status.h"
#include "core/stream.h"
#include "witness/watch.h"

// Note [The state of a call]
//
// The guard sets all of LibTorch's thread-local state at each call and restores it before the
// call returns. It trusts nothing about the thread, not even that the thread is a stream's
// worker.
//
// LibTorch's cache of weights that autocast has cast is shared by all threads and knows no
// stream. The guard therefore always turns it off.

namespace ct {

// Makes a stream of the thread's device current, while it lives. c10::StreamGuard, which sets the
// device too, takes 0.15 us more.
class CurrentStream {
 public:
  explicit CurrentStream(c10::Stream stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  const c10::Stream before_;
};

// Sets the exec's stream, device, grad mode and autocast, whatever they are on this thread. Puts
// the call under the exec's watch, if it has one. Throws for an exec without a stream, on a thread
// other than its own, or on a lost device.
class ExecGuard {
 public:
  explicit ExecGuard(const ct_exec& x);
  ~ExecGuard();
  ExecGuard(const ExecGuard&) = delete;
  ExecGuard& operator=(const ExecGuard&) = delete;

 private:
  struct Autocast {
    c10::DeviceType device;
    bool enabled, cache;
    at::ScalarType dtype;
  };
  void set_autocast(c10::DeviceType device, int32_t dtype);

  c10::AutogradState& state_ = c10::AutogradState::get_tls_state();  // the thread's; to fetch it at each use cost 30 ns a call
  const bool grad_before_ = state_.get_grad_mode();
  std::optional<c10::StreamGuard> device_;  // and stream, where the thread's device is another
  std::optional<CurrentStream> stream_;
  std::optional<checker::Scope> checked_;  // while the stream checker is on
  std::unique_ptr<Watching> watching_;
  std::optional<Autocast> before_;  // the thread's own, where it had to be changed
};

// The exec's device, or the CPU where the exec has no stream. ExecGuard then reports the lack.
inline c10::Device device_of(const ct_exec& x) { return x.stream == nullptr ? c10::Device(c10::kCPU) : x.stream->device; }

// Runs f under the exec.
template <typename F>
ct_status* executed(const ct_exec& x, F&& f) noexcept {
  return guarded(device_of(x), [&] {
    const ExecGuard guard(x);
    f();
  });
}

}  // namespace ct
