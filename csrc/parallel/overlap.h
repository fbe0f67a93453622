// An Overlap computes the gradient of a layer's input and the gradients of its weights on two
// streams at once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "cgotorch.h"
#include "core/stream.h"
#include "parallel/choice.h"
#include "parallel/overlap_late.h"

namespace ct {

// Overlapping permits one backward to use side streams. LibTorch gives the Overlapping to each
// thread that runs a node of the backward: see Note [Whose call it is].
class Overlapping final : public c10::DebugInfoBase {
 public:
  Overlapping(ct_overlap& overlap, const ct_stream& main, const std::vector<const ct_stream*>& sides, ct_graph_pool* pool,
              const torch::autograd::variable_list& roots)
      : overlap(overlap), main(main), side(*sides.front()), sides(sides), streams(static_cast<int>(sides.size()) + 1), pool(pool), late(roots, main, sides) {}

  // Returns the Overlapping of the backward whose node the calling thread runs, or NULL.
  static Overlapping* current() noexcept;

  ct_overlap& overlap;
  const ct_stream& main;
  const ct_stream& side;  // for layers whose gradients `main` waits for at once
  const std::vector<const ct_stream*> sides;
  const int streams;
  ct_graph_pool* const pool;  // of the graph in whose capture or warm-up run this backward is, or NULL
  LateGradients late;
};

// OverlapScope permits the calling thread's backward from the roots to use side streams, while
// the object lives. There is at least one side stream. The side streams already wait for `main`.
// After the backward, `main` waits for them.
class OverlapScope {
 public:
  OverlapScope(ct_overlap& overlap, const ct_stream& main, const std::vector<const ct_stream*>& sides, ct_graph_pool* pool,
               const torch::autograd::variable_list& roots);
  ~OverlapScope();
  OverlapScope(const OverlapScope&) = delete;
  OverlapScope& operator=(const OverlapScope&) = delete;

 private:
  const int failures_;                          // number of uncaught exceptions when this object was made
  const std::shared_ptr<Overlapping> leave_;    // shared, because LibTorch's threads may hold it for longer
  const c10::DebugInfoGuard info_;
};

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of a layer's input, its weights and its bias
using GradientMask = std::array<bool, 3>;                           // the gradients that are wanted

// LayerBackward is one layer's part of a backward.
struct LayerBackward {
  const char* op;  // name of the operator, for reports
  std::string kind;  // the kind of layer with its shapes, for the key of a Choice
  const GradientMask& wanted;
  const at::Tensor& grad;   // the gradient of the layer's result
  const at::Tensor& input;  // the layer's input; input and grad give the gradients of weights and bias
  const std::function<Gradients(const GradientMask& wanted)> run;
};

// Returns the Overlapping for a layer's gradients, or NULL if the layer must run on one stream. A
// layer must run on one stream if only one of the gradients of input and weights is wanted. It
// must also run on one stream if the backward's operators do not run on `main`, because the side
// streams serve `main` only. `grad` is the gradient of the layer's result.
Overlapping* leave_for(const at::Tensor& grad, const GradientMask& wanted);
// Computes a layer's gradients in the faster way. If the Overlap was made with `always`, computes
// them on two streams from the layer's second call on.
Gradients overlapped(Overlapping& o, const LayerBackward& layer);

// A Described is a tensor that is written as text, as a part of a key.
struct Described {
  const at::Tensor& tensor;
};
std::ostream& operator<<(std::ostream& out, const Described& of);

// Returns a new torch::Library. A kernel that is registered with it replaces LibTorch's kernel. The
// torch::Library lives as long as the process.
torch::Library& library_for_life(c10::DispatchKey key);

// Makes each linear layer one node of the autograd graph. Its two matrix products can then be
// told apart from other products (overlap_linear.cc).
void install_linear();

// True if the program has made an Overlap. An Overlap can serve a linear layer only if this was
// true when the layer's forward ran.
extern std::atomic<bool> any_overlap;
// Reports whether a node is the node of a linear layer.
bool is_linear(const torch::autograd::Node& node);

}  // namespace ct

struct ct_overlap {
  explicit ct_overlap(int32_t always) : always(always != 0) {}
  // Reports whether memory ran out when this layer ran on two streams.
  bool is_short(const std::string& key) {
    const std::lock_guard lock(mutex);
    return short_of_memory.count(key) > 0;
  }
  const bool always;
  ct_choice choice{ct::Choice::kTrials, ct::Choice::kGain};
  std::mutex mutex;
  std::set<std::string> seen;    // if `always` is set: layers that have run once, so that libraries have chosen their kernels
  std::set<std::string> parallel_layers;  // layers that have run on two streams
  std::set<std::string> short_of_memory;
  int64_t calls_parallel = 0, calls_late = 0, calls_serial = 0;
  int64_t kept = 0;  // the most bytes that any backward kept alive for late gradients
  double saved = 0;  // microseconds, by the times that were measured for the choice
};
