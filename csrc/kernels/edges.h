// The edges between kernels that follow each other closely.
//
// Note [Programmatic edges]
//
// Behind a full edge a kernel begins when all earlier work of its stream has ended. Between two
// kernels of a few microseconds this costs two more. Behind a programmatic edge its blocks begin
// while the kernel before still runs, as soon as there is room. They ask for their weights, and
// then wait for the end of the kernel before. The rule:
//
//   - A kernel may read before its wait only what was written before the last full edge, or before
//     the last kernel that had the edge `wait`. What the host has waited for is older. What an
//     operator returns counts as written by it, and so does memory that nobody has written.
//   - It writes nothing before its wait.
//   - At least one thread of each of its blocks waits. So the end of a kernel is the end of all
//     kernels before it.
//
// Kernels of LibTorch and of cuBLAS begin behind full edges. Copies and graphs have full edges on
// both sides.
//
// An operator of this library takes the name of its edge:
//
//   full    the kernel begins behind a full edge
//   early   the kernel has a programmatic edge, and reads before its wait what its operator
//           declares
//   wait    the kernel has a programmatic edge, and waits before it reads anything. The next kernel
//           begins when all kernels before this one have ended
//
// An operator declares what it reads early by declare_early_reads, which may be nothing. The stream
// checker reports a call that breaks the first rule.
//
// The three give equal bits. If `early` gives others than `wait`, the kernel reads something that
// its operator does not declare. Below compute capability 9.0 all edges are full.
#pragma once

#include <c10/util/Exception.h>

#include <string_view>

#include "core/device.h"
#include "core/early.h"

namespace ct {

enum Edge : int { kFullEdge, kEarlyEdge, kWaitEdge };  // kEdgesText has the same numbers

// Returns the edge that a kernel of the operator has on a device. On the CPU there is none.
inline Edge edge_of(const char* op, std::string_view name, c10::Device device) {
  TORCH_CHECK(name == "full" || name == "early" || name == "wait", op, ": the edge is \"", name, "\", want full, early or wait");
  if (name == "full" || !device.is_cuda() || cuda().chip(device.index()).capability < 90) return kFullEdge;
  return name == "early" ? kEarlyEdge : kWaitEdge;
}

inline CudaStart start_of(Edge edge) { return edge == kFullEdge ? CudaStart::kBehind : CudaStart::kProgrammatic; }

// What the text of a kernel calls, compiled with the macro EDGE, the number of its edge. Each
// thread calls `begin` before it reads memory of the device. It calls `wait` before it reads what
// kernels since the last full edge wrote, and before it writes there.
inline constexpr char kEdgesText[] = R"cuda(
__device__ __forceinline__ void begin() {
#if EDGE == 2
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
#if EDGE != 0
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait() {
#if EDGE == 1
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
)cuda";

}  // namespace ct
