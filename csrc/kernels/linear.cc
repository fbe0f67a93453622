// Operators that begin with a linear layer:
//
//   linear        the layer
//   linear_gelu   gelu(the layer)
//   linear_heads  queries, keys and values of attention with several heads
//
// The gradient of the layer's bias is the sum of the rows of another gradient. LibTorch reads that
// gradient once more for the sum, by a kernel that is far from the memory's speed. Here the kernel
// that makes the gradient adds its rows as well. In linear, LibTorch makes the gradient, so a
// kernel of this file only adds the rows.
//
// The gradients of queries, keys and values come as three tensors. LibTorch concatenates them and
// then copies the result into the order that the layer's gradient needs. Here one kernel writes
// them into that order.
//
// Note [Gradient of a bias]: the layer itself is LibTorch's, with a bias that requires no gradient.
// The node behind it gets the real bias too, and gives it its gradient. So the forward has the same
// bits as LibTorch's layer. The second derivative is that of LibTorch's operators.
//
// The kernels run on CUDA, in float32, float16 or bfloat16, if the layer has a multiple of 8
// outputs. In all other cases LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/device.h"
#include "kernels/both_devices.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"
#include "kernels/linear_cuda.h"

namespace ct {
namespace {

CT_ON_BOTH_DEVICES(kText,

// One gradient of attention, [images, heads, positions, depth]. Distances are in groups of eight
// elements.
struct Source {
  const void* elements;
  long long image;
  long long head;
  long long position;
};

struct Heads {
  Source queries;
  Source keys;
  Source values;
  int positions;
  int heads;
  int depth;  // in groups of eight elements
};

)  // CT_ON_BOTH_DEVICES

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the program for gradients of `dtype` and a bias of dtype `bias`.
const CudaProgram& program_of(at::ScalarType dtype, at::ScalarType bias, bool tanh) {
  return variant_of(std::tuple(dtype, bias, tanh), [&] {
    return Variant{"gradients of " + float_name(dtype) + " behind a linear layer, bias " + float_name(bias),
                   std::string(kText) + "\n#define DTYPE " + float_name(dtype) + "\n#define BIAS " + float_name(bias) + "\n#define TANH " + std::to_string(tanh) + "\n",
                   kLinearText, /*fused_multiply_add=*/true};
  });
}

// Launches a kernel that goes through all rows of `result`, the result of the layer. The last
// arguments of the kernel are rows, columns, blocks and partial. Returns the gradient of the bias
// in dtype `bias`. Without that dtype, nobody wants the gradient, and the returned tensor is empty.
template <typename... Arguments>
at::Tensor add_rows(const char* kernel, const at::Tensor& result, std::optional<at::ScalarType> bias, bool tanh, Arguments... arguments) {
  constexpr int kThreads = 256, kLanes = 32, kRows = 8;
  const CudaProgram& program = program_of(result.scalar_type(), bias.value_or(at::kFloat), tanh);
  const c10::Stream stream = images::stream_of(result);
  const int channels = static_cast<int>(result.size(-1));
  int rows = static_cast<int>(result.numel() / channels), columns = channels / 8;
  const int tiles = (columns + kLanes - 1) / kLanes, multiprocessors = cuda().chip(result.device().index()).multiprocessors;
  const int each = result.element_size() == 2 ? 4 : 2;  // blocks on each multiprocessor
  int blocks = std::clamp(multiprocessors * each / tiles, 1, (rows + kRows - 1) / kRows);
  at::Tensor sums = at::empty({bias ? channels : 0}, result.options().dtype(bias.value_or(at::kFloat)));
  const at::Tensor partial = at::empty({bias ? blocks : 0, channels}, result.options().dtype(at::kFloat));
  void* to = bias ? partial.mutable_data_ptr() : nullptr;
  void* all[] = {&arguments..., &rows, &columns, &blocks, &to};
  cuda().launch(program, kernel, stream, tiles * blocks, kThreads, all);
  if (bias) {
    void* out = sums.mutable_data_ptr();
    int quads = channels / 4;
    void* last[] = {&to, &out, &quads, &blocks};
    cuda().launch(program, "add_blocks", stream, (quads + 7) / 8, kThreads, last);
  }
  return sums;
}

// Returns the sum of all rows in `dtype`, as LibTorch's operators compute it.
at::Tensor sum_rows(const at::Tensor& t, at::ScalarType dtype) { return t.reshape({-1, t.size(-1)}).sum(0).to(dtype); }

// Returns the dtype of the bias if somebody wants its gradient.
std::optional<at::ScalarType> bias_of(AutogradContext* context) {
  const int64_t dtype = context->saved_data.at("bias").toInt();
  if (dtype < 0 || !context->needs_input_grad(1)) return {};
  return static_cast<at::ScalarType>(dtype);
}
void save_bias(AutogradContext* context, Optional bias) {
  context->saved_data["bias"] = is_defined(bias) ? static_cast<int64_t>(bias->scalar_type()) : -1;
}

at::Tensor bias_gradient(const at::Tensor& gradient, at::ScalarType bias) {
  return add_rows("bias_gradient", gradient, bias, false, gradient.const_data_ptr());
}

// Passes the result of a linear layer on: Note [Gradient of a bias].
struct BiasNode : torch::autograd::Function<BiasNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& result, const at::Tensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_bias(context, bias);
    context->set_materialize_grads(false);
    return result.view_as(result);  // autograd does not see that this is a view, so operators in place work on it
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static const auto call = operator_of<decltype(ct::bias_gradient)>("streamtorch::bias_gradient");
    const at::Tensor& g = gradients[0];
    if (!g.defined()) return {at::Tensor(), at::Tensor()};
    const auto bias = bias_of(context);
    if (!bias) return {g, at::Tensor()};
    if (c10::GradMode::is_enabled()) return {g, sum_rows(g, *bias)};
    return {g, call.call(readable(g), *bias)};
  }
};

