// The operator batch_norm_relu_max_pool: max_pool(relu(batch_norm(input))), with windows of 3 x 3,
// stride 2 and padding 1. It takes the same inputs as those of norm.cc, and rounds as they do.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "kernels/inputs.h"
#include "kernels/norm_work.h"

namespace ct {
namespace {

using namespace norms;

Pooling pooling_of(const at::Tensor& images) {
  const auto size = [&](int64_t dimension) { return static_cast<int>(images.size(dimension)); };
  return {size(0), size(2), size(3), (size(2) + 1) / 2, (size(3) + 1) / 2};
}

// Returns the result, the numbers of the norm, and the places of the largest values.
std::tuple<at::Tensor, at::Tensor, at::Tensor> pool_forward(const at::Tensor& input, Optional weight, Optional bias, Optional running_mean,
                                                            Optional running_var, bool training, double momentum, double eps) {
  const Work work(input, kRelu, 0);
  const Pooling pooling = pooling_of(input);
  Norm norm{};
  at::Tensor saved = work.prepare(input, {weight, bias, running_mean, running_var, training, momentum, eps}, norm);
  at::Tensor output = at::empty({pooling.images, work.shape.channels, pooling.out_height, pooling.out_width},
                                input.options().memory_format(at::MemoryFormat::ChannelsLast));
  at::Tensor places = at::empty({output.numel()}, work.floats.dtype(at::kByte));
  work.pixels("norm_pool", pooling.images * pooling.out_height * pooling.out_width, input.const_data_ptr(), output.mutable_data_ptr(),
              places.mutable_data_ptr(), norm, pooling);
  return {std::move(output), std::move(saved), std::move(places)};
}

// Returns the gradients of the input, weight and bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> pool_backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& saved,
                                                             const at::Tensor& places, bool training) {
  const Work work(input, kRelu, 0);
  const Pooling pooling = pooling_of(input);
  const int patches = pooling.images * pooling.out_height * pooling.out_width;
  at::Tensor weight = at::empty({work.shape.channels}, work.floats), bias = at::empty_like(weight), of_input = at::empty_like(input);
  const at::Tensor factors = at::empty({3, work.shape.channels}, work.floats);
  const Norm norm = work.differentiate(saved, factors, weight, bias, training);
  work.reduce(kPool, "norm_pool_reduce", patches, /*each=*/1, /*sums=*/2, gradient.const_data_ptr(), places.const_data_ptr(), input.const_data_ptr(), norm,
              pooling);
  work.pixels("norm_pool_gradient", patches, gradient.const_data_ptr(), places.const_data_ptr(), input.const_data_ptr(),
              of_input.mutable_data_ptr(), norm, pooling);
  return {std::move(of_input), std::move(weight), std::move(bias)};
}

struct PoolNode : torch::autograd::Function<PoolNode> {
  static constexpr size_t kInputs = 8;  // arguments of forward, besides the context

  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Optional weight, Optional bias, Optional running_mean,
                            Optional running_var, bool training, double momentum, double eps) {
    static const auto call = operator_of<decltype(pool_forward)>("streamtorch::batch_norm_relu_max_pool_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, saved, places] = call.call(input, weight, bias, running_mean, running_var, training, momentum, eps);
    context->save_for_backward({input, saved, places});
    context->saved_data["training"] = training;
    context->saved_data["weight"] = is_defined(weight);
    context->saved_data["bias"] = is_defined(bias);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::batch_norm_relu_max_pool has no second derivative: use the three layers, each by itself");
    static const auto call = operator_of<decltype(pool_backward)>("streamtorch::batch_norm_relu_max_pool_backward");
    const torch::autograd::variable_list kept = context->get_saved_variables();
    if (!gradients[0].defined()) return torch::autograd::variable_list(kInputs);
    const at::Tensor gradient = images_like(gradients[0], kept[0]);
    auto [of_input, weight, bias] = call.call(gradient, kept[0], kept[1], kept[2], context->saved_data["training"].toBool());
    Edges edges{context};
    torch::autograd::variable_list result(kInputs);
    result[0] = edges.take(true, of_input);
    result[1] = edges.take(context->saved_data["weight"].toBool(), weight);
    result[2] = edges.take(context->saved_data["bias"].toBool(), bias);
    return result;
  }
};

at::Tensor batch_norm_relu_max_pool(const at::Tensor& input, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                                    bool training, double momentum, double eps, c10::string_view kernels) {
  const Parameters p{weight, bias, running_mean, running_var, training, momentum, eps};
  if (choose_of(kernels) != kNoKernels && !why_not(input, std::nullopt) && p.fit(input)) {
    return PoolNode::apply(input, weight, bias, running_mean, running_var, training, momentum, eps);
  }
  at::Tensor out = p.apply(input);
  return at::max_pool2d(at::relu_(out), {3, 3}, {2, 2}, {1, 1});
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("batch_norm_relu_max_pool_forward(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)");
  library.def("batch_norm_relu_max_pool_backward(Tensor gradient, Tensor input, Tensor saved, Tensor places, bool training) -> (Tensor, Tensor, Tensor)");
  library.def("batch_norm_relu_max_pool(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps, str kernels=\"faster\") -> Tensor",
              TORCH_FN(batch_norm_relu_max_pool));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("batch_norm_relu_max_pool_forward", TORCH_FN(pool_forward));
  library.impl("batch_norm_relu_max_pool_backward", TORCH_FN(pool_backward));
}

}  // namespace
}  // namespace ct
