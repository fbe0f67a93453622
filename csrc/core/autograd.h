// Functions that every call of backward uses for its arguments.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include "cgotorch.h"

namespace ct::autograd {

using torch::autograd::variable_list;

// Returns the gradients of the roots in LibTorch's form, or an empty list if `grads` is NULL.
// Records that the stream uses the gradients.
variable_list gradients(ct_tensor* const* grads, int32_t count, const ct_stream& stream);

// Returns the tensors of the handles. If a handle is NULL, throws an error that contains `name`.
// Records that the stream uses the tensors.
variable_list tensors(ct_tensor* const* handles, int32_t count, const char* name, const ct_stream& stream);

// Returns the exec without autocast, because backward runs in the dtypes that forward recorded.
ct_exec without_autocast(ct_exec x);

// Runs LibTorch's backward and tells the stream checker of it.
void backward(const variable_list& roots, const variable_list& grads, int32_t retain_graph);

// A base class of the library's own hooks. Such a hook neither changes nor reads the values of a
// gradient while the node runs, so the node may run on another stream.
struct OwnHook {
  virtual ~OwnHook() = default;
};

// A function that returns another tensor over the memory of the given tensor. The other tensor
// has its own edge in the autograd graph. The gradient of the given tensor is then the sum of the
// gradients of the two tensors. If there is no other tensor, the function returns an undefined
// tensor.
using Other = at::Tensor (*)(const at::Tensor&);
// Registers the function for ct_gradients. A static initialiser calls it, while the library is
// being loaded.
void gradient_has_another(Other other);

}  // namespace ct::autograd
