// Watches: the waits for the device in the calls of one exec.
#pragma once

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "cgotorch.h"

namespace ct {

// Note [Whose call it is]: LibTorch hands its ThreadLocalDebugInfo, and the thread's RecordFunction
// callbacks, to every thread that runs a node of a backward. The thread has them as long as it runs
// the node. So the thread that calls CUDA knows itself whether a watched exec is behind the call,
// also on autograd's threads. Other streams' workers, their backwards and threads that only ask
// about events have none.
class Watch final : public c10::DebugInfoBase {
 public:
  explicit Watch(bool by_name) : by_name(by_name) {}

  // The watch behind the calling thread's work, or NULL.
  static Watch* current() noexcept;

  // Notes that the thread is about to wait. The first note is kept.
  void waits(const std::string& what) noexcept;
  // Notes an asynchronous copy, which waits if host, or other, is pageable memory. Judged later: this
  // is inside a call of CUDA's.
  void copies(const char* call, const void* host, const void* other) noexcept;
  // Judges the copies noted. Not to be called inside a call of CUDA's.
  void judge() noexcept;

  // Whether operators are judged by their names, as on the CPU.
  const bool by_name;

  const char* seen() const noexcept { return seen_.load(std::memory_order_acquire) ? text_.c_str() : nullptr; }

 private:
  struct Copy {
    const void* memory;
    std::string what;
  };
  std::mutex mutex_;
  std::vector<Copy> copies_;
  std::string text_;  // written once, before seen_
  std::atomic<bool> seen_{false};
};

// Puts the thread's work under a watch, while the object lives.
class Watching {
 public:
  explicit Watching(const ct_watch& watch);
  ~Watching();
  Watching(const Watching&) = delete;
  Watching& operator=(const Watching&) = delete;

 private:
  const std::shared_ptr<Watch> watch_;
  const c10::DebugInfoGuard info_;
  const at::CallbackHandle callback_;
};

// Whether an operator waits on CUDA whatever its arguments are, because the host needs a value or a
// size. The operators that it calls count. item and allclose end in _local_scalar_dense, and
// indexing with a mask ends in nonzero. Some others wait for some arguments only, which the name
// does not tell.
bool waits_on_cuda(std::string_view op) noexcept;
// Whether the operators that this operator calls wait in its CPU kernel, and not on CUDA. They read
// a value, for instance.
bool waits_on_cpu_alone_in(std::string_view op) noexcept;

// Notes that a call of the core's own would wait on CUDA, for an exec on the CPU. On CUDA the wait
// itself is seen.
void would_wait(const ct_exec& x, const char* what) noexcept;

}  // namespace ct

struct ct_watch {
  explicit ct_watch(bool cuda);
  ~ct_watch();
  const bool cuda;
  const std::shared_ptr<ct::Watch> watch;
};
