#include "check/cuda_trace.h"

#include <c10/core/impl/GPUTrace.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "check/checker.h"
#include "check/clocks.h"
#include "check/thread.h"
#include "core/versions.h"

namespace ct::checker {
namespace {

// LibTorch reports every CUDA event, allocation and wait to its Python interpreter. This process
// has no Python, so this class stands in for the interpreter. LibTorch calls only its trace
// functions.
class CudaTrace final : public NoPythonObjects {
 public:
  std::string name() const override { return "streamtorch"; }
  void trace_gpu_event_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_event_deletion(c10::DeviceType, uintptr_t event) const override {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }
  void trace_gpu_event_record(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    if (!is_on() || type != c10::kCUDA) return;
    auto known = Checker::instance().record(native(stream));
    const std::lock_guard lock(mutex_);
    events_[event] = std::move(known);
  }
  void trace_gpu_event_wait(c10::DeviceType type, uintptr_t event, uintptr_t stream) const override {
    if (!is_on() || type != c10::kCUDA) return;
    if (const auto known = clock_of(event)) Checker::instance().wait(native(stream), *known);
  }
  void trace_gpu_memory_allocation(c10::DeviceType type, uintptr_t data) const override {
    if (!is_on() || type != c10::kCUDA) return;
    const Queue queue = current_queue(cuda_guard().getDevice());
    Checker::instance().born(reinterpret_cast<const void*>(data), 0, actor(queue));
  }
  void trace_gpu_memory_deallocation(c10::DeviceType type, uintptr_t data) const override {
    if (!is_on() || type != c10::kCUDA) return;
    Checker::instance().dies(reinterpret_cast<const void*>(data), actor(Checker::kNone));
  }
  void trace_gpu_stream_creation(c10::DeviceType, uintptr_t) const override {}
  void trace_gpu_device_synchronization(c10::DeviceType type) const override {
    if (is_on() && type == c10::kCUDA) Checker::instance().host_waits_for(cuda_guard().getDevice());
  }
  void trace_gpu_stream_synchronization(c10::DeviceType type, uintptr_t stream) const override {
    if (is_on() && type == c10::kCUDA) Checker::instance().host_waits(native(stream));
  }
  void trace_gpu_event_synchronization(c10::DeviceType type, uintptr_t event) const override {
    if (!is_on() || type != c10::kCUDA) return;
    if (const auto known = clock_of(event)) Checker::instance().host_waits(*known);
  }

  // These functions are for tensors that Python made. There are no such tensors.
  c10::intrusive_ptr<c10::TensorImpl> detach(const c10::TensorImpl*) const override { none(); }
  void dispatch(const c10::OperatorHandle&, torch::jit::Stack*) const override { none(); }
  void reportErrorCallback(PyObject*, c10::DispatchKey) const override { none(); }
  void python_op_registration_trampoline(const c10::OperatorHandle&, c10::DispatchKey, c10::DispatchKeySet, torch::jit::Stack*, bool,
                                         bool) const override { none(); }
  void throw_abstract_impl_not_imported_error(std::string, const char*, const char*) const override { none(); }
  void python_dispatcher(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack*) const override { none(); }
  bool is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { none(); }
  c10::SymBool sym_is_contiguous(const c10::TensorImpl*, at::MemoryFormat) const override { none(); }
  bool is_strides_like(const c10::TensorImpl*, at::MemoryFormat) const override { none(); }
  bool is_non_overlapping_and_dense(const c10::TensorImpl*) const override { none(); }
  c10::Device device(const c10::TensorImpl*) const override { none(); }
  int64_t dim(const c10::TensorImpl*) const override { none(); }
  c10::IntArrayRef strides(const c10::TensorImpl*) const override { none(); }
  c10::IntArrayRef sizes(const c10::TensorImpl*) const override { none(); }
  c10::SymIntArrayRef sym_sizes(const c10::TensorImpl*) const override { none(); }
  c10::Layout layout(const c10::TensorImpl*) const override { none(); }
  int64_t numel(const c10::TensorImpl*) const override { none(); }
  c10::SymInt sym_numel(const c10::TensorImpl*) const override { none(); }
  c10::SymIntArrayRef sym_strides(const c10::TensorImpl*) const override { none(); }
  c10::SymInt sym_storage_offset(const c10::TensorImpl*) const override { none(); }
  void reset_backward_hooks(const c10::TensorImpl*) const override { none(); }

 private:
  static Queue native(uintptr_t stream) {
    return Checker::instance().queue_of_native(cuda_guard().getDevice().index(), stream);
  }
  std::shared_ptr<const Checker::Clock> clock_of(uintptr_t event) const {
    const std::lock_guard lock(mutex_);
    const auto at = events_.find(event);
    return at == events_.end() ? nullptr : at->second;
  }

  mutable std::mutex mutex_;
  mutable std::unordered_map<uintptr_t, std::shared_ptr<const Checker::Clock>> events_;
};

}  // namespace

void trace_cuda() {
  static const auto* const trace = new c10::impl::PyInterpreter(new CudaTrace);
  c10::impl::GPUTrace::set_trace(trace);  // the first call counts
}

}  // namespace ct::checker
