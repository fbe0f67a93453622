// A watch sees the calls of one exec that wait for the device.
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

// Note [Whose call it is]: LibTorch gives its ThreadLocalDebugInfo, and the thread's
// RecordFunction callbacks, to every thread that runs a node of a backward. A thread has them
// while it runs the node. So each thread that calls CUDA can find out by itself whether it works
// for a watched exec. This is also true for autograd's threads. Threads that work for other
// streams have no watch. Threads that only query events have none either.
class Watch final : public c10::DebugInfoBase {
 public:
  explicit Watch(bool by_name) : by_name(by_name) {}

  // Returns the watch for which the calling thread works, or NULL.
  static Watch* current() noexcept;

  // Notes that the calling thread is about to wait. Only the first note is kept.
  void waits(const std::string& what) noexcept;
  // Notes an asynchronous copy. The copy waits if `host` or `other` is pageable memory. The
  // function `judge` finds that out later, because this function runs inside a call of CUDA's.
  void copies(const char* call, const void* host, const void* other) noexcept;
  // Judges the copies that were noted. It must not be called inside a call of CUDA's.
  void judge() noexcept;

  // True if operators are judged by their names, as on the CPU.
  const bool by_name;

  const char* seen() const noexcept { return seen_.load(std::memory_order_acquire) ? text_.c_str() : nullptr; }

 private:
  struct Copy {
    const void* memory;
    std::string what;
  };
  std::mutex mutex_;
  std::vector<Copy> copies_;
  std::string text_;  // written once, before seen_ is set
  std::atomic<bool> seen_{false};
};

// Watching puts the calling thread's work under a watch while the object lives.
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

// Reports whether an operator always waits on CUDA, because the host needs a value or a size. The
// operators that it calls are judged too. So item and allclose need no entry of their own,
// because they call _local_scalar_dense. Indexing with a mask needs none, because it calls
// nonzero. A few operators that are not listed wait only for some values of their arguments. The
// name of an operator does not tell these values.
bool waits_on_cuda(std::string_view op) noexcept;
// Reports whether only the CPU kernel of the operator calls operators that wait, for example to
// read a value. Its CUDA kernel calls none of them.
bool waits_on_cpu_alone_in(std::string_view op) noexcept;

// Notes, for an exec on the CPU, that a call of the core would wait on CUDA. On CUDA the wait
// itself is seen.
void would_wait(const ct_exec& x, const char* what) noexcept;

}  // namespace ct

struct ct_watch {
  explicit ct_watch(bool cuda);
  ~ct_watch();
  const bool cuda;
  const std::shared_ptr<ct::Watch> watch;
};
