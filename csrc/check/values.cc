#include "check/values.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/view_as_real.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "core/device.h"
#include "core/status.h"
#include "core/versions.h"

namespace ct::values {
namespace {

State state_of(double v) { return std::isnan(v) ? State::nan : std::isinf(v) ? State::inf : State::finite; }

// While the object lives, operators run on the calling thread that are no part of the program. No
// hook, no autograd, no autocast and no watch sees them.
class Unseen {
  const at::RecordFunctionGuard hooks_{false};
  const c10::impl::ExcludeDispatchKeyGuard modes_{c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset};
  const c10::DebugInfoGuard watch_{kWatchKind, nullptr};
};

// Returns the elements as real numbers that LibTorch can compare. They are undefined for a tensor
// that has none, or whose elements cannot be read.
at::Tensor numbers(const at::Tensor& t) {
  if (!t.defined() || !(t.is_floating_point() || t.is_complex()) || t.layout() != at::kStrided || !t.has_storage()) return {};
  if (t.is_meta() || t.is_nested() || t.numel() == 0) return {};
  if (t.is_cuda() && cuda().is_capturing(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(t.device()))) return {};
  const at::Tensor real = t.is_complex() ? at::view_as_real(t.resolve_conj()) : t;
  return real.scalar_type() == at::kFloat || real.scalar_type() == at::kDouble ? real : real.to(at::kFloat);
}

State state_of(const at::Tensor& t) {
  const Unseen unseen;
  const at::Tensor all = numbers(t);
  if (!all.defined()) return State::finite;
  const auto [least, most] = at::aminmax(all);  // both are NaN if an element is
  return std::max(state_of(least.item<double>()), state_of(most.item<double>()));
}

State state_of(const c10::IValue& v) {
  if (v.isTensor()) return state_of(v.toTensor());
  if (v.isDouble()) return state_of(v.toDouble());
  if (v.isComplexDouble()) return std::max(state_of(v.toComplexDouble().real()), state_of(v.toComplexDouble().imag()));
  State worst = State::finite;
  if (v.isList()) {
    for (const c10::IValue& e : v.toListRef()) worst = std::max(worst, state_of(e));
  }
  return worst;
}

void add_tensors(const c10::IValue& v, std::vector<at::Tensor>& to) {
  if (v.isTensor()) to.push_back(v.toTensor());
  if (!v.isList()) return;
  for (const c10::IValue& e : v.toListRef()) {
    if (e.isTensor()) to.push_back(e.toTensor());
  }
}

// Returns whether the results may have elements that are no function of the inputs' elements, such
// as memory that nobody has written.
bool is_uninitialised(const std::string& op) {
  return op.find("empty") != std::string::npos || op.find("resize") != std::string::npos || op == "aten::set_" || op == "aten::set_data" ||
         op.starts_with("aten::as_strided");
}

std::string describe(const std::string& op, const at::Tensor& t, State state, State inputs) {
  const Unseen unseen;
  const at::Tensor all = numbers(t);
  const bool nan = state == State::nan;
  std::ostringstream out;
  out << op << " made the first " << (nan ? "NaN" : "Inf") << ": " << (nan ? at::isnan(all) : at::isinf(all)).sum().item<int64_t>() << " of "
      << all.numel() << " numbers of its result " << t.scalar_type() << t.sizes() << ", and its inputs "
      << (inputs == State::finite ? "are finite" : "have Inf, but no NaN");
  return out.str();
}

// Calls f for each result with NaN or Inf, until it returns true.
template <typename F>
void each_bad(const at::RecordFunction& fn, const Before& before, F&& f) {
  const auto found = fn.operator_schema();  // a copy
  const c10::FunctionSchema& schema = *found;
  if (is_uninitialised(schema.name())) return;
  const auto look = [&](const at::Tensor& t) {
    const State state = state_of(t);
    return state != State::finite && f(t, state);
  };
  for (const at::Tensor& t : before.written) {
    if (look(t)) return;
  }
  const auto& returns = schema.returns();
  c10::ArrayRef<c10::IValue> outputs = fn.outputs();
  if (outputs.size() < returns.size()) return;  // the operator has failed
  outputs = outputs.slice(outputs.size() - returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    const c10::AliasInfo* const alias = returns[i].alias_info();
    if (alias != nullptr && alias->isWrite()) continue;  // one of before.written
    std::vector<at::Tensor> tensors;
    add_tensors(outputs[i], tensors);
    for (const at::Tensor& t : tensors) {
      if (look(t)) return;
    }
  }
}

struct Fault {
  std::string text;
  uint64_t forward;
};

struct Faults {
  std::mutex mutex;
  std::map<uint64_t, Fault> by_thread;
};

Faults& faults() {
  static auto* const all = new Faults;
  return *all;
}

}  // namespace

Before before(const at::RecordFunction& fn) {
  Before known;
  const auto found = fn.operator_schema();  // a copy
  const c10::FunctionSchema& schema = *found;
  const auto& arguments = schema.arguments();
  c10::ArrayRef<const c10::IValue> inputs = fn.inputs();
  if (inputs.size() < arguments.size()) return known;
  inputs = inputs.slice(inputs.size() - arguments.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = arguments[i].alias_info();
    const bool written = alias != nullptr && alias->isWrite();
    if (written) add_tensors(inputs[i], known.written);
    if (written && (arguments[i].is_out() || schema.name() == "aten::copy_")) continue;  // it is not read
    known.inputs = std::max(known.inputs, state_of(inputs[i]));
  }
  return known;
}

std::string after(const at::RecordFunction& fn, const Before& before) {
  std::string fault;
  if (before.inputs == State::nan) return fault;
  each_bad(fn, before, [&](const at::Tensor& t, State state) {
    if (state <= before.inputs) return false;
    fault = describe(fn.name(), t, state, before.inputs);
    return true;
  });
  return fault;
}

void after(const at::RecordFunction& fn, const Before& before, Node& node) {
  each_bad(fn, before, [&](const at::Tensor& t, State state) {
    if (state > before.inputs) node.fault = describe(fn.name(), t, state, before.inputs);
    if (!node.fault.empty()) node.results.push_back({c10::weak_intrusive_ptr<c10::TensorImpl>(t.getIntrusivePtr()), node.fault});
    return false;
  });
}

std::string after(const Node& node) {
  for (const Node::Result& result : node.results) {
    auto alive = result.tensor.lock();
    if (alive != nullptr && state_of(at::Tensor(std::move(alive))) != State::finite) return result.fault;
  }
  return "";
}

void found(std::string fault, uint64_t thread, uint64_t forward) {
  Faults& all = faults();
  const std::lock_guard lock(all.mutex);
  all.by_thread.try_emplace(thread, Fault{std::move(fault), forward});
}

void raise(bool backward) {
  if (!is_on()) return;
  Fault fault;
  {
    Faults& all = faults();
    const std::lock_guard lock(all.mutex);
    auto at = all.by_thread.find(ct_thread_id());
    if (at == all.by_thread.end() && backward) at = all.by_thread.find(0);
    if (at == all.by_thread.end()) return;
    fault = std::move(at->second);
    all.by_thread.erase(at);
  }
  throw Failure(CT_INTERNAL, std::move(fault.text), nullptr, fault.forward);
}

}  // namespace ct::values
