// The stream checker learns of the program's work from three sources. The sources are LibTorch's
// operator hook, LibTorch's trace of CUDA calls, and the core's own calls.

#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "check/captures.h"
#include "check/checker.h"
#include "check/clocks.h"
#include "check/cuda_trace.h"
#include "check/early.h"
#include "check/schema.h"
#include "check/thread.h"
#include "check/values.h"
#include "core/device.h"
#include "core/event.h"
#include "core/memory.h"
#include "core/stream.h"
#include "witness/watch.h"

// Note [Where the checker learns]
//
// Accesses come from LibTorch's operator hook, at::addGlobalCallback with inputs. The hook also
// sees autograd's threads and composite operators. The core's own copies report themselves. What
// an operator reads and writes is in its schema, apart from a short table in schema.cc.
//
// Each access has a stream. On CUDA it is the stream that is current in LibTorch at that moment,
// whatever this library believes. On the CPU it is the Exec's stream. In backward on the CPU it
// is the stream of the forward operator, which the checker finds by LibTorch's sequence number.
//
// On CUDA LibTorch's own events, waits, allocations and frees come from c10::impl::GPUTrace. That
// is a trace which LibTorch keeps for Python's sanitizer. On the CPU allocations come from a
// wrapper that c10::SetCPUAllocator sets.
//
// An allocation is a write by its stream. When the memory is freed, LibTorch gives it back to one
// stream. The free is right if each use is ordered before the next work of that stream, or is
// recorded with the allocator.
//
// The checker knows a block of memory from its allocation until it is freed. Each access touches
// a region of its block. Two regions are first compared by their bounds. If their bounds overlap
// and nothing orders the accesses, the regions are compared byte for byte (region.cc).
//
// For slabs, HostSlab.HostReads and HostSlab.HostWrites report what the host does. HostSlab.Await
// reports that copies are over. The image loader reports its writes to its imageloader.Pinner.
// The prefetcher's Pinner reports these writes to the checker.

namespace ct::checker {
namespace {

void access(const at::Tensor& tensor, bool write, const Actor& by, const at::Tensor* through = nullptr) {
  Checker::instance().access(tensor, write, by, through);
  note(tensor, write, by);
}

// Reports that an operator on `device` reads or writes a tensor. If the tensor lies in host
// memory and the operator works on a CUDA device, the host makes the access.
void touch(const at::Tensor& tensor, bool write, c10::Device device, const at::Tensor* through = nullptr) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.layout() != at::kStrided) return;
  Checker& checker = Checker::instance();
  const bool on_host = tensor.is_cpu() && (device.is_cuda() || (thread.stream != nullptr && thread.stream->device.is_cuda()));
  // The host's own access comes after all work of CPU streams, which is done at once.
  if (on_host) checker.host_waits_for(c10::Device(c10::kCPU));
  const Queue queue = on_host ? Checker::kHost : current_queue(tensor.device());
  if (queue == Checker::kNone) return;
  // In backward, autograd itself tells LibTorch's allocator of the use.
  if (thread.backward || thread.stream == nullptr) checker.used(tensor, queue, true);
  access(tensor, write, actor(queue), through);
}

// Reports a copy between the host and a device. If the host need not wait for the copy and the
// host memory is page-locked, the device's stream makes both accesses.
void touch_copy(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  const at::Tensor& host = to.is_cpu() ? to : from;
  const at::Tensor& other = to.is_cpu() ? from : to;
  const bool async = non_blocking && host.has_storage() && at::detail::getCUDAHooks().isPinnedPtr(host.storage().data());
  const Queue queue = current_queue(other.device());
  if (async) {
    access(from, false, actor(queue));
    access(to, true, actor(queue));
    return;
  }
  touch(from, false, from.device());
  touch(to, true, to.device());
}

bool crosses(const at::Tensor& a, const at::Tensor& b) { return a.defined() && b.defined() && a.is_cpu() != b.is_cpu(); }

// ---- Operators

