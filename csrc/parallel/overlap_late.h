// Late gradients: those of weights, which nothing waits for before the backward has ended.
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

// Note [Late gradients]: the layer before needs the gradient of a layer's input at once. The gradients of its weights and its bias go to the
// nodes that add them to the parameters', perhaps through a cast, and nowhere else. So where autograd runs these nodes on the side stream too,
// the main one need not wait for that stream layer by layer, and the side stream may fall behind. Autograd runs a node on the stream that is
// in the metadata of its input, which forward put there; this puts the side stream in its place for one backward. It makes one stream wait for
// another between nodes, and the calling stream for all of them at the end. What the side stream reads is the main one's memory: it is kept
// alive until the main stream waits for that layer, at the end or, where more is kept than a share of all allocated memory, before.
class LateGradients {
 public:
  // For the backward from the roots, which has not begun. Layers take the side streams in turn. On the CPU, whose streams autograd does not
  // know, no gradient is late.
  LateGradients(const torch::autograd::variable_list& roots, const ct_stream& main, const std::vector<const ct_stream*>& sides);
  LateGradients(const LateGradients&) = delete;
  LateGradients& operator=(const LateGradients&) = delete;
  // That backward has ended, or has failed: then a thread of autograd's may still be in a layer, and no gradient is late any more.
  void end(bool failed);

  // The side stream of the layer that the calling thread runs the backward of; NULL where its gradients are not late.
  const ct_stream* side();
  // The side stream reads these up to here.
  void keep(const at::Tensor& grad, const at::Tensor& input, const ct_stream& side);
  // Has the main stream wait for all that was kept, and lets it go.
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

  std::mutex mutex_;  // guards what follows
  bool ended_ = false;
  std::deque<Reading> kept_;
  int64_t most_ = INT64_MAX, peak_ = 0;  // of kept_bytes(): what it may be, and what it was
};

}  // namespace ct
