// What every backward does with its arguments.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include "cgotorch.h"

namespace ct::autograd {

using torch::autograd::variable_list;

// The gradients of the roots as LibTorch wants them: all of them, or none. Their use on the stream is recorded.
variable_list gradients(ct_tensor* const* grads, int32_t count, const ct_stream& stream);

// The tensors of handles, which are named in the error for NULL. Their use on the stream is recorded.
variable_list tensors(ct_tensor* const* handles, int32_t count, const char* name, const ct_stream& stream);

// Backward runs in the dtypes that forward recorded, whatever the exec's autocast says.
ct_exec without_autocast(ct_exec x);

// LibTorch's backward, which the stream checker follows.
void backward(const variable_list& roots, const variable_list& grads, int32_t retain_graph);

}  // namespace ct::autograd
