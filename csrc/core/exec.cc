#include "core/exec.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>

#include "core/device.h"

namespace ct {

namespace {

const c10::impl::VirtualGuardImpl& current() {
  static const c10::impl::VirtualGuardImpl of_thread(c10::kCUDA);
  return of_thread;
}

}  // namespace

CurrentStream::CurrentStream(c10::Stream stream) : before_(current().exchangeStream(stream)) {}
CurrentStream::~CurrentStream() { current().exchangeStream(before_); }

ExecGuard::ExecGuard(const ct_exec& x) {
  const ct_stream& stream = deref(x.stream, "exec.stream");
  if (x.thread != ct_thread_id()) {
    throw Failure(CT_MISUSE, "an Exec was used outside its own Do, or on another goroutine than the one that Do runs");
  }
  [[gnu::tls_model("initial-exec")]] static thread_local uint32_t count = 0;
  if (const uint32_t latest = thread_counts.load(std::memory_order_relaxed); count != latest) [[unlikely]] {
    at::init_num_threads();
    count = latest;
  }
  if (stream.device.is_cuda()) {
    require(stream.device);
    // Before a thread has set its device, each operator of LibTorch's asks CUDA for the thread's
    // device. That takes 0.6 us instead of 0.03 us.
    static thread_local bool bound = false;
    if (!bound) {
      cuda().bind_thread(stream.device.index());
      bound = true;
    }
    // If the exec's stream is already the current stream, it is not set again. To set and restore the
    // stream took 3 % of a small operator's time.
    if (current().getDevice() != stream.device) {
      device_.emplace(stream.stream);
    } else if (current().getStream(stream.device) != stream.stream) {
      //edge:exec-sets-stream TestStream_RunsBesideAnother gpu
      //edge:exec-restores-stream ExecTest.Stream_IsTheExecsAndEndsWithTheCall gpu
      stream_.emplace(stream.stream);
    }
  }
  if (checker::watches()) [[unlikely]] checked_.emplace(x);  //edge:exec-is-known TestCheckStreams_FindsMistakes checked
  if (x.watch != nullptr) [[unlikely]] watching_ = std::make_unique<Watching>(*x.watch);
  set_autocast(stream.device.type(), x.autocast);
  state_.set_grad_mode(x.grad != 0);
}

void ExecGuard::set_autocast(c10::DeviceType device, int32_t dtype) {
  // This is the test that at::autocast::is_autocast_enabled makes, without its function call.
  const c10::DispatchKey key = device == c10::kCUDA ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
  const bool enabled = !c10::impl::tls_local_dispatch_key_set().excluded_.has(key);
  if (dtype < 0 && !enabled) return;
  before_ = Autocast{device, enabled, at::autocast::is_autocast_cache_enabled(), at::autocast::get_autocast_dtype(device)};
  at::autocast::set_autocast_enabled(device, dtype >= 0);
  if (dtype < 0) return;
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(dtype));
  // All threads share the cache of cast weights. The cache does not know the stream of a weight.
  at::autocast::set_autocast_cache_enabled(false);
}

ExecGuard::~ExecGuard() {
  state_.set_grad_mode(grad_before_);
  if (!before_) return;
  at::autocast::set_autocast_enabled(before_->device, before_->enabled);
  at::autocast::set_autocast_dtype(before_->device, before_->dtype);
  at::autocast::set_autocast_cache_enabled(before_->cache);
}

}  // namespace ct

uint64_t ct_thread_id(void) noexcept {
  static std::atomic<uint64_t> threads{0};
  [[gnu::tls_model("initial-exec")]] static thread_local uint64_t id = 0;  // each operator reads it, so the access must be fast
  if (id == 0) id = ++threads;
  return id;
}
