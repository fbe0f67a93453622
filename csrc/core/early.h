// Which arguments operators read before their kernels wait. The operators declare this to the
// stream checker: Note [Programmatic edges] in kernels/edges.h.
#pragma once

#include <string_view>
#include <vector>

namespace ct {

// An argument that a kernel reads before its wait.
struct EarlyRead {
  std::string_view argument;
  // The argument that says which part of `argument` the kernel uses, or "". The caller promises
  // that two of them that share no memory name parts that share none. Of its part, the kernel reads
  // early nothing that it writes itself.
  std::string_view through = {};
};

// Declares the early reads of an operator that has an argument `edge`. It is for static
// initialisers alone: there is no lock.
void declare_early_reads(std::string_view op, std::vector<EarlyRead> reads);

// Returns what was declared, or nothing.
const std::vector<EarlyRead>& early_reads(std::string_view op);

// Returns the operators with a declaration.
std::vector<std::string_view> operators_with_early_reads();

}  // namespace ct
