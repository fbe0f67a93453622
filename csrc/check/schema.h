// What an operator does to the memory of its arguments. The source is the operator's schema,
// which a short table may correct.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

namespace ct {

struct Effects {
  enum Effect : uint8_t { none, read, write };
  std::vector<Effect> arguments;
  // The index of an argument, or -1. If that argument is true or present, the arguments of
  // `conditional` are written.
  int condition = -1;
  std::vector<size_t> conditional;
  // The operator copies argument 1 to argument 0. The two may be on different devices. Argument 2
  // says whether the host may run ahead.
  bool copies = false;
  // The argument that names the edge of the kernel, or -1: Note [Programmatic edges] in
  // kernels/edges.h.
  int edge = -1;
  struct Early {
    size_t argument;
    int through;  // the argument whose elements say which part is read, or -1
  };
  std::vector<Early> early;  // what the kernel reads before its wait, with the edge "early"
  bool waits = false;   // the host waits for the stream, because the operator gives the host a value
};

Effects effects_of(const c10::FunctionSchema& schema);
// Returns the same for an operator of LibTorch's dispatcher, from a table. A composite operator has
// none, because it only calls other operators, which say more exactly which memory they touch.
const Effects& known_effects(const c10::FunctionSchema& schema);

// Returns the names of the operators in the table.
std::vector<std::string> corrected_operators();

}  // namespace ct