std::tuple<at::Tensor, at::Tensor> gelu_backward(const at::Tensor& gradient, const at::Tensor& x, std::optional<at::ScalarType> bias,
                                                 c10::string_view approximate) {
  at::Tensor result = at::empty_like(x);
  at::Tensor sums = add_rows("gelu_gradient", x, bias, approximate == "tanh", gradient.const_data_ptr(), x.const_data_ptr(), result.mutable_data_ptr());
  return {std::move(result), std::move(sums)};
}

struct GeluNode : torch::autograd::Function<GeluNode> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& bias, const std::string& approximate) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_bias(context, bias);
    context->save_for_backward({x});
    context->saved_data["approximate"] = approximate;
    context->saved_data["of_bias"] = bias;
    context->set_materialize_grads(false);
    return at::gelu(x, approximate);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static const auto call = operator_of<decltype(gelu_backward)>("streamtorch::gelu_bias_gradient");
    const at::Tensor& g = gradients[0];
    if (!g.defined()) return variable_list(3);
    const auto bias = bias_of(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const std::string approximate = context->saved_data.at("approximate").toStringRef();
    if (c10::GradMode::is_enabled()) {
      // x has a graph to the input and the weight, but none to the bias.
      const at::Tensor of_bias = context->saved_data.at("of_bias").toTensor();
      const at::Tensor result = at::gelu_backward(g, at::add(x, at::sub(of_bias, of_bias.detach()).to(x.scalar_type())), approximate);
      return {result, bias ? sum_rows(result, *bias) : at::Tensor(), at::Tensor()};
    }
    auto [result, sums] = call.call(readable(g), readable(x), bias, approximate);
    return {std::move(result), bias ? std::move(sums) : at::Tensor(), at::Tensor()};
  }
};

// Returns the tensor as the kernel reads it.
Source source_of(const at::Tensor& t) { return {t.const_data_ptr(), t.stride(0) / 8, t.stride(1) / 8, t.stride(2) / 8}; }

// Returns t, [images, heads, positions, depth], or a copy that the kernel can read.
at::Tensor readable_heads(const at::Tensor& t) {
  const bool fits = t.stride(3) == 1 && t.stride(0) % 8 == 0 && t.stride(1) % 8 == 0 && t.stride(2) % 8 == 0 && is_aligned(t);
  return fits ? t : t.clone(at::MemoryFormat::Contiguous);
}

std::tuple<at::Tensor, at::Tensor> heads_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, std::optional<at::ScalarType> bias) {
  const int64_t heads = q.size(1), positions = q.size(2), depth = q.size(3);
  at::Tensor result = at::empty({q.size(0), positions, 3 * heads * depth}, q.options());
  const Heads g{source_of(q), source_of(k), source_of(v), static_cast<int>(positions), static_cast<int>(heads), static_cast<int>(depth / 8)};
  at::Tensor sums = add_rows("heads_gradient", result, bias, false, g, result.mutable_data_ptr());
  return {std::move(result), std::move(sums)};
}

// Returns queries, keys and values as views of the layer's result, [images, positions, 3 * width].
std::vector<at::Tensor> parts_of(const at::Tensor& result, int64_t heads) {
  return result.reshape({result.size(0), result.size(1), 3, heads, result.size(2) / (3 * heads)}).permute({2, 0, 3, 1, 4}).unbind(0);
}

