// The streams, events and memory of LibTorch itself on CUDA, for the stream checker.
#pragma once

namespace ct::checker {

// Makes LibTorch report its events, waits, allocations and frees to the checker. The checker drops
// reports while it is off.
void trace_cuda();

}  // namespace ct::checker
