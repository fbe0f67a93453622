// Operators. One function runs every operator, because LibTorch's dispatcher knows each
// operator's schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "cgotorch.h"
#include "core/unboxed.h"

// Note [One entry for every operator]
//
// LibTorch's dispatcher knows the schema of each operator. ct_op_find returns a handle of an
// operator, and ct_call runs it. Arguments are passed as one flat array of words and one array of
// tensor handles. So nothing of Go's memory needs pinning, and no operator has a wrapper written
// by hand in C++.
//
// An operator whose arguments are a few tensors and numbers is called without boxing. Such
// operators are found by their signature, never by name.
//
// On the CPU a small add took 0.79 us as at::add in C++. It took 1.08 us in a cgo wrapper written
// by hand, and 1.12 us here. On CUDA the three times were 4.23, 4.45 and 4.57 us. Most of that is
// the launch.
//
// Without grad mode ct_call skips autograd's kernels, because they would only pass the call on.
// The kernels that count writes and mark views are not skipped.

namespace ct {

// An argument of a schema, and the values that it takes. ct_op makes it once, from the argument's
// type.
struct Argument {
  explicit Argument(const c10::Argument& schema);
  enum class Kind { tensor, integer, floating, boolean, number, string, device, generator, list, other };
  Kind kind = Kind::other;
  Kind element = Kind::other;      // if the kind is list: the kind of its elements
  bool optional = false;           // None is accepted
  bool optional_elements = false;  // the elements of the list may be None, as in Tensor?[]
  int32_t fixed_size = 0;          // 2 for int[2]; one number may then stand for a list of equal numbers
  // For a dtype, memory format or layout, whose values have numbers from 0: how many values there
  // are. LibTorch itself does not check that the number of a value is below this.
  int64_t numbered = 0;
  std::string name;
  std::string type;  // as the schema writes it
};

}  // namespace ct

struct ct_op {
  explicit ct_op(c10::OperatorHandle handle);
  const c10::OperatorHandle handle;
  const bool draws;  // the operator draws random numbers
  const bool looks;  // the operator looks at whether an argument requires a gradient, also without grad mode
  std::vector<ct::Argument> arguments;
  const std::unique_ptr<const ct::Unboxed> unboxed;  // or NULL
};
