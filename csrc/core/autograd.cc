#include "core/autograd.h"

#include <ATen/ops/add.h>
#include <torch/csrc/autograd/autograd.h>

#include "core/exec.h"
#include "core/tensor.h"

namespace ct::autograd {

variable_list gradients(ct_tensor* const* grads, int32_t count, const ct_stream& stream) {
  variable_list list;
  if (grads == nullptr) return list;
  for (int32_t i = 0; i < count; ++i) {
    //edge:gradient-given-tells-use TestStream_FreedGradientsOutliveTheirUse gpu
    if (grads[i] != nullptr) use(*grads[i], stream);
    list.push_back(grads[i] == nullptr ? at::Tensor() : grads[i]->tensor);
  }
  return list;
}

variable_list tensors(ct_tensor* const* handles, int32_t count, const char* name, const ct_stream& stream) {
  variable_list list;
  for (int32_t i = 0; i < count; ++i) {
    const ct_tensor& handle = deref(handles[i], name);
    use(handle, stream);
    list.push_back(handle.tensor);
  }
  return list;
}

ct_exec without_autocast(ct_exec x) {
  x.autocast = -1;
  return x;
}

void backward(const variable_list& roots, const variable_list& grads, int32_t retain_graph) {
  const checker::Backward checked;
  torch::autograd::backward(roots, grads, retain_graph != 0, false);
  values::raise(true);
}

namespace {

Other other = nullptr;

// Appends the other tensors to `tensors`: see Other. For each tensor that was appended, the
// result has the index of the tensor to which it belongs.
std::vector<size_t> add_others(torch::autograd::variable_list& tensors) {
  std::vector<size_t> wholes;
  for (size_t i = 0, count = tensors.size(); i < count; ++i) {
    if (at::Tensor t = other == nullptr ? at::Tensor() : other(tensors[i]); t.defined()) {
      tensors.push_back(std::move(t));
      wholes.push_back(i);
    }
  }
  return wholes;
}

// The last gradients in `found` are those of the other tensors. Adds each of them to the gradient
// of the tensor to which the other tensor belongs.
void join_others(torch::autograd::variable_list& found, const std::vector<size_t>& wholes) {
  const size_t first = found.size() - wholes.size();
  for (size_t i = 0; i < wholes.size(); ++i) {
    at::Tensor& whole = found[wholes[i]];
    if (const at::Tensor& part = found[first + i]; part.defined()) whole = whole.defined() ? at::add(whole, part) : part;
  }
}

}  // namespace

void gradient_has_another(Other function) { other = function; }

}  // namespace ct::autograd

using ct::autograd::gradients;
using ct::autograd::tensors;
using ct::autograd::without_autocast;

extern "C" {

ct_status* ct_backward(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count,
                       int32_t retain_graph) noexcept {
  return ct::executed(without_autocast(x), [&] {
    ct::autograd::backward(tensors(roots, count, "root", *x.stream), gradients(grads, count, *x.stream), retain_graph);
  });
}

ct_status* ct_gradients(ct_exec x, ct_tensor* const* roots, ct_tensor* const* grads, int32_t count, ct_tensor* const* inputs,
                        int32_t input_count, int32_t retain_graph, int32_t create_graph, int32_t allow_unused,
                        ct_tensor** out) noexcept {
  return ct::executed(without_autocast(x), [&] {
    const ct::checker::Backward backward;
    auto of = tensors(inputs, input_count, "input", *x.stream);
    const std::vector<size_t> wholes = ct::autograd::add_others(of);
    auto found = torch::autograd::grad(tensors(roots, count, "root", *x.stream), of, gradients(grads, count, *x.stream), retain_graph != 0,
                                       create_graph != 0, allow_unused != 0 || !wholes.empty());
    ct::autograd::join_others(found, wholes);
    ct::values::raise(true);
    for (int32_t i = 0; i < input_count; ++i) {
      TORCH_CHECK(found[i].defined() || allow_unused != 0, "input ", i, " was not used to compute the roots (AllowUnused allows that)");
    }
    for (int32_t i = 0; i < input_count; ++i) {
      //edge:gradient-returned-is-foreign TestStream_FreedGradientsOutliveTheirUse gpu
      out[i] = found[i].defined() ? new ct_tensor(found[i], CT_STREAM_UNKNOWN) : nullptr;
    }
  });
}

ct_status* ct_tensor_set_requires_grad(const ct_tensor* tensor, int32_t requires_grad) noexcept {
  return ct::guarded([&] {
    const at::Tensor& t = ct::deref(tensor, "tensor").tensor;
    TORCH_CHECK(t.is_leaf(), "only a leaf can be made to require a gradient or not to; this tensor is the result of an operator");
    t.set_requires_grad(requires_grad != 0);
  });
}

void ct_tensor_grad(const ct_tensor* tensor, ct_tensor** out) noexcept {
  const at::Tensor none;
  const at::Tensor& grad = tensor == nullptr ? none : tensor->tensor.grad();
  if (*out != nullptr && grad.defined() && (*out)->tensor.is_same(grad)) return;
  ct_tensor* before = *out;  // freed last, because a new handle at the same address would look like the old one
  // Backward made the gradient on the stream of a forward operator. That stream is not known here.
  //edge:gradient-is-foreign TestStream_FreedGradientOutlivesItsUse gpu
  *out = grad.defined() ? new ct_tensor(grad, CT_STREAM_UNKNOWN) : nullptr;
  delete before;
}

ct_status* ct_tensor_set_grad(const ct_tensor* tensor, const ct_tensor* grad) noexcept {
  return ct::guarded([&] {
    const at::Tensor& of = ct::deref(tensor, "tensor").tensor;
    if (grad == nullptr) {
      of.mutable_grad().reset();
      return;
    }
    const at::Tensor& to = grad->tensor;
    TORCH_CHECK(to.sizes() == of.sizes() && to.scalar_type() == of.scalar_type() && to.device() == of.device(),
                "a gradient must have the shape, dtype and device of its tensor, ", of.sizes(), " of ", of.scalar_type(), " on ",
                of.device(), "; got ", to.sizes(), " of ", to.scalar_type(), " on ", to.device());
    of.mutable_grad() = grad->tensor;
  });
}

void ct_tensor_bump_version(const ct_tensor* tensor) noexcept {
  if (tensor != nullptr) tensor->tensor.unsafeGetTensorImpl()->bump_version();
}

}  // extern "C"
