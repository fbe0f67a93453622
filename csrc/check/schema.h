// What an operator does with the memory of its arguments: by its schema, and a short table of what schemas get wrong.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

namespace ct {

struct Effects {
  enum Effect : uint8_t { none, read, write };
  std::vector<Effect> arguments;
  int condition = -1;  // the argument that says, by being true or there, whether those of conditional are written; or -1
  std::vector<size_t> conditional;
  bool copies = false;  // argument 0 is written from argument 1, maybe across devices; argument 2 says whether the host may run ahead
  bool waits = false;   // for its stream, to give the host a value
};

Effects effects_of(const c10::FunctionSchema& schema);

// The operators in the table.
std::vector<std::string> corrected_operators();

}  // namespace ct
