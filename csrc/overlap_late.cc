#include "overlap_late.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/input_metadata.h>

#include <algorithm>
#include <array>
#include <utility>

#include "exec.h"
#include "memory.h"
#include "overlap.h"

namespace ct {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;

// What a layer's node hands on: the gradients of its input, its weights and its bias.
constexpr size_t kWeight = 1, kBias = 2;

bool is_layer(const Node& node) { return is_linear(node) || node.name() == "ConvolutionBackward0"; }

bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() || !node.retains_grad_hooks().empty() ||
         node.tensor_post_acc_grad_hooks() != nullptr;
}

}  // namespace

LateGradients::LateGradients(const torch::autograd::variable_list& roots, const ct_stream& main, const std::vector<const ct_stream*>& sides) : main_(main) {
  if (!main.device.is_cuda()) return;
  std::vector<Node*> found;  // also those whose edges have not been counted yet, at its end
  const auto reach = [&](const std::shared_ptr<Node>& node) {
    if (node != nullptr && edges_to_[node.get()]++ == 0) found.push_back(node.get());
  };
  for (const at::Tensor& root : roots) reach(torch::autograd::impl::gradient_edge(root).function);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const Edge& edge : found[i]->next_edges()) reach(edge.function);
  }
  for (Node* node : found) {
    if (!is_layer(*node) || has_hooks(*node)) continue;
    std::vector<Node*> path;
    bool late = node->num_outputs() > kWeight;
    for (const size_t of : {kWeight, kBias}) late = late && (of >= node->num_outputs() || simple(node->next_edge(of), path));
    if (!late) continue;
    const ct_stream& side = *sides[layers_.size() % sides.size()];
    layers_.emplace(node, &side);
    for (Node* n : path) {
      moved_.push_back({n->getptr(), n->input_metadata(0).stream()});
      move(*n, side.stream);
    }
  }
  most_ = allocated_bytes(main.device) / 40;
}

LateGradients::~LateGradients() {
  for (const Moved& m : moved_) move(*m.node, m.before);
  try {
    release();
  } catch (...) {
    // A lost device.
  }
}

const ct_stream* LateGradients::side() const {
  if (layers_.empty()) return nullptr;
  const auto layer = layers_.find(torch::autograd::get_current_node().get());
  return layer == layers_.end() ? nullptr : layer->second;
}

void LateGradients::release() {
  for (; !kept_.empty(); kept_.pop_front()) wait(main_, *kept_.front().end);
}

void LateGradients::keep(const at::Tensor& grad, const at::Tensor& input, const ct_stream& side) {
  // What came before is let go as far as it must be; of this one the engine still holds something.
  for (int64_t bytes = kept_bytes(); bytes > 0; bytes = kept_bytes()) {
    peak_ = std::max(peak_, bytes);
    if (bytes <= most_) break;
    wait(main_, *kept_.front().end);
    kept_.pop_front();
  }
  kept_.push_back({grad, input, std::unique_ptr<const ct_event>(record(side, /*timing=*/false))});
}

// Of what nobody else keeps alive any more.
int64_t LateGradients::kept_bytes() const {
  size_t bytes = 0;
  for (const Reading& r : kept_) {
    for (const at::Tensor* t : {&r.grad, &r.input}) {
      if (t->use_count() == 1 && t->storage().use_count() == 1) bytes += t->storage().nbytes();
    }
  }
  return static_cast<int64_t>(bytes);
}

// Whether what goes along an edge goes to a parameter, through casts at most, and nothing else does; with the nodes on the way.
bool LateGradients::simple(const Edge& edge, std::vector<Node*>& path) const {
  if (!edge.is_valid()) return true;
  for (Node* node = edge.function.get();; node = node->next_edge(0).function.get()) {
    if (node == nullptr || edges_to_.at(node) != 1 || node->num_inputs() != 1 || has_hooks(*node)) return false;
    const auto& input = node->input_metadata(0);
    if (input.was_default_constructed() || input.device() != main_.device) return false;
    path.push_back(node);
    if (dynamic_cast<torch::autograd::AccumulateGrad*>(node) != nullptr) return true;
    if (node->name() != "ToCopyBackward0" || node->num_outputs() != 1) return false;
  }
}

// Makes autograd run a node of one input on a stream: metadata has that which is current when it is made.
void LateGradients::move(Node& node, c10::Stream stream) {
  const auto& of = node.input_metadata(0);
  const at::TensorOptions options = of.options();
  const torch::autograd::SymIntSmallVec shape(of.shape_as_dim_vector().begin(), of.shape_as_dim_vector().end());
  const bool subclass = of.is_tensor_subclass(), nested = of.is_nested_tensor();
  const auto dtype = of.grad_dtype();
  const CurrentStream current(stream);
  node.clear_input_metadata();
  node.add_input_metadata(options, shape, subclass, nested, dtype);
}

}  // namespace ct
