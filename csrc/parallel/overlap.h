// Overlap: the gradients of a layer's input and of its weights, on two streams at once.
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

// One backward's leave to use a side stream. LibTorch hands it to the threads that run the
// backward's nodes, as it does a Watch.
class Overlapping final : public c10::DebugInfoBase {
 public:
  Overlapping(ct_overlap& overlap, const ct_stream& main, const std::vector<const ct_stream*>& sides, ct_graph_pool* pool,
              const torch::autograd::variable_list& roots)
      : overlap(overlap), main(main), side(*sides.front()), streams(static_cast<int>(sides.size()) + 1), pool(pool), late(roots, main, sides) {}

  // The leave of the backward whose node the calling thread runs, or NULL.
  static Overlapping* current() noexcept;

  ct_overlap& overlap;
  const ct_stream& main;
  const ct_stream& side;  // of layers that main waits for at once
  const int streams;
  ct_graph_pool* const pool;  // of the graph whose capture or warm-up run this is; NULL for none
  LateGradients late;
};

// Leave for the calling thread's backward from the roots, while the object lives. There is at least
// one side stream. The side streams wait for main already, and main waits for them behind the
// backward.
class OverlapScope {
 public:
  OverlapScope(ct_overlap& overlap, const ct_stream& main, const std::vector<const ct_stream*>& sides, ct_graph_pool* pool,
               const torch::autograd::variable_list& roots);
  ~OverlapScope();
  OverlapScope(const OverlapScope&) = delete;
  OverlapScope& operator=(const OverlapScope&) = delete;

 private:
  const int failures_;                          // under way before
  const std::shared_ptr<Overlapping> leave_;    // LibTorch's threads may hold it for longer
  const c10::DebugInfoGuard info_;
};

using Gradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // of a layer's input, its weights and its bias
using GradientMask = std::array<bool, 3>;                           // the gradients that are wanted

// A layer's part of a backward.
struct LayerBackward {
  const char* op;  // for reports
  std::string kind;  // the kind of layer, with its shapes
  const GradientMask& wanted;
  const at::Tensor& grad;   // of the layer's result
  const at::Tensor& input;  // the layer's input; with grad it gives the gradients of weights and bias
  const std::function<Gradients(const GradientMask& wanted)> run;
};

// The leave for a layer's gradients, or NULL. Side streams serve one stream alone. A backward that
// is recorded for another stream goes the plain way. grad: of the layer's result.
Overlapping* leave_for(const at::Tensor& grad, const GradientMask& wanted);
// Runs the gradients in the faster way, or in the way that was asked for.
Gradients overlapped(Overlapping& o, const LayerBackward& layer);

// A tensor in a key.
struct Described {
  const at::Tensor& tensor;
};
std::ostream& operator<<(std::ostream& out, const Described& of);

// A library of kernels in the place of LibTorch's, for the life of the process.
torch::Library& library_for_life(c10::DispatchKey key);

// Makes linear layers one node each in the autograd graph. Its two matrix products can then be told
// apart from others (overlap_linear.cc).
void install_linear();

// Whether the program has made an Overlap. Linear layers whose forward runs from then on take part.
extern std::atomic<bool> any_overlap;
// Whether a node is that of a linear layer.
bool is_linear(const torch::autograd::Node& node);

}  // namespace ct

struct ct_overlap {
  explicit ct_overlap(int32_t always) : always(always != 0) {}
  // Whether memory has run out for this layer on two streams.
  bool is_short(const std::string& key) {
    const std::lock_guard lock(mutex);
    return short_of_memory.count(key) > 0;
  }
  const bool always;
  ct_choice choice{ct::Choice::kTrials, ct::Choice::kGain};
  std::mutex mutex;
  std::set<std::string> seen;    // layers, with always: run once, so that libraries have chosen
  std::set<std::string> beside;  // layers that have run on two streams
  std::set<std::string> short_of_memory;
  int64_t calls_beside = 0, calls_late = 0, calls_serial = 0;
  int64_t kept = 0;  // the most bytes that a backward kept alive for late gradients
  double saved = 0;  // microseconds, as measured for the choice
};
