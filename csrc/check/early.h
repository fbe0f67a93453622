// Reads before the wait of a kernel, for the stream checker: Note [Programmatic edges] in
// kernels/edges.h. Checker::begins and Checker::reads_early are here too.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include "check/schema.h"

namespace ct::checker {

// Reports that the calling thread begins an operator on the device. With a programmatic edge its
// kernel begins while the one before still runs. With the edge "early" it reads some arguments
// before its wait.
void begin(const Effects& effects, c10::ArrayRef<const c10::IValue> inputs, c10::Device device);

}  // namespace ct::checker
