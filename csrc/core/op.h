// One entry runs every operator: LibTorch's dispatcher knows each one's schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "cgotorch.h"
#include "core/unboxed.h"

// Note [One entry for every operator]
//
// LibTorch's dispatcher knows the schema of each operator. ct_op_find returns a handle once, and
// ct_call runs it. Arguments travel as one flat array of words and one of tensor handles, so
// nothing needs pinning. There are no operator wrappers written by hand in C++.
//
// Operators whose signature has a few tensors and numbers are called without boxing. They are
// found by signature, never by name. A small add on the CPU took 0.79 us as at::add in C++, 1.08
// us in a cgo wrapper written by hand and 1.12 us here. On CUDA it took 4.23, 4.45 and 4.57 us,
// most of it the launch.
//
// Without grad mode ct_call goes past autograd's kernels, which would only pass the call on.
// Those that count writes and mark views stay.

namespace ct {

// The values that an argument of a schema takes, read from its type once.
struct Argument {
  enum class Kind { tensor, integer, floating, boolean, number, string, device, generator, list, other };
  Kind kind = Kind::other;
  Kind element = Kind::other;      // of a list
  bool optional = false;           // None is accepted
  bool optional_elements = false;  // Tensor?[]
  int32_t fixed_size = 0;          // of int[2]: one number stands for two equal numbers
  // Of a dtype, memory format or layout: how many there are. LibTorch reads others unchecked.
  int64_t numbered = 0;
  std::string name;
  std::string type;  // as the schema writes it
};

}  // namespace ct

struct ct_op {
  explicit ct_op(c10::OperatorHandle handle);
  const c10::OperatorHandle handle;
  const bool draws;  // random numbers
  std::vector<ct::Argument> arguments;
  const std::unique_ptr<const ct::Unboxed> unboxed;  // or NULL
};
