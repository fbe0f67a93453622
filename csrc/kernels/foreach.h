// Work on lists of tensors by one kernel for a whole list.
#pragma once

#include <ATen/core/Tensor.h>

namespace ct::foreach {

// Copies each tensor of `from` to the tensor at the same place in `to`, with the bits of
// at::_foreach_copy_. The caller must hold an at::AutoDispatchBelowADInplaceOrView.
void copy(at::TensorList to, at::TensorList from);

}  // namespace ct::foreach