// Returns the first CUDA device among the devices of the arguments, or the CPU.
c10::Device device_of(c10::ArrayRef<const c10::IValue> inputs) {
  for (const c10::IValue& in : inputs) {
    if (in.isTensor() && in.toTensor().defined() && in.toTensor().is_cuda()) return in.toTensor().device();
    if (!in.isTensorList()) continue;
    for (const c10::IValue& t : in.toListRef()) {
      if (t.toTensor().defined() && t.toTensor().is_cuda()) return t.toTensor().device();
    }
  }
  return c10::Device(c10::kCPU);
}

void touch(const c10::IValue& in, bool write, c10::Device device, const at::Tensor* through) {
  if (in.isTensor()) {
    touch(in.toTensor(), write, device, through);
  } else if (in.isTensorList()) {
    for (const c10::IValue& t : in.toListRef()) touch(t.toTensor(), write, device);
  } else if (in.isList()) {  // Tensor?[]
    for (const c10::IValue& t : in.toListRef()) {
      if (t.isTensor()) touch(t.toTensor(), write, device);
    }
  }
}

void touch_all(const Effects& effects, c10::ArrayRef<const c10::IValue> inputs, std::optional<Mark>& mark) {
  const size_t count = effects.arguments.size();
  if (inputs.size() < count) return;
  inputs = inputs.slice(inputs.size() - count);  // the stack may hold other values below the arguments
  const c10::Device device = device_of(inputs);
  mark = begin(effects, inputs, device);
  if (effects.copies && crosses(inputs[0].toTensor(), inputs[1].toTensor())) {
    touch_copy(inputs[0].toTensor(), inputs[1].toTensor(), inputs[2].toBool());
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    if (effects.arguments[i] == Effects::none) continue;
    const auto early = std::find_if(effects.early.begin(), effects.early.end(), [&](const Effects::Early& e) { return e.argument == i && e.through >= 0; });
    const at::Tensor* const through = early == effects.early.end() ? nullptr : &inputs[static_cast<size_t>(early->through)].toTensor();
    touch(inputs[i], effects.arguments[i] == Effects::write, device, through);
  }
  if (effects.condition >= 0) {
    const c10::IValue& condition = inputs[static_cast<size_t>(effects.condition)];
    if (condition.isBool() ? condition.toBool() : condition.isTensor()) {
      for (size_t i : effects.conditional) touch(inputs[i], true, device, nullptr);
    }
  }
}

// Returns whether the thread runs an operator whose CPU kernel waits and whose CUDA kernel does
// not wait.
bool waits_on_cpu_alone() {
  return std::any_of(thread.ops.begin(), thread.ops.end(), [](const std::string& op) { return waits_on_cpu_alone_in(op); });
}

struct Entered final : at::ObserverContext {
  bool op = false, node = false;
  decltype(Thread::kernel) kernel{};  // before
  std::optional<values::Before> values;  // set for an operator whose values are checked
  Queue waits_for = Checker::kNone;  // set for an operator that gives the host a value
  std::optional<Mark> mark;
};

// Returns the number of the thread on which the call ends that found a fault in the values. It is 0
// on autograd's threads.
uint64_t raising_thread() { return thread.stream == nullptr ? 0 : ct_thread_id(); }

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& fn) {
  if (!watches()) return nullptr;
  auto entered = std::make_unique<Entered>();
  if (fn.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    Node node = forwards().get(fn.forwardThreadId(), fn.seqNr());
    if (values::is_on()) node.values = std::make_shared<values::Node>();
    if (!is_on()) {
      node.queue = Checker::kNone;
    } else if (thread.stream != nullptr && !thread.stream->device.is_cuda()) {
      // On the CPU LibTorch runs one node after the other. The checker treats the nodes as if they ran
      // on a device. A node runs on the stream of its forward operator, after the node before it.
      const Queue before = current_queue(thread.stream->device);
      if (node.queue == Checker::kNone) node.queue = before;
      Checker::instance().join(node.queue, before);
    } else {
      node.queue = Checker::kNone;
    }
    node.ops = thread.ops.size();
    thread.nodes.push_back(node);
    entered->node = true;
    return entered;
  }
  const auto name = fn.operator_name();
  if (!name) return entered;
  entered->op = true;
  entered->kernel = thread.kernel;
  const bool outermost = thread.ops.size() == (thread.nodes.empty() ? 0 : thread.nodes.back().ops);
  thread.ops.push_back(name->name);
  if (fn.seqNr() >= 0 && thread.nodes.empty() && thread.stream != nullptr) {
    const Queue queue = !is_on() || thread.stream->device.is_cuda() ? Checker::kNone : current_queue(thread.stream->device);
    forwards().set(at::RecordFunction::currentThreadId(), fn.seqNr(), {queue, thread.site, 0, nullptr});
  }
  try {
    if (outermost && values::is_on()) entered->values = values::before(fn);
    if (!is_on() || thread.kernel == Thread::kOneKernel) return entered;
    const Effects& effects = known_effects(*fn.operator_schema());
    touch_all(effects, fn.inputs(), entered->mark);
    if (effects.waits && !waits_on_cpu_alone()) entered->waits_for = current_queue(device_of(fn.inputs()));
  } catch (...) {
    // No memory is left, or a shape is unknown: the operator's accesses are not checked.
  }
  return entered;
}

