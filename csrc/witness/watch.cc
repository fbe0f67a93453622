#include "witness/watch.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "core/device.h"
#include "core/versions.h"

namespace ct {
namespace {

// The operators that run on this thread, outermost first. LibTorch keeps the names as long as the
// operators run.
std::vector<const char*>& operators() {
  static thread_local std::vector<const char*> names;
  return names;
}

std::string with_operators(const std::string& what) {
  std::string path;
  for (const std::string_view name : operators()) {
    if (name.starts_with("autograd::engine::evaluate_function: ")) continue;  // the name of the node follows
    path += (path.empty() ? "" : " > ") + std::string(name);
  }
  return path.empty() ? what : what + ", in " + path;
}

std::unique_ptr<at::ObserverContext> begin_operator(const at::RecordFunction& fn) {
  operators().push_back(fn.name());
  Watch* watch = Watch::current();
  if (watch == nullptr || !watch->by_name || !waits_on_cuda(fn.name())) return nullptr;
  const auto& all = operators();
  if (std::none_of(all.begin(), all.end(), [](const char* name) { return waits_on_cpu_alone_in(name); })) watch->waits("on a CUDA device it would wait");
  return nullptr;
}

void end_operator(const at::RecordFunction&, at::ObserverContext*) {
  if (!operators().empty()) operators().pop_back();
}

class Calls final : public CudaCalls {
 public:
  bool watched() noexcept override { return Watch::current() != nullptr; }
  void waits(const char* call) noexcept override {
    if (Watch* watch = Watch::current()) watch->waits(std::string("it waited for the device: ") + call);
  }
  void copies(const char* call, const void* host, const void* other) noexcept override {
    if (Watch* watch = Watch::current()) watch->copies(call, host, other);
  }
};

// Count is the number of live watches of CUDA. The first watch makes CUPTI report calls, and the
// last watch ends the reports.
struct Count {
  std::mutex mutex;
  int live = 0;
};

Count& count() {
  static auto* const one = new Count;
  return *one;
}

}  // namespace

bool waits_on_cuda(std::string_view op) noexcept {
  static const auto* const names = new std::unordered_set<std::string_view>{
      "aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::bincount", "aten::_unique",
      "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive"};
  return names->count(op) != 0;
}

bool waits_on_cpu_alone_in(std::string_view op) noexcept {
  static const auto* const names = new std::unordered_set<std::string_view>{
      "aten::_fused_adam_", "aten::_fused_adamw_", "aten::_fused_adagrad_", "aten::std", "aten::var", "aten::std_mean", "aten::var_mean"};
  return names->count(op) != 0;
}

Watch* Watch::current() noexcept { return static_cast<Watch*>(c10::ThreadLocalDebugInfo::get(kWatchKind)); }

void Watch::waits(const std::string& what) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (seen_.load(std::memory_order_relaxed)) return;
    text_ = with_operators(what);
  } catch (...) {
    // No memory is left for the text. The wait counts without a text.
  }
  seen_.store(true, std::memory_order_release);
}

void Watch::copies(const char* call, const void* host, const void* other) noexcept {
  if (seen() != nullptr) return;
  try {
    const std::string what = with_operators(std::string("it waited for the device: ") + call + " of pageable memory");
    const std::lock_guard lock(mutex_);
    for (const void* memory : {host, other}) {
      if (memory != nullptr) copies_.push_back({memory, what});
    }
  } catch (...) {
    waits(call);
  }
}

void Watch::judge() noexcept {
  std::vector<Copy> copies;
  {
    const std::lock_guard lock(mutex_);
    copies.swap(copies_);
  }
  for (const Copy& copy : copies) {
    try {
      if (cuda().page_locked(copy.memory)) continue;
    } catch (...) {
      return;  // the device is lost, and the call itself reports that
    }
    const std::lock_guard lock(mutex_);
    if (seen_.load(std::memory_order_relaxed)) return;
    text_ = copy.what;
    seen_.store(true, std::memory_order_release);
  }
}

Watching::Watching(const ct_watch& watch)
    : watch_(watch.watch), info_(kWatchKind, watch_),
      callback_(at::addThreadLocalCallback(at::RecordFunctionCallback(begin_operator, end_operator)
                                               .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}))) {}

Watching::~Watching() {
  at::removeCallback(callback_);
  watch_->judge();
}

void would_wait(const ct_exec& x, const char* what) noexcept {
  if (x.watch == nullptr || !x.watch->watch->by_name) return;
  x.watch->watch->waits(what);
}

}  // namespace ct

ct_watch::ct_watch(bool cuda) : cuda(cuda), watch(std::make_shared<ct::Watch>(!cuda)) {
  if (!cuda) return;
  static auto* const calls = new ct::Calls;
  const std::lock_guard lock(ct::count().mutex);
  if (ct::count().live == 0) ct::cuda().start_watching(calls);
  ++ct::count().live;
}

ct_watch::~ct_watch() {
  if (!cuda) return;
  const std::lock_guard lock(ct::count().mutex);
  if (--ct::count().live == 0) ct::cuda().stop_watching();
}

extern "C" {

ct_status* ct_watch_new(ct_device device, ct_watch** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) { *out = new ct_watch(where.is_cuda()); });
}

void ct_watch_free(ct_watch* watch) noexcept { delete watch; }

const char* ct_watch_seen(const ct_watch* watch) noexcept { return watch == nullptr ? nullptr : watch->watch->seen(); }

}  // extern "C"
