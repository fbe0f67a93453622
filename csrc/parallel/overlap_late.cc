#include "parallel/overlap_late.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <algorithm>
#include <utility>

#include "core/autograd.h"
#include "core/exec.h"
#include "core/memory.h"
#include "kernels/cast.h"
#include "parallel/overlap.h"

namespace ct {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

// In backward, the node of a layer gives the gradients of input, weights and bias, in this order.
// These are the indexes of the first two.
constexpr size_t kInput = 0, kWeight = 1;

bool is_layer(const Node& node) { return is_linear(node) || node.name() == "ConvolutionBackward0"; }

// Reports whether a node has hooks other than the library's own.
bool has_hooks(Node& node) {
  const auto foreign = [](const auto& hook) { return hook != nullptr && dynamic_cast<const autograd::OwnHook*>(hook.get()) == nullptr; };
  const auto any = [&](const auto& hooks) { return std::any_of(hooks.begin(), hooks.end(), foreign); };
  return any(node.pre_hooks()) || any(node.post_hooks()) || !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         foreign(node.tensor_post_acc_grad_hooks());
}

// Makes autograd run a node with one input on a stream.
void move(Node& node, c10::Stream stream) {
  const CurrentStream current(stream);
  renew_input_metadata(node);
}

}  // namespace

LateGradients::LateGradients(const torch::autograd::variable_list& roots, const ct_stream& main, const std::vector<const ct_stream*>& sides)
    : main_(main) {
  if (!main.device.is_cuda()) return;
  most_ = allocated_bytes(main.device) / 40;
  // All nodes that the roots reach. A loop below counts the edges of each node in `found`, and
  // appends the nodes that are new.
  std::vector<Node*> found;
  const auto reach = [&](const Edge& edge) {
    Node* const node = edge.function.get();
    if (node == nullptr) return;
    if (edges_to_[node]++ == 0) found.push_back(node);
    if (is_cast_weights(*node)) ++edges_to_cast_[{node, edge.input_nr}];
  };
  for (const at::Tensor& root : roots) {
    const Edge edge = torch::autograd::impl::gradient_edge(root);
    roots_.push_back(edge.function);
    reach(edge);
  }
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge& edge : found[i]->next_edges()) reach(edge);
  }
  try {
    for (Node* node : found) {
      // A layer of a branch is not late. A layer whose input needs no gradient is not late either.
      if (!is_layer(*node) || has_hooks(*node) || node->num_outputs() <= kWeight || !node->next_edge(kInput).is_valid()) continue;
      if (node->stream() != main.stream) continue;
      std::vector<Node*> path;
      bool late = true;
      for (size_t of = kWeight; of < node->num_outputs(); ++of) late = late && simple(node->next_edge(of), path);
      if (!late) continue;
      const ct_stream& side = *sides[layers_.size() % sides.size()];
      layers_.emplace(node, &side);
      for (Node* n : path) {
        moved_.push_back({n->getptr(), n->input_metadata(0).stream()});
        move(*n, side.stream);  //edge:late-moves TestOverlap_Late gpu
      }
    }
  } catch (...) {
    restore();
    throw;
  }
}

void LateGradients::restore() {
  for (const Moved& m : moved_) move(*m.node, m.before);
  moved_.clear();
}

void LateGradients::end(bool failed) {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  // After a failure one of autograd's threads may still read the metadata, so the metadata is left
  // as it is. Nodes that are used again then run on the side stream, which is also right.
  if (!failed) restore();
  release_held();
}

const ct_stream* LateGradients::side() {
  if (layers_.empty()) return nullptr;
  const auto layer = layers_.find(torch::autograd::get_current_node().get());
  const std::lock_guard lock(mutex_);
  return layer == layers_.end() || ended_ ? nullptr : layer->second;
}

void LateGradients::release() {
  const std::lock_guard lock(mutex_);
  release_held();
}

void LateGradients::release_held() {
  peak_ = std::max(peak_, kept_bytes());
  std::vector<const ct_stream*> waited;
  for (auto r = kept_.rbegin(); r != kept_.rend(); ++r) {  // a stream's last event comes after its earlier events
    if (std::find(waited.begin(), waited.end(), r->side) != waited.end()) continue;
    wait(main_, *r->end);
    waited.push_back(r->side);
  }
  kept_.clear();
}

void LateGradients::keep(const at::Tensor& grad, const at::Tensor& input, const ct_stream& side) {
  const std::lock_guard lock(mutex_);
  // Lets the oldest kept tensors go, until at most `most_` bytes are kept. Before that, the main
  // stream waits for the work that reads them. The engine still holds a part of the new tensors, so
  // these do not count yet.
  int64_t bytes = kept_bytes();
  for (; bytes > most_; bytes = kept_bytes()) {
    wait(main_, *kept_.front().end);  //edge:late-waits TestOverlap_Late gpu
    kept_.pop_front();
  }
  peak_ = std::max(peak_, bytes);
  //edge:late-keeps TestOverlap_Late gpu
  kept_.push_back({grad, input, &side, std::unique_ptr<const ct_event>(record(side, /*timing=*/false))});
  if (ended_) release_held();
}

// Returns the number of bytes that only this object keeps alive. Several layers may have read the
// same tensor, or the same memory.
int64_t LateGradients::kept_bytes() const {
  std::unordered_map<const c10::TensorImpl*, std::pair<const at::Tensor*, size_t>> held;  // number of references that kept_ has to each tensor
  const auto hold = [&held](const at::Tensor& t) { ++held.try_emplace(t.unsafeGetTensorImpl(), &t, size_t{0}).first->second.second; };
  for (const Reading& r : kept_) {
    hold(r.grad);
    hold(r.input);
  }
  // For each storage, the number of its tensors that only this object holds.
  std::unordered_map<const c10::StorageImpl*, std::pair<const at::Tensor*, size_t>> ours;
  for (const auto& [impl, by] : held) {
    const at::Tensor& t = *by.first;
    if (t.has_storage() && t.use_count() == by.second) ++ours.try_emplace(t.storage().unsafeGetStorageImpl(), &t, size_t{0}).first->second.second;
  }
  size_t bytes = 0;
  for (const auto& [storage, of] : ours) {
    if (of.first->storage().use_count() == of.second) bytes += storage->nbytes();
  }
  return static_cast<int64_t>(bytes);
}

// Reports whether the value along an edge goes only to one parameter, directly or through casts.
// The nodes on the way that take no other value are added to `path`.
bool LateGradients::simple(const Edge& edge, std::vector<Node*>& path) const {
  if (!edge.is_valid()) return true;
  if (Node& node = *edge.function; is_cast_weights(node)) {  // autograd adds several gradients of one cast before the node runs
    return edges_to_cast_.at({&node, edge.input_nr}) == 1 && !has_hooks(node) && node.stream() == main_.stream;
  }
  for (Node* node = edge.function.get();; node = node->next_edge(0).function.get()) {
    if (node == nullptr || edges_to_.at(node) != 1 || node->num_inputs() != 1 || has_hooks(*node)) return false;
    const auto& input = node->input_metadata(0);
    if (input.was_default_constructed() || input.device() != main_.device) return false;
    path.push_back(node);
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr) return true;
    if (node->name() != "ToCopyBackward0" || node->num_outputs() != 1) return false;
  }
}

}  // namespace ct
