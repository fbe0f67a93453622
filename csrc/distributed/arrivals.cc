// The hooks by which gradients arrive at a Reducer: see Note [Gradients that arrive].
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/status.h"
#include "core/stream.h"
#include "distributed/reducer.h"
#include "kernels/cast.h"

namespace ct {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Edge;
using torch::autograd::Node;
using torch::autograd::variable_list;

// Called when autograd has added a gradient to that of a parameter.
struct AccumulatedHook final : torch::autograd::PostAccumulateGradHook, autograd::OwnHook {
  explicit AccumulatedHook(std::weak_ptr<Reducer> reducer) : reducer(std::move(reducer)) {}
  void operator()(const at::Tensor& parameter) override {
    if (const auto r = reducer.lock()) r->accumulated(parameter);
  }
  const std::weak_ptr<Reducer> reducer;
};

// Called when a node has computed the gradients of casts.
struct ComputedHook final : torch::autograd::FunctionPostHook, autograd::OwnHook {
  struct Output {
    size_t index, parameter;
    const Node* cast;
  };
  ComputedHook(std::weak_ptr<Reducer> reducer, uint64_t backward, std::vector<Output> outputs)
      : reducer(std::move(reducer)), backward(backward), outputs(std::move(outputs)) {}
  variable_list operator()(const variable_list& gradients, const variable_list&) override {
    const auto r = reducer.lock();
    if (r == nullptr) return gradients;
    variable_list results = gradients;
    for (const Output& o : outputs) {
      if (o.index < gradients.size() && gradients[o.index].defined()) results[o.index] = r->computed(backward, o.parameter, o.cast, gradients[o.index]);
    }
    return results;
  }
  const std::weak_ptr<Reducer> reducer;
  const uint64_t backward;
  const std::vector<Output> outputs;
};

// Called before a node casts gradients back.
struct CastHook final : torch::autograd::FunctionPreHook, autograd::OwnHook {
  CastHook(std::weak_ptr<Reducer> reducer, uint64_t backward, const Node* cast) : reducer(std::move(reducer)), backward(backward), cast(cast) {}
  variable_list operator()(const variable_list& gradients) override {
    if (const auto r = reducer.lock()) r->before_cast(backward, cast);
    return gradients;
  }
  const std::weak_ptr<Reducer> reducer;
  const uint64_t backward;
  const Node* const cast;
};

}  // namespace

void Reducer::listen(const std::shared_ptr<Reducer>& self) {
  for (const at::Tensor& t : self->parameters_) torch::autograd::impl::set_post_acc_grad_hooks(t, std::make_unique<AccumulatedHook>(self));
}

void Reducer::deafen() const {
  for (const at::Tensor& t : parameters_) torch::autograd::impl::set_post_acc_grad_hooks(t, nullptr);
}

void Reducer::follow(const std::shared_ptr<Reducer>& self, const variable_list& roots) {
  // All nodes that the roots reach, and for each gradient of a cast the edges to it.
  std::vector<Node*> found;
  std::unordered_map<const Node*, bool> seen;
  std::unordered_map<const Node*, std::unordered_map<uint32_t, int>> casts;
  const auto reach = [&](const Edge& edge) {
    Node* const node = edge.function.get();
    if (node == nullptr) return;
    if (!std::exchange(seen[node], true)) found.push_back(node);
    if (is_cast_weights(*node)) ++casts[node][edge.input_nr];
  };
  for (const at::Tensor& root : roots) reach(torch::autograd::impl::gradient_edge(root));
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge& edge : found[i]->next_edges()) reach(edge);
  }
  if (casts.empty()) return;
  for (Node* node : found) {
    if (is_cast_weights(*node)) {
      node->add_pre_hook(std::make_unique<CastHook>(self, backward_, node));
      continue;
    }
    std::vector<ComputedHook::Output> outputs;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const Edge& edge = node->next_edge(i);
      const auto cast = casts.find(edge.function.get());
      if (cast == casts.end() || cast->second.at(edge.input_nr) != 1) continue;  // autograd adds up several gradients after this
      const Edge& to = edge.function->next_edge(edge.input_nr);
      auto* const leaf = dynamic_cast<AccumulateGrad*>(to.function.get());
      if (leaf == nullptr || leaf->variable.grad().defined()) continue;
      if (const auto of = index_.find(leaf->variable.unsafeGetTensorImpl()); of != index_.end()) {
        outputs.push_back({i, of->second, edge.function.get()});
      }
    }
    if (!outputs.empty()) node->add_post_hook(std::make_unique<ComputedHook>(self, backward_, std::move(outputs)));
  }
}

void Reducer::accumulated(const at::Tensor& parameter) {
  const std::lock_guard lock(mutex_);
  const auto of = index_.find(parameter.unsafeGetTensorImpl());
  if (of == index_.end()) return;
  if (main_ == nullptr) {
    ++missed_[of->second];
    return;
  }
  if (const Arrival& a = arrivals_[of->second]; a.begun) {
    if (a.cast != nullptr) return;
    throw Failure(CT_UNSUPPORTED, c10::str("a weight of ", parameter.sizes(), " got a second gradient in one backward, after the first was reduced: recomputed "
                                      "parts that share a weight need one Recompute around all of them, or Exec.Backward and an AllReduce of the gradients"));
  }
  arrive(of->second, parameter.grad(), nullptr);
}

at::Tensor Reducer::computed(uint64_t backward, size_t parameter, const Node* cast, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  if (main_ == nullptr || backward != backward_ || arrivals_[parameter].gradient.defined()) return gradient;
  // The hook has the list of the engine and a copy of it, so the tensor has two owners.
  constexpr int64_t kOwners = 2;
  const bool own = gradient.is_non_overlapping_and_dense() && gradient.use_count() <= kOwners && gradient.storage().use_count() == 1;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor reduced = own ? gradient : gradient.clone(at::MemoryFormat::Preserve);
  arrive(parameter, reduced, cast);
  return reduced;
}

void Reducer::before_cast(uint64_t backward, const Node* cast) {
  const std::lock_guard lock(mutex_);
  if (main_ == nullptr || backward != backward_) return;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    Arrival& a = arrivals_[i];
    if (a.cast != cast || a.begun) continue;
    a = {};
    ++buckets_[bucket_of_[i]].missing;
  }
  finish(*main_);  //edge:reducer-cast-waits TestGradients_Casts checked
}

// Notes a gradient. The caller holds the mutex.
void Reducer::arrive(size_t parameter, const at::Tensor& gradient, const Node* cast) {
  Arrival& a = arrivals_[parameter];
  const bool first = !a.gradient.defined();
  a.gradient = gradient;
  a.cast = cast;
  if (!first) return;
  if (group_.device.is_cuda()) {
    const c10::Stream from = c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(group_.device);
    if (from != main_->stream && std::find(sources_.begin(), sources_.end(), from) == sources_.end()) sources_.push_back(from);
  }
  if (--buckets_[bucket_of_[parameter]].missing == 0 && !zeros_) reduce_ready();
}

}  // namespace ct
