#include "cuda/cupti.h"

#include <dlfcn.h>

#include <mutex>

#include "core/status.h"
#include "cuda/shared_library.h"
#include "cuda/watch.h"

namespace ct {
namespace {

Cupti open_cupti() {
  const SharedLibrary library("libcupti.so." + std::to_string(CUDART_VERSION / 1000));
  if (!library) {
    throw Failure(CT_UNSUPPORTED, "CUPTI, on which traces and NoWaits rest, cannot be opened; run `make setup` on this machine (" + library.reason() + ")");
  }
  Cupti all{};
  library.find(all.activity_disable, "cuptiActivityDisable");
  library.find(all.activity_enable, "cuptiActivityEnable");
  library.find(all.activity_flush, "cuptiActivityFlushAll");
  library.find(all.activity_next, "cuptiActivityGetNextRecord");
  library.find(all.activity_dropped, "cuptiActivityGetNumDroppedRecords");
  library.find(all.activity_register, "cuptiActivityRegisterCallbacks");
  library.find(all.enable_callback, "cuptiEnableCallback");
  library.find(all.result_string, "cuptiGetResultString");
  library.find(all.stream_id, "cuptiGetStreamIdEx");
  library.find(all.set_thread_id_type, "cuptiSetThreadIdType");
  library.find(all.subscribe.function, CuptiSubscribe::kName);
  library.find(all.unsubscribe, "cuptiUnsubscribe");
  all.current_context = reinterpret_cast<decltype(all.current_context)>(dlsym(RTLD_DEFAULT, "cuCtxGetCurrent"));
  if (all.current_context == nullptr) throw Failure(CT_UNSUPPORTED, "the driver has no cuCtxGetCurrent");
  return all;
}

struct Subscription {
  std::mutex mutex;
  CUpti_SubscriberHandle handle = nullptr;
  int users = 0;
};

Subscription& subscription() {
  static auto* const one = new Subscription;
  return *one;
}

}  // namespace

void Cupti::check(CUptiResult result, const char* what) const {
  if (result == CUPTI_SUCCESS) return;
  const char* text = nullptr;
  (void)result_string(result, &text);
  throw Failure(CT_INTERNAL, std::string(what) + ": " + (text == nullptr ? "unknown error of CUPTI" : text));
}

const Cupti& cupti() {
  static const Cupti all = open_cupti();  // if open_cupti throws, the next call tries again
  return all;
}

CUpti_SubscriberHandle subscribe() {
  Subscription& shared = subscription();
  const std::lock_guard lock(shared.mutex);
  if (shared.users == 0) {
    std::string other;
    const CUptiResult result = cupti().subscribe(&shared.handle, on_call, other);
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
      throw Failure(CT_UNSUPPORTED, "another tool watches this process through CUPTI, which allows one at a time (" +
                                        (other.empty() ? "Nsight, cuda-gdb, compute-sanitizer or a profiler" : other) +
                                        "): run without it");
    }
    cupti().check(result, CuptiSubscribe::kName);
  }
  ++shared.users;
  return shared.handle;
}

CUpti_SubscriberHandle subscribed() noexcept {
  const std::lock_guard lock(subscription().mutex);
  return subscription().handle;
}

void unsubscribe() noexcept {
  Subscription& shared = subscription();
  const std::lock_guard lock(shared.mutex);
  if (--shared.users > 0) return;
  (void)cupti().unsubscribe(shared.handle);
  shared.handle = nullptr;
}

}  // namespace ct
