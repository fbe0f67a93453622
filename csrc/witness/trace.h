// Traces: what CUDA devices ran, on which streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cgotorch.h"
#include "core/stream.h"

namespace ct {

// To be told of each CUDA stream that there is, so that a trace knows it by its number.
void trace_knows(const ct_stream& stream);
void trace_forgets(const ct_stream& stream) noexcept;

}  // namespace ct

struct ct_trace {
  std::vector<ct_trace_record> records;
  std::vector<std::string> names;
  int64_t lost = 0;
};
