// Reads before the wait of a kernel, for the stream checker: Note [Programmatic edges] in
// kernels/edges.h. early.cc also has Checker::full_edge and Checker::reads_early.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>

#include <optional>

#include "check/clocks.h"
#include "check/schema.h"

namespace ct::checker {

using Mark = Checker::Mark;

// Reports that the calling thread begins an operator on the device. The call comes before the
// operator's reads and writes are reported. The edges "full" and "wait" mark the stream. With the
// edge "early" each declared read is held against the writes since that mark. Operators inside
// another one, and those that touch no element, do nothing. Edges count as on compute capability
// 9.0, on the CPU too. inputs: in the order of the schema. Returns the mark, which is taken back if
// the operator fails.
std::optional<Mark> begin(const Effects& effects, c10::ArrayRef<const c10::IValue> inputs, c10::Device device);

}  // namespace ct::checker
