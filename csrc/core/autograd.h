// The steps that every backward makes with its arguments.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include "cgotorch.h"

namespace ct::autograd {

using torch::autograd::variable_list;

// The gradients of the roots in LibTorch's form: all of them, or none. Records their use on the
// stream.
variable_list gradients(ct_tensor* const* grads, int32_t count, const ct_stream& stream);

// The tensors of handles. The error for a NULL handle has its name. Records their use on the
// stream.
variable_list tensors(ct_tensor* const* handles, int32_t count, const char* name, const ct_stream& stream);

// The exec without autocast: backward runs in the dtypes that forward recorded.
ct_exec without_autocast(ct_exec x);

// LibTorch's backward, observed by the stream checker.
void backward(const variable_list& roots, const variable_list& grads, int32_t retain_graph);

}  // namespace ct::autograd
