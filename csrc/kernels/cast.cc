// The operator streamtorch::cast_weights casts weights to another dtype.
//
// Under autocast LibTorch casts the weights of each layer by kernels of their own, and the
// backward casts each gradient back by a kernel of its own. These kernels are too small to fill a
// device. A training step of ResNet-50 has 113 of them, and at batch 32 they take 6 % of the step
// on an H200. cast_weights casts all weights at once, and its backward all gradients, by one kernel
// on CUDA: see foreach.cc.
#include "kernels/cast.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>
#include <typeinfo>
#include <utility>
#include <vector>

#include "kernels/foreach.h"
#include "kernels/inputs.h"

namespace ct {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Each piece of a buffer begins at a multiple of this number of bytes. LibTorch's allocators give
// memory of the same alignment, and libraries choose faster kernels for aligned tensors.
constexpr int64_t kAlignment = 512;

// Returns a tensor without values for each tensor in `like`, and an undefined tensor for an
// undefined one. The new tensors lie in one new buffer. They have the shapes of `like` and the
// strides that `strides_of` returns, which are dense. They are views of the buffer for autograd,
// unless AutoDispatchBelowADInplaceOrView forbids that.
template <typename StridesOf>
variable_list pieces(at::TensorList like, at::ScalarType dtype, StridesOf strides_of) {
  const int64_t alignment = kAlignment / static_cast<int64_t>(c10::elementSize(dtype));
  variable_list made(like.size());
  std::vector<int64_t> offsets;
  int64_t elements = 0;
  const at::Tensor* first = nullptr;
  for (const at::Tensor& t : like) {
    offsets.push_back(elements);
    if (!t.defined()) continue;
    elements += (t.numel() + alignment - 1) / alignment * alignment;
    first = &t;
  }
  if (first == nullptr) return made;
  const at::Tensor buffer = at::empty({elements}, at::TensorOptions().dtype(dtype).device(first->device()));
  for (size_t i = 0; i < like.size(); ++i) {
    if (like[i].defined()) made[i] = at::as_strided(buffer, like[i].sizes(), strides_of(i), offsets[i]);
  }
  return made;
}

// Copies tensors, and skips undefined ones. One kernel copies all tensors that have the strides of
// their sources. All other tensors get kernels of their own.
void copy(const variable_list& to, at::TensorList from) {
  variable_list together, sources;
  for (size_t i = 0; i < to.size(); ++i) {
    if (!to[i].defined() || to[i].numel() == 0) continue;
    if (in_one_order(to[i], from[i])) {
      together.push_back(to[i]);
      sources.push_back(from[i]);
    } else {
      to[i].copy_(from[i]);
    }
  }
  if (!together.empty()) foreach::copy(together, sources);
}

// The node of the operator in the autograd graph. The backward of a cast is a cast, so the node
// keeps no tensors but the shapes and strides of the weights.
struct CastWeights : torch::autograd::Function<CastWeights> {
  static variable_list forward(AutogradContext* context, at::TensorList weights, at::ScalarType dtype) {
    const at::AutoDispatchBelowADInplaceOrView below;  // the results are no views of the buffer for autograd
    const auto dense = [&](size_t i) { return weights[i].is_non_overlapping_and_dense(); };
    variable_list casts = pieces(weights, dtype, [&](size_t i) {
      return dense(i) ? weights[i].strides().vec() : at::infer_dense_strides(weights[i].sizes(), weights[i].strides());
    });
    copy(casts, weights);
    variable_list frozen;
    c10::List<std::vector<int64_t>> strides;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (!weights[i].requires_grad()) frozen.push_back(casts[i]);
      // AccumulateGrad wants a dense weight's gradient to have the strides of the weight. It wants any
      // other gradient to be contiguous. It then takes the gradient over without a copy.
      const c10::DimVector rows = c10::contiguous_strides(weights[i].sizes());
      strides.push_back(dense(i) ? weights[i].strides().vec() : std::vector<int64_t>(rows.begin(), rows.end()));
    }
    context->mark_non_differentiable(frozen);
    context->set_materialize_grads(false);  // a cast that nobody read has no gradient, instead of one of zeros
    context->saved_data["strides"] = std::move(strides);
    return casts;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    if (const auto before = before_gradients_are_cast.load(std::memory_order_relaxed)) before();  //edge:cast-waits TestOverlap_Late gpu
    const size_t count = gradients.size();
    for (size_t i = 0; i < count; ++i) {
      if (!context->needs_input_grad(i)) gradients[i].reset();
    }
    variable_list result;
    if (c10::GradMode::is_enabled()) {  // the result is differentiated again
      for (const at::Tensor& g : gradients) result.push_back(g.defined() ? g.to(at::kFloat) : g);
    } else {
      const at::AutoDispatchBelowADInplaceOrView below;  // the gradients are no views of the buffer for autograd
      const auto strides = context->saved_data["strides"].toList();
      result = pieces(gradients, at::kFloat, [&](size_t i) { return strides.get(i).toIntVector(); });
      copy(result, gradients);
    }
    result.resize(count + 1);  // the dtype has no gradient
    return result;
  }
};

// Returns each weight in `dtype`, with the same shape. A result has the strides of its weight if
// the weight is dense, and otherwise dense strides in the same order. All results lie in one new
// buffer. The gradients of the weights lie in one new buffer too. A result of a weight that
// requires no gradient requires none.
variable_list cast_weights(at::TensorList weights, at::ScalarType dtype) {
  TORCH_CHECK(c10::isFloatingType(dtype), "streamtorch::cast_weights to ", dtype, ", which is not floating");
  if (weights.empty()) return {};
  for (size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& w = weights[i];
    TORCH_CHECK(w.defined() && w.layout() == at::kStrided && w.scalar_type() == at::kFloat,
                "streamtorch::cast_weights: weight ", i, " is not a strided tensor of float32");
    TORCH_CHECK(w.device() == weights[0].device(), "streamtorch::cast_weights: weight ", i, " is on ", w.device(), ", and weight 0 on ",
                weights[0].device(), ": all weights must be on one device");
  }
  return CastWeights::apply(weights, dtype);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  // Registered for every backend, because other operators do the work.
  library.def("cast_weights(Tensor[] weights, ScalarType dtype) -> Tensor[]", TORCH_FN(cast_weights));
}

}  // namespace

bool is_cast_weights(const torch::autograd::Node& node) { return typeid(node) == typeid(torch::autograd::CppNode<CastWeights>); }

}  // namespace ct
