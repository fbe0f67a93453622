// The arguments of one call of an operator, as words and tensors of the C ABI.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>

#include "core/op.h"

namespace ct {

// Reads the words and the tensors of a call, and puts the arguments of the operator's schema on the
// stack. Missing ones become their defaults. Throws if they do not fit the schema. Records that the
// exec's stream uses the tensors.
void read_arguments(const ct_exec& x, const ct_op& op, const uint64_t* words, int32_t word_count, ct_tensor* const* tensors,
                    int32_t tensor_count, torch::jit::Stack& stack);

}  // namespace ct