struct HeadsNode : torch::autograd::Function<HeadsNode> {
  static variable_list forward(AutogradContext* context, const at::Tensor& result, Optional bias, int64_t heads) {
    const at::AutoDispatchBelowADInplaceOrView below;
    save_bias(context, bias);
    context->set_materialize_grads(false);
    variable_list parts = parts_of(result, heads);
    context->saved_data["sizes"] = parts[0].sizes().vec();
    return parts;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static const auto call = operator_of<decltype(heads_backward)>("streamtorch::heads_gradient");
    const auto given = std::find_if(gradients.begin(), gradients.end(), [](const at::Tensor& t) { return t.defined(); });
    if (given == gradients.end()) return variable_list(3);
    const at::TensorOptions options = given->options();
    for (at::Tensor& g : gradients) {
      if (!g.defined()) g = at::zeros(context->saved_data.at("sizes").toIntVector(), options);
    }
    const auto bias = bias_of(context);
    if (c10::GradMode::is_enabled()) {
      for (at::Tensor& g : gradients) g = g.transpose(1, 2);
      const at::Tensor all = at::stack(gradients, 2), result = all.reshape({all.size(0), all.size(1), -1});
      return {result, bias ? sum_rows(result, *bias) : at::Tensor(), at::Tensor()};
    }
    for (at::Tensor& g : gradients) g = readable_heads(g);
    auto [result, sums] = call.call(gradients[0], gradients[1], gradients[2], bias);
    return {std::move(result), bias ? std::move(sums) : at::Tensor(), at::Tensor()};
  }
};

// Returns whether the kernels can work behind the layer with this input, weight and bias.
bool is_fused(const at::Tensor& input, const at::Tensor& weight, Optional bias) {
  if (!c10::GradMode::is_enabled() || !input.is_cuda() || input.numel() == 0 || weight.dim() != 2 || weight.size(0) % 8 != 0) return false;
  if (!is_floating(input.scalar_type()) || !is_floating(weight.scalar_type())) return false;
  if (is_defined(bias) && (bias->dim() != 1 || bias->size(0) != weight.size(0) || !is_floating(bias->scalar_type()) || !bias->is_cuda())) return false;
  const int64_t rows = input.numel() / input.size(-1);
  if (weight.size(0) == 0 || weight.size(0) > INT32_MAX / 2 || rows > INT32_MAX / 64) return false;  // a kernel adds up to 64 steps to a row
  return cuda().chip(input.device().index()).capability >= 80;
}

bool is_trained(Optional t) { return is_defined(t) && t->requires_grad(); }

at::Tensor apply(const at::Tensor& input, const at::Tensor& weight, Optional bias) {
  return at::linear(input, weight, is_defined(bias) ? std::optional(bias->detach()) : std::nullopt);
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, Optional bias, bool fused) {
  if (!fused || !is_trained(bias) || !is_fused(input, weight, bias)) return at::linear(input, weight, bias);
  return BiasNode::apply(apply(input, weight, bias), *bias);
}

at::Tensor linear_gelu(const at::Tensor& input, const at::Tensor& weight, Optional bias, c10::string_view approximate, bool fused) {
  if (!fused || !is_trained(bias) || !is_fused(input, weight, bias)) return at::gelu(at::linear(input, weight, bias), approximate);
  return GeluNode::apply(apply(input, weight, bias), *bias, std::string(approximate));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_heads(const at::Tensor& input, const at::Tensor& weight, Optional bias, int64_t heads,
                                                            bool fused) {
  TORCH_CHECK(input.dim() == 3 && weight.dim() == 2 && heads > 0 && weight.size(0) % (3 * heads) == 0, "streamtorch::linear_heads: the input is ",
              input.sizes(), " and the weight ", weight.sizes(), ", want [N, L, in] and [3 * width, in] with a width that is a multiple of ", heads);
  const bool any = input.requires_grad() || weight.requires_grad() || is_trained(bias);
  if (fused && any && is_fused(input, weight, bias) && weight.size(0) / (3 * heads) % 8 == 0) {
    variable_list results = HeadsNode::apply(apply(input, weight, bias), bias, heads);
    return {std::move(results[0]), std::move(results[1]), std::move(results[2])};
  }
  std::vector<at::Tensor> parts = parts_of(at::linear(input, weight, bias), heads);
  return {std::move(parts[0]), std::move(parts[1]), std::move(parts[2])};
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("bias_gradient(Tensor gradient, ScalarType bias) -> Tensor");
  library.def("gelu_bias_gradient(Tensor gradient, Tensor x, ScalarType? bias, str approximate) -> (Tensor, Tensor)");
  library.def("heads_gradient(Tensor q, Tensor k, Tensor v, ScalarType? bias) -> (Tensor, Tensor)");
  // Registered for every backend, because the functions choose between the nodes of this file and
  // LibTorch's operators.
  library.def("linear(Tensor input, Tensor weight, Tensor? bias, bool fused=True) -> Tensor", TORCH_FN(linear));
  library.def("linear_gelu(Tensor input, Tensor weight, Tensor? bias, str approximate, bool fused=True) -> Tensor", TORCH_FN(linear_gelu));
  library.def("linear_heads(Tensor input, Tensor weight, Tensor? bias, int heads, bool fused=True) -> (Tensor, Tensor, Tensor)", TORCH_FN(linear_heads));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("bias_gradient", TORCH_FN(bias_gradient));
  library.impl("gelu_bias_gradient", TORCH_FN(gelu_backward));
  library.impl("heads_gradient", TORCH_FN(heads_backward));
}

}  // namespace
}  // namespace ct
