// One entry runs every operator: LibTorch's dispatcher knows each one's schema.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <vector>

#include "cgotorch.h"
#include "core/unboxed.h"

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
