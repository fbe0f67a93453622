// Which arguments operators read before their kernels wait. The kernels declare this to the stream
// checker: Note [Programmatic edges] in kernels/edges.h.
#pragma once

#include <string_view>
#include <vector>

namespace ct {

struct EarlyRead {
  std::string_view argument;
  // The argument whose elements say which part of `argument` the kernel reads and writes, or "". What
  // one such index reaches, another one in other memory does not reach. Of the part that the index
  // names, the kernel reads early nothing that it writes itself.
  std::string_view through = {};
};

// Declares the early reads of an operator that has an argument `edge`. Only while the library is
// loaded.
void declare_early_reads(std::string_view op, std::vector<EarlyRead> reads);

// Returns what was declared, or nothing.
const std::vector<EarlyRead>& early_reads(std::string_view op);

// Returns the operators with a declaration.
std::vector<std::string_view> operators_with_early_reads();

}  // namespace ct
