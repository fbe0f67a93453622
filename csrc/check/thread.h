// What the stream checker knows of the calling thread: its operators, its nodes and its stream.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/checker.h"
#include "check/clocks.h"
#include "check/values.h"

namespace ct::checker {

using Queue = Checker::Queue;
using Actor = Checker::Actor;

// A node of autograd that is running.
struct Node {
  Queue queue = Checker::kNone;  // on the CPU: the queue of the forward operator
  uint64_t site = 0;
  size_t ops = 0;  // how many operators were running when the node began
  std::shared_ptr<values::Node> values;  // NULL while values are not checked
};

struct Thread {
  const ct_stream* stream = nullptr;  // the stream of the running call, NULL on autograd's threads
  uint64_t site = 0;
  bool backward = false;         // the running call is a backward
  // What the outermost operator that touches elements does: it launches kernels, or one kernel whose
  // edge its caller names. Operators inside that one do its work on the CPU, and make no accesses of
  // their own.
  enum { kNoKernel, kKernels, kOneKernel } kernel = kNoKernel;
  std::vector<std::string> ops;  // the running operators, innermost last
  std::vector<Node> nodes;       // the running nodes, innermost last
};
extern thread_local Thread thread;

// Says where the forward operator of a node ran. LibTorch gives the operator and its node the same
// thread number and the same sequence number. These two numbers are the key.
class Forwards {
 public:
  void set(uint64_t of, int64_t number, Node node);
  Node get(uint64_t of, int64_t number);
  void forget();

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::map<int64_t, Node>> threads_;
};
Forwards& forwards();

const c10::impl::VirtualGuardImpl& cuda_guard();

// Returns the queue of the work that the calling thread enqueues on the device now.
Queue current_queue(c10::Device device);

// Returns who makes the calling thread's accesses in the queue. op: the name that a report tells,
// or NULL for the operator that runs.
Actor actor(Queue queue, const char* op = nullptr);

// Runs f in a function that must not throw. If no memory is left, the report that f makes is
// lost, and that work is not checked.
template <typename F>
void quietly(F&& f) noexcept {
  try {
    f();
  } catch (...) {
  }
}

}  // namespace ct::checker