// Looks at the values of an operator or a node that has ended.
void check_values(const at::RecordFunction& fn, const Entered& entered) {
  std::string fault;
  const Node* const node = thread.nodes.empty() ? nullptr : &thread.nodes.back();
  const bool judged = node != nullptr && node->values != nullptr;
  if (entered.values && judged) {
    values::after(fn, *entered.values, *node->values);
  } else if (entered.values) {
    fault = values::after(fn, *entered.values);
  } else if (entered.node && judged) {
    fault = values::after(*node->values);
  }
  if (!fault.empty()) values::found(std::move(fault), raising_thread(), node == nullptr ? 0 : node->site);
}

void leave(const at::RecordFunction& fn, at::ObserverContext* context) {
  const auto* entered = static_cast<Entered*>(context);
  if (entered == nullptr) return;
  try {
    if (values::is_on()) check_values(fn, *entered);
  } catch (...) {
    // No memory is left. The values of this operator are not checked.
  }
  if (entered->op && !thread.ops.empty()) {
    thread.ops.pop_back();
    thread.kernel = entered->kernel;
  }
  if (entered->mark && std::uncaught_exceptions() > 0) Checker::instance().no_full_edge(*entered->mark);
  if (is_on()) Checker::instance().host_waits(entered->waits_for);
  if (!entered->node || thread.nodes.empty()) return;
  const Node node = thread.nodes.back();
  thread.nodes.pop_back();
  // What comes next is ordered after this node: another node, or the work after the backward.
  if (node.queue != Checker::kNone && thread.stream != nullptr) Checker::instance().join(current_queue(thread.stream->device), node.queue);
}

std::atomic<at::CallbackHandle> callback{0};

// Adds the hooks to LibTorch, or takes them away.
void hook(bool wanted) {
  if (!wanted) {
    at::disableCallback(callback);
    forwards().forget();
  } else if (callback == 0) {
    callback = at::addGlobalCallback(at::RecordFunctionCallback(&enter, &leave)
                                         .needsInputs(true)
                                         .needsOutputs(true)
                                         .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  } else {
    at::reenableCallback(callback);
  }
}

void turn(bool on_now, bool values_now) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  const bool hooked = watches();
  values::on = values_now;
  if (hooked != (on_now || values_now)) hook(!hooked);
  if (on_now && is_on()) Checker::instance().report_anew();
  if (on_now == is_on()) return;
  if (on_now) {
    count_cpu_allocations();
    trace_cuda();
    Checker::instance().forget();
    on = true;
  } else {
    on = false;
    Checker::instance().forget();
  }
}

}  // namespace

// ---- The core's own calls

void reads(const char* op, const at::Tensor& tensor) {
  if (is_on()) access(tensor, false, actor(current_queue(tensor.device()), op));
}

void reads_elsewhere(const char* op, const at::Tensor& tensor) {
  if (!is_on() || thread.stream == nullptr) return;
  // The host reads the memory. The read comes after all work of CPU streams.
  const bool staged = tensor.is_cpu() && thread.stream->device.is_cuda();
  if (staged) Checker::instance().host_waits_for(c10::Device(c10::kCPU));
  Checker::instance().access(tensor, false, actor(staged ? Checker::kHost : current_queue(thread.stream->device), op));
}

