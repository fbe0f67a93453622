// Traces: the work of CUDA devices, with its streams.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cgotorch.h"
#include "core/stream.h"

namespace ct {

// Tells a trace of a CUDA stream, which the trace then knows by its number. To be called for each
// stream.
void trace_knows(const ct_stream& stream);
void trace_forgets(const ct_stream& stream) noexcept;

}  // namespace ct

struct ct_trace {
  std::vector<ct_trace_record> records;
  std::vector<std::string> names;
  int64_t lost = 0;
};
