// Late gradients: gradients of weights, which nothing waits for before the backward has ended.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/event.h"
#include "core/stream.h"

namespace ct {

// Note [Late gradients]: the layer before needs the gradient of a layer's input at once. The
// gradients of its weights and its bias go to the nodes that add them to the parameters', perhaps
// through a cast, and nowhere else. Where autograd runs these nodes on the side stream too, the
// main stream need not wait for that stream layer by layer. The side stream may then fall behind.
//
// Autograd runs a node on the stream in the metadata of its input, which forward put there. This
// class puts the side stream in its place for one backward. Autograd makes one stream wait for
// another between nodes, and the calling stream for all of them at the end. The side stream reads
// memory of the main stream. That memory is kept alive until the main stream waits for that layer.
// It waits at the end or, where more is kept than a share of all allocated memory, before.
class LateGradients {
 public:
  // For the backward from the roots, which has not begun. Successive layers take successive side
  // streams. On the CPU, whose streams autograd does not know, no gradient is late.
  LateGradients(const torch::autograd::variable_list& roots, const ct_stream& main, const std::vector<const ct_stream*>& sides);
  LateGradients(const LateGradients&) = delete;
  LateGradients& operator=(const LateGradients&) = delete;
  // Ends the late gradients of a backward that has ended or failed. After a failure a thread of
  // autograd's may still be in a layer. No gradient is late any more.
  void end(bool failed);

  // The side stream of the layer whose backward the calling thread runs. NULL where its gradients are
  // not late.
  const ct_stream* side();
  // Keeps tensors that the side stream reads up to here.
  void keep(const at::Tensor& grad, const at::Tensor& input, const ct_stream& side);
  // Makes the main stream wait for all kept tensors, and lets them go.
  void release();
  // The most bytes that were kept alive at once, by nobody else.
  int64_t peak() const { return peak_; }

 private:
  using Node = torch::autograd::Node;
  struct Reading {
    at::Tensor grad, input;
    const ct_stream* side;
    std::unique_ptr<const ct_event> end;
  };
  struct Moved {
    std::shared_ptr<Node> node;
    c10::Stream before;
  };
  bool simple(const torch::autograd::Edge& edge, std::vector<Node*>& path) const;
  void restore();
  void release_held();
  int64_t kept_bytes() const;

  const ct_stream& main_;
  std::vector<std::shared_ptr<Node>> roots_;  // a leaf's node has no other owner
  std::unordered_map<const Node*, int> edges_to_;
  std::unordered_map<const Node*, const ct_stream*> layers_;
  std::vector<Moved> moved_;

  std::mutex mutex_;  // guards the fields below
  bool ended_ = false;
  std::deque<Reading> kept_;
  int64_t most_ = INT64_MAX, peak_ = 0;  // of kept_bytes(): the limit, and the peak
};

}  // namespace ct
