#include "exec.h"

#include <ATen/autocast_mode.h>

#include <atomic>

#include "device.h"

namespace ct {

ExecGuard::ExecGuard(const ct_exec& x) : grad_(x.grad != 0) {
  const ct_stream& stream = deref(x.stream, "exec.stream");
  if (x.thread != ct_thread_id()) {
    throw Failure(CT_MISUSE, "an Exec was used outside its own Do, or on another goroutine than the one that Do runs");
  }
  if (stream.device.is_cuda()) {
    require(stream.device);
    stream_.emplace(stream.stream);
  }
  if (x.autocast >= 0) {
    autocast_ = stream.device.type();
    at::autocast::set_autocast_enabled(*autocast_, true);
    at::autocast::set_autocast_dtype(*autocast_, static_cast<at::ScalarType>(x.autocast));
    // The cache of cast weights is shared by all threads and knows no stream.
    at::autocast::set_autocast_cache_enabled(false);
  }
}

ExecGuard::~ExecGuard() {
  if (autocast_) {
    at::autocast::set_autocast_enabled(*autocast_, false);
    at::autocast::set_autocast_cache_enabled(true);
  }
}

}  // namespace ct

uint64_t ct_thread_id(void) noexcept {
  static std::atomic<uint64_t> threads{0};
  static thread_local uint64_t id = 0;
  if (id == 0) id = ++threads;
  return id;
}
