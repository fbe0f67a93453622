// The execution context of one call. It sets LibTorch's thread-local state when the call begins,
// and restores that state before the call returns.
#pragma once

#include <c10/core/AutogradState.h>
#include <c10/core/StreamGuard.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "cgotorch.h"
#include "check/checker.h"
#include "core/status.h"
#include "core/stream.h"
#include "witness/watch.h"

// Note [The state of a call]
//
// The guard sets all of LibTorch's thread-local state that a call depends on, and restores it
// before the call returns. It does so at each call. It assumes nothing about the thread, not even
// that the thread is a stream's worker.
//
// Autocast has a cache of weights that it has cast. All threads share this cache, and it does not
// know on which stream a weight was cast. The guard therefore always turns the cache off.

namespace ct {

// Counts the changes of the number of threads of an operator. oneDNN and MKL read the number of the
// thread that calls them, which only at::parallel_for gives to a new thread. So the guard gives it.
inline std::atomic<uint32_t> thread_counts{1};

// Makes a stream current while the object lives. The stream must belong to the device that is
// current on the thread. c10::StreamGuard also sets the device, and takes 0.15 us more.
class CurrentStream {
 public:
  explicit CurrentStream(c10::Stream stream);
  ~CurrentStream();
  CurrentStream(const CurrentStream&) = delete;
  CurrentStream& operator=(const CurrentStream&) = delete;

 private:
  const c10::Stream before_;
};

// Sets the stream, device, grad mode and autocast of the exec, whatever they were on this thread.
// If the exec has a watch, the watch observes the call. Throws if the exec has no stream, if it
// belongs to another thread, or if its device is lost.
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

  // The thread's state. It is kept here because to fetch it at each use cost 30 ns a call.
  c10::AutogradState& state_ = c10::AutogradState::get_tls_state();
  const bool grad_before_ = state_.get_grad_mode();
  std::optional<c10::StreamGuard> device_;  // sets device and stream, if the thread's device is not the exec's device
  std::optional<CurrentStream> stream_;
  std::optional<checker::Scope> checked_;  // set while operators are watched
  std::unique_ptr<Watching> watching_;
  std::optional<Autocast> before_;  // autocast of the thread before the call, if the guard changed it
};

// Returns the exec's device, or the CPU if the exec has no stream. ExecGuard then throws for the
// missing stream.
inline c10::Device device_of(const ct_exec& x) { return x.stream == nullptr ? c10::Device(c10::kCPU) : x.stream->device; }

// Runs f with the state of the exec set. Returns NULL, or the status of the exception that f
// throws.
template <typename F>
ct_status* executed(const ct_exec& x, F&& f) noexcept {
  return guarded(device_of(x), [&] {
    const ExecGuard guard(x);
    f();
  });
}

}  // namespace ct
