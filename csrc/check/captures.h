// The accesses of captured functions, for the stream checker. capture_begins, capture_ends and
// launched of checker.h are here too.
#pragma once

#include <ATen/core/Tensor.h>

#include "check/clocks.h"

namespace ct::checker {

// Notes an access to a tensor, if the current stream of its device is being captured.
void note(const at::Tensor& tensor, bool write, const Checker::Actor& by);

}  // namespace ct::checker
