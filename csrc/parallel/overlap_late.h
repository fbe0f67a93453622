// Late gradients: gradients of weights for which no stream waits before the backward ends.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/event.h"
#include "core/stream.h"
#include "core/versions.h"

namespace ct {

// Note [Late gradients]: the gradient of a layer's input is needed at once, by the layer before.
// The gradients of its weights and its bias go only to the nodes that add them to the gradients
// of the parameters, perhaps through a cast. If autograd runs these nodes on the side stream too,
// the main stream need not wait for the side stream after each layer. The side stream may then
// finish its work later than the main stream. A node of streamtorch::cast_weights casts gradients
// of many layers, so it stays on the main stream. It runs after all these layers, and makes the
// main stream wait before it reads the gradients.
//
// Autograd runs a node on the stream in the metadata of the node's input. Forward put that stream
// there. For one backward, this class puts the side stream there instead. If a node and the next
// node are on different streams, autograd makes the second stream wait for the first. At the end
// it makes the calling stream wait for all streams.
//
// The side stream reads memory of the main stream. That memory is kept alive until the main
// stream waits for the side stream's work on that layer. The main stream waits at the end of the
// backward. It waits earlier if more memory is kept than a fixed share of all allocated memory.
class LateGradients {
 public:
  // Prepares the backward from the roots, which has not begun. Successive layers get successive
  // side streams. On the CPU no gradient is late, because autograd does not know the CPU's streams.
  LateGradients(const torch::autograd::variable_list& roots, const ct_stream& main, const std::vector<const ct_stream*>& sides);
  LateGradients(const LateGradients&) = delete;
  LateGradients& operator=(const LateGradients&) = delete;
  // Ends the late gradients after a backward that has ended or failed. After that no gradient is
  // late. After a failure one of autograd's threads may still be in a layer.
  void end(bool failed);

  // Returns the side stream of the layer whose backward the calling thread runs. Returns NULL if
  // the layer's gradients are not late.
  const ct_stream* side();
  // Keeps the two tensors alive. The work of `side` so far reads them.
  void keep(const at::Tensor& grad, const at::Tensor& input, const ct_stream& side);
  // Makes the main stream wait for all work that reads kept tensors, and then lets the tensors go.
  void release();
  // Returns the most bytes that were kept alive at once by this object alone.
  int64_t peak() const { return peak_; }

 private:
  using Node = torch::autograd::Node;
  struct Reading {
    at::Tensor grad, input;
    const ct_stream* side;
    std::unique_ptr<const ct_event> end;
  };
  struct Moved {
    NodePtr node;
    c10::Stream before;
  };
  bool simple(const torch::autograd::Edge& edge, std::vector<Node*>& path) const;
  void restore();
  void release_held();
  int64_t kept_bytes() const;

  const ct_stream& main_;
  std::vector<NodePtr> roots_;  // the nodes of the roots; the node of a leaf has no other owner
  std::unordered_map<const Node*, int> edges_to_;
  std::map<std::pair<const Node*, uint32_t>, int> edges_to_cast_;  // for each gradient that a node of cast_weights reads
  std::unordered_map<const Node*, const ct_stream*> layers_;
  std::vector<Moved> moved_;

  std::mutex mutex_;  // guards the fields below
  bool ended_ = false;
  std::deque<Reading> kept_;
  int64_t most_ = INT64_MAX, peak_ = 0;  // the limit and the peak of kept_bytes()
};

}  // namespace ct
