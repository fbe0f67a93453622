// Recomputing. A node of the autograd graph keeps only its input, and computes everything else
// again in backward.
#include <ATen/ops/detach.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <mutex>
#include <optional>

#include "core/exec.h"
#include "core/tensor.h"
#include "core/token.h"
#include "core/versions.h"

// Note [Computing again]
//
// The node keeps only the input of a Go function. In backward it calls Go, on the thread that
// runs the node. Go runs the function again on the same stream, in a scope of its own. This run
// records its operators. Then the node runs a backward through these operators. That backward
// gives the gradient of the input, and accumulates the gradients of leaves.
//
// The second run must draw the same random numbers, but by then the state of LibTorch's default
// generator has changed. If the first run changes the state, Go keeps the state from before that
// run. The second run begins with the kept state. Other streams may draw from the same generator
// at the same time. So the states after the two runs are compared. If the two runs may have drawn
// different numbers, the backward fails.
//
// The node is in the graph whether or not the input requires a gradient.
//
// No panic and no Goexit of Go may pass through C++. So Go runs the function in a coroutine on
// the same thread, and a panic or a Goexit ends there. The status of the backward names the panic
// or Goexit as its cause, and Go raises it again in the caller of Backward. When the graph is
// freed, on any thread, Go's function is released. ct_live_handles counts the functions.

namespace {

using torch::autograd::variable_list;

// The caller's function.
class Function {
 public:
  Function(ct::Token token, const ct_function& f) : token_(std::move(token)), run_(f.run), release_(f.release) {}

  // Runs the function. `stream` is the stream of the memory of `in`.
  at::Tensor operator()(const at::Tensor& in, uint64_t stream) const {
    const ct::checker::Apart apart;
    ct_tensor* out = nullptr;
    const uint64_t failure = run_(token_.number(), new ct_tensor(in, stream), &out);
    if (failure != 0) {
      throw ct::Failure(CT_INTERNAL, "what was computed again failed", std::make_shared<const ct::Token>(failure, release_));
    }
    const std::unique_ptr<ct_tensor> owned(out);
    return ct::deref(out, "the result of a ct_function").tensor;
  }

 private:
  const ct::Token token_;
  uint64_t (*const run_)(uint64_t, ct_tensor*, ct_tensor**);
  void (*const release_)(uint64_t);
};

// The node of the autograd graph. It computes d(result)/d(in) by running the function again.
// Several threads may run the node, one after the other. LibTorch's own nodes allow the same.
class Recompute final : public torch::autograd::Node {
 public:
  Recompute(std::shared_ptr<const Function> function, const ct_tensor& in)
      : function_(std::move(function)), in_(in.tensor, /*is_output=*/false), stream_(in.stream) {
    // If `in` requires no gradient, the node has no edge. The engine then treats the node as a leaf,
    // and makes the end of the backward wait for it.
    if (in.tensor.requires_grad()) set_next_edges(torch::autograd::collect_next_edges(in.tensor));
  }

  std::string name() const override { return "Recompute"; }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    in_.reset_data();
    function_.reset();
  }

 private:
  variable_list apply(variable_list&& grads) override {
    // A backward with named inputs must give gradients to those inputs only. A recomputation would
    // also give gradients to the leaves that the function reads.
    if (!torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) {
      throw ct::Failure(CT_UNSUPPORTED,
                        "gradients of named inputs cannot be found through what is computed again; accumulate them with backward");
    }
    std::shared_ptr<const Function> function;
    at::Tensor in;
    {
      const std::lock_guard lock(mutex_);
      in = in_.unpack();
      function = function_;
    }
    const bool wanted = num_outputs() > 0;
    if (!grads[0].defined()) return variable_list(num_outputs());
    in = in.detach();
    in.set_requires_grad(wanted);
    {
      const at::Tensor out = (*function)(in, stream_);
      check(out);
      if (out.requires_grad()) torch::autograd::backward({out}, {std::move(grads[0])});
    }
    if (!wanted) return {};
    return {in.grad()};
  }

  void check(const at::Tensor& out) const {
    const torch::autograd::InputMetadata& first = input_metadata(0);
    TORCH_CHECK(first.is_same_shape(out) && first.options().dtype() == out.dtype() && first.device() == out.device(),
                "what was computed again is ", out.scalar_type(), out.sizes(), " on ", out.device(), ", where it was ",
                first.options().dtype().toScalarType(), first.shape_as_dim_vector(), " on ", first.device(), " the first time");
  }

  std::shared_ptr<const Function> function_;
  torch::autograd::SavedVariable in_;
  const uint64_t stream_;  // the stream of the memory of `in`
};

}  // namespace

extern "C" {

ct_status* ct_recompute(ct_exec x, ct_function f, const ct_tensor* in, const ct_tensor* result, ct_tensor** out) noexcept {
  ct::Token token(f.token, f.release);
  return ct::executed(x, [&] {
    const ct_tensor& from = ct::deref(in, "in");
    const ct_tensor& to = ct::deref(result, "result");
    ct::use(from, *x.stream);
    // `detach` makes a new tensor. A new tensor is needed if the result is `in` itself, a view of
    // `in`, or a leaf. `detach` is also the last operator before the node is made, so the stream
    // checker treats `detach` as the node's forward operator.
    at::Tensor recorded = to.tensor.detach();
    if (x.grad != 0 && torch::autograd::isDifferentiableType(recorded.scalar_type())) {
      auto function = std::make_shared<const Function>(std::move(token), f);
      torch::autograd::set_history(recorded, ct::new_node<Recompute>(std::move(function), from));
    }
    *out = new ct_tensor(std::move(recorded), to.stream);
  });
}

}  // extern "C"