void writes(const char* op, const at::Tensor& tensor) {
  if (is_on()) access(tensor, true, actor(current_queue(tensor.device()), op));
}

void slab(const char* op, const void* data, int64_t bytes, bool write, bool at_once) {
  if (!is_on() || thread.stream == nullptr) return;
  const Queue queue = Checker::instance().queue_of(*thread.stream);
  Checker::instance().access_slab(data, bytes, write, actor(at_once ? Checker::kHost : queue, op));
}

void used(const at::Tensor& tensor, const ct_stream& stream) {
  if (is_on()) Checker::instance().used(tensor, Checker::instance().queue_of(stream), false);
}

void full_edge(const ct_stream& stream) {
  if (is_on()) Checker::instance().full_edge(Checker::instance().queue_of(stream));
}

Known recorded(const ct_stream& stream) {
  return is_on() ? Checker::instance().record(Checker::instance().queue_of(stream)) : nullptr;
}

void waited(const ct_stream& stream, const Known& event) {
  if (is_on() && event != nullptr) Checker::instance().wait(Checker::instance().queue_of(stream), *event);
}

void ended(const ct_stream& stream) {
  if (is_on() && !stream.device.is_cuda()) quietly([&] { Checker::instance().ended(stream.id); });
}

void branches(const ct_stream& side, const ct_stream& parent) {
  if (is_on()) Checker::instance().branches(Checker::instance().queue_of(side), Checker::instance().queue_of(parent));
}

void host_waited_for(const Known& event) {
  if (is_on() && event != nullptr) quietly([&] { Checker::instance().host_waits(*event); });
}

void host_waited_for(const ct_stream& stream) {
  if (is_on()) Checker::instance().host_waits(Checker::instance().queue_of(stream));
}

void host_waited_for(c10::Device device) {
  if (is_on()) Checker::instance().host_waits_for(device);
}

void host_waited_for(c10::DeviceType type) {
  if (is_on()) Checker::instance().host_waits_for(c10::Device(type));
}

bool in_slab(const void* data) { return Checker::instance().in_slab(data); }

void slab_over(const void* data, int64_t bytes, const Known& event) {
  if (is_on() && event != nullptr) Checker::instance().slab_over(data, bytes, *event);
}

bool slab_born(const void* data, int64_t bytes) {
  return Checker::instance().slab_born(data, bytes);
}

void slab_dies(const void* data) {
  quietly([&] { Checker::instance().slab_dies(data); });
}

void host_reads(const at::Tensor& tensor) {
  if (is_on()) quietly([&] { Checker::instance().access(tensor, false, Actor{Checker::kHost, "the host", 0, 0, false}); });
}

void allocated(const void* data, int64_t bytes) {
  Checker::instance().born(data, bytes, actor(current_queue(c10::Device(c10::kCPU))));
}

void freed(const void* data) {
  quietly([&] { Checker::instance().dies(data, actor(Checker::kNone)); });
}

}  // namespace ct::checker

extern "C" {

ct_status* ct_check_streams(int32_t on) noexcept {
  return ct::guarded([&] {
    ct::load_cuda();
    ct::checker::turn((on & CT_CHECK_RACES) != 0, (on & CT_CHECK_VALUES) != 0);
  });
}

int32_t ct_race_take(ct_race* out) noexcept { return ct::Checker::instance().take(out); }

void ct_check_host(const void* data, int64_t bytes, int32_t write, uint64_t site) noexcept {
  if (!ct::checker::is_on()) return;
  ct::checker::quietly([&] {
    ct::Checker::instance().access_slab(data, bytes, write != 0, {ct::Checker::kHost, "the host", site, 0, false});
  });
}

void ct_check_full_edge(ct_exec x) noexcept {
  if (x.stream != nullptr) ct::checker::quietly([&] { ct::checker::full_edge(*x.stream); });
}

void ct_check_over(const void* data, int64_t bytes, const ct_event* event) noexcept {
  if (event != nullptr) ct::checker::quietly([&] { ct::checker::slab_over(data, bytes, event->known); });
}

}  // extern "C"
