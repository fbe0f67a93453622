// The effects of an operator on the memory of its arguments: by its schema, and by a short table of
// corrections to schemas.
#pragma once

#include <ATen/core/function_schema.h>

#include <string>
#include <vector>

namespace ct {

struct Effects {
  enum Effect : uint8_t { none, read, write };
  std::vector<Effect> arguments;
  // The argument that decides whether those of conditional are written, by being true or present. Or
  // -1.
  int condition = -1;
  std::vector<size_t> conditional;
  // Argument 0 is written from argument 1, maybe across devices. Argument 2 says whether the host may
  // run ahead.
  bool copies = false;
  bool waits = false;   // for its stream, to give the host a value
};

Effects effects_of(const c10::FunctionSchema& schema);

// The operators in the table.
std::vector<std::string> corrected_operators();

}  // namespace ct
