// Linear layers under an Overlap. LibTorch computes a layer as a matrix product and a sum. In the
// backward, the node of the product calls two products one after another. Here each layer has a
// node of its own. This node calls the same two products, so the gradients are the same to the
// bit.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_native.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <sstream>

#include "parallel/overlap.h"

namespace ct {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Linear final : public torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
    context->save_for_backward({input, weight});
    context->saved_data["bias"] = bias.has_value() && bias->defined();
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::linear(input, weight, bias);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor& grad = grads[0];
    if (!grad.defined()) return variable_list(3);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& input = saved[0];
    const at::Tensor& weight = saved[1];
    const bool bias = context->saved_data["bias"].toBool();
    const GradientMask wanted{context->needs_input_grad(0), context->needs_input_grad(1), bias && context->needs_input_grad(2)};
    const auto rows = [](const at::Tensor& t) { return t.dim() == 2 ? t : t.reshape({-1, t.size(-1)}); };
    const auto columns = [](const at::Tensor& t) { return t.stride(0) == 1 && t.stride(1) == t.size(0); };
    const auto both = [&](const GradientMask& mask) -> Gradients {
      Gradients found;
      const at::Tensor flat = rows(grad);
      const at::Tensor in = rows(input);
      // The order of the factors is LibTorch's, because the order decides the last bit. An input in
      // column-major order gets a gradient in column-major order.
      if (mask[0]) std::get<0>(found) = (columns(in) ? weight.t().mm(flat.t()).t() : flat.mm(weight)).reshape(input.sizes());
      if (mask[1]) std::get<1>(found) = columns(weight.t()) ? flat.t().mm(in) : in.t().mm(flat).t();
      if (mask[2]) std::get<2>(found) = flat.sum(0);
      return found;
    };
    Overlapping* o = leave_for(grad, wanted);
    Gradients found;
    if (o == nullptr) {
      found = both(wanted);
    } else {
      std::ostringstream key;
      key << "linear " << Described{input} << " by " << Described{weight} << (wanted[2] ? " bias" : "");
      found = overlapped(*o, {"aten::linear", key.str(), wanted, grad, input, both});
    }
    return {std::move(std::get<0>(found)), std::move(std::get<1>(found)), std::move(std::get<2>(found))};
  }
};

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const auto plain = [](const at::Tensor& t) { return t.layout() == at::kStrided && !t.is_complex(); };
  // LibTorch runs all other layers. It also runs layers that need only one of the two gradients.
  // For one gradient LibTorch keeps only the factor that the gradient needs.
  const bool ours = any_overlap.load(std::memory_order_relaxed) && c10::GradMode::is_enabled() && input.requires_grad() && weight.requires_grad() && input.numel() > 0 &&
                    input.dim() >= 2 && weight.dim() == 2 && plain(input) && plain(weight) &&
                    (!bias || !bias->defined() || bias->dim() == 1);
  if (ours) return Linear::apply(input, weight, bias);
  return at::native::linear(input, weight, bias);
}

}  // namespace

bool is_linear(const torch::autograd::Node& node) { return dynamic_cast<const torch::autograd::CppNode<Linear>*>(&node) != nullptr; }

void install_linear() {
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutogradCUDA}) {
    library_for_life(key).impl("linear", TORCH_FN(linear));
  }
}

}  // namespace ct
