// A trace records the work of CUDA devices, with the stream of each kernel and copy.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cgotorch.h"
#include "core/stream.h"

namespace ct {

// trace_knows tells the running trace and later traces which number CUPTI gives a CUDA stream. It
// is called for each handle of a stream that is made. trace_forgets is called for each freed
// handle of a stream that the library does not own.
void trace_knows(const ct_stream& stream);
void trace_forgets(const ct_stream& stream) noexcept;

}  // namespace ct

struct ct_trace {
  std::vector<ct_trace_record> records;
  std::vector<std::string> names;
  int64_t lost = 0;
};
