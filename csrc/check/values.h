// The check of values finds the operator that makes the first NaN or Inf. check/checker.cc calls
// it before and after each operator.
#pragma once

#include <ATen/record_function.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Note [The first NaN]
//
// An operator is at fault if it makes a NaN from inputs without NaN, or an Inf from finite inputs.
// Inputs are tensors and numbers. So a mask of -Inf is no fault, and neither is an operator that
// passes a NaN on. An operator that returns uninitialised memory is never at fault.
//
// Only the operator that the program calls is judged, and not the operators that it calls in turn:
// they may make a NaN that the outer one replaces. The same is true for a node of backward. So a
// node is judged by the results of its operators that outlive it.

namespace ct::values {

inline constinit std::atomic<bool> on{false};
inline bool is_on() noexcept { return __builtin_expect(on.load(std::memory_order_relaxed), 0); }

enum class State : uint8_t { finite, inf, nan };

// What is known of an operator before it runs.
struct Before {
  State inputs = State::finite;
  std::vector<at::Tensor> written;  // arguments that the operator writes
};

// What is known of the operators of a node of backward so far.
struct Node {
  struct Result {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    std::string fault;
  };
  std::string fault;            // of the last operator at fault, or ""
  std::vector<Result> results;  // those with NaN or Inf
};

// Looks at the inputs of an operator. Waits for the device.
Before before(const at::RecordFunction& fn);
// Returns what is wrong with the results of the operator, or "". Waits for the device.
std::string after(const at::RecordFunction& fn, const Before& before);
// Does what `after` does for an operator that a node of backward calls.
void after(const at::RecordFunction& fn, const Before& before, Node& node);
// Returns what is wrong with the results of a node that has ended, or "".
std::string after(const Node& node);

// Keeps a fault until `raise`. `thread` is that of the call that will raise it, or 0 for a thread
// of autograd's. `forward` is the site of the forward call that is differentiated, or 0. Of
// several faults for one thread, the first is kept.
void found(std::string fault, uint64_t thread, uint64_t forward);
// Throws the fault that the calling thread has found, and a backward also one that a thread of
// autograd's has found.
void raise(bool backward);

}  // namespace ct::values
