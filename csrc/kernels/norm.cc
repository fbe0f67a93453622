// Operators that do batch norm and the work after it in one:
//
//   batch_norm_act   activation(batch_norm(input) + addend); the addend may be absent
//   batch_norms_act  activation(batch_norm(input) + batch_norm(addend))
//
// In batch_norms_act each of the two norms has its own weight, bias and statistics.
//
// On CUDA the norms, sums and activations of a convolutional net take about half of the time of a
// training step, because they read and write all images. LibTorch runs at least one kernel for
// each of the three. The kernels of this file do the three together. For large tensors a kernel
// makes the sums and a second one reads the images again, in the forward and in the backward. For
// smaller tensors one kernel does both. The kernels need images in channels last, in float32,
// float16 or bfloat16, with a multiple of eight channels. For all other inputs, and on the CPU,
// LibTorch's operators do the work, with their own gradients.
//
// Note [One rounding]: the kernels compute in float32 and round the result once. LibTorch rounds
// the result of each operator. So the results differ by the rounding of the dtype.
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/collectives.h"
#include "kernels/inputs.h"
#include "kernels/norm_work.h"

namespace ct {
namespace {

using namespace norms;

// Returns four tensors: the result, the field `saved` of the first norm and that of the second
// norm, and the mask. If there is no second norm, its tensor is empty. If `records` is false, there
// is no backward. If there is none, or if it needs no mask, the mask is empty.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input, Optional addend, Optional weight, Optional bias,
                                                                   Optional running_mean, Optional running_var, Optional weight2, Optional bias2,
                                                                   Optional running_mean2, Optional running_var2, bool two, bool training,
                                                                   double momentum, double eps, double momentum2, double eps2,
                                                                   c10::string_view name, int64_t choose, bool records, int64_t group) {
  const Activation activation = activation_of(name);
  const bool added = is_defined(addend);
  const Work work(input, activation, two ? 2 : added);
  Norm norm{}, norm2{};
  const Parameters first{weight, bias, running_mean, running_var, training, momentum, eps},
      second{weight2, bias2, running_mean2, running_var2, training, momentum2, eps2};
  const bool whole = training && group == 0 && work.whole(static_cast<Choose>(choose));
  at::Tensor saved, saved2 = at::empty({0}, work.floats);
  if (group != 0) {
    std::vector<Work::Ranked> norms{{input, first, norm}};
    if (two) norms.push_back({*addend, second, norm2});
    const std::vector<at::Tensor> all = work.prepare_over(group_of_number(group), norms);
    saved = all[0];
    if (two) saved2 = all[1];
  } else {
    saved = whole ? work.describe(first, norm) : work.prepare(input, first, norm);
    if (two) saved2 = work.prepare(*addend, second, norm2);
  }
  at::Tensor output = at::empty_like(input);
  const bool masked = records && is_masked(added, activation);
  at::Tensor mask = at::empty({masked ? work.shape.groups : 0}, work.floats.dtype(at::kByte));
  void* const bits = masked ? mask.mutable_data_ptr() : nullptr;
  const void *x = input.const_data_ptr(), *other = added ? addend->const_data_ptr() : nullptr;
  if (whole) {
    work.together(kForwardOne, "norm_whole", /*sums=*/2, /*tensors=*/1, x, other, output.mutable_data_ptr(), bits, norm, norm2);
  } else if (work.shape.rows > 0) {
    work.each(kForwardTwo, "norm_apply", added ? 2 : 4, x, other, output.mutable_data_ptr(), bits, norm, norm2);
  }
  return {std::move(output), std::move(saved), std::move(saved2), std::move(mask)};
}

// Returns the gradients of the input, the addend, weight, bias, weight2 and bias2. The gradient of
// an absent tensor is empty. gradient2 is a second gradient of the result, or absent.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient, Optional gradient2,
                                                                                            const at::Tensor& input, Optional addend,
                                                                                            const at::Tensor& saved, const at::Tensor& saved2,
                                                                                            const at::Tensor& mask, bool added, bool two,
                                                                                            bool training, c10::string_view name, int64_t choose,
                                                                                            int64_t group) {
  const Activation activation = activation_of(name);
  const Work work(input, activation, two ? 2 : added);
  const auto vector = [&](bool there) { return at::empty({there ? work.shape.channels : 0}, work.floats); };
  at::Tensor weight = vector(true), bias = vector(true), weight2 = vector(two), bias2 = vector(two);
  const at::Tensor factors = at::empty({6, work.shape.channels}, work.floats);
  const Norm norm = work.differentiate(saved, factors, weight, bias, training),
             norm2 = two ? work.differentiate(saved2, factors[3], weight2, bias2, training) : norm;
  const void *x = input.const_data_ptr(), *other = is_defined(addend) ? addend->const_data_ptr() : nullptr,
             *g = gradient.const_data_ptr(), *g2 = is_defined(gradient2) ? gradient2->const_data_ptr() : nullptr;
  at::Tensor of_input = at::empty_like(input), of_addend = two ? at::empty_like(input) : at::Tensor();
  void* const dx2 = two ? of_addend.mutable_data_ptr() : nullptr;
  const int sums = two ? 3 : 2;
  // The gradient of the activation's input. If there is an addend and no second norm, it is the
  // addend's gradient too.
  at::Tensor before;
  // One kernel would wait for collectives beside it. A forward does not ask, because the second
  // forward of Recompute must give the bits of the first.
  const bool beside = choose == kFaster && BesideCollectives::on(input.device().index());
  if (group == 0 && !beside && work.whole(static_cast<Choose>(choose))) {
    // The kernel writes it only for a reader, or if not all of it is kept.
    const bool writes = (added && !two) || !work.keeps_all(2);
    before = writes ? at::empty_like(input) : at::Tensor();
    work.together(kBackwardOne, g2 != nullptr ? "norm_gradient_whole_two" : "norm_gradient_whole", sums, /*tensors=*/2, g, g2, x, other, mask.const_data_ptr(),
                  writes ? before.mutable_data_ptr() : nullptr, of_input.mutable_data_ptr(), dx2, norm, norm2);
  } else {
    // It is `gradient` itself if there is no activation and only one gradient of the result. Without
    // an addend norm_gradient computes the activation's part, and gets `gradient` too.
    const bool writes = added && (activation != kNone || g2 != nullptr);
    before = writes ? at::empty_like(input) : gradient;
    const bool any = work.shape.rows > 0;
    if (any) {
      work.reduce(kBackwardTwo, g2 != nullptr ? "norm_reduce_two" : "norm_reduce", work.shape.rows, /*each=*/1, sums, g, g2, x, other, mask.const_data_ptr(),
                  writes ? before.mutable_data_ptr() : nullptr, norm, norm2);
    } else {
      for (at::Tensor* t : {&weight, &bias, &weight2, &bias2}) t->zero_();
    }
    if (group != 0) work.add_over(group_of_number(group), norm, two ? &norm2 : nullptr, bias, weight, weight2);
    if (any) work.each(kBackwardTwo, "norm_gradient", 2, std::as_const(before).const_data_ptr(), x, two ? other : nullptr, of_input.mutable_data_ptr(), dx2, norm, norm2);
  }
  if (!two) of_addend = added ? before : at::empty({0}, input.options());
  return {std::move(of_input), std::move(of_addend), std::move(weight), std::move(bias), std::move(weight2), std::move(bias2)};
}

// Note [Two gradients of one result]
//
// The result of a residual block has two readers: the next block's first convolution, and the sum
// at the next block's end. Autograd would add the gradients of the two readers in a kernel of its
// own. So the node of batch_norm_act has two outputs over the same memory. The program gets the
// first output. If the program gives the first output as an addend to an operator of this file,
// the operator reads the second output instead: see `skip_of`. The kernels of the
// backward then read both gradients, and no other kernel adds them. ct_gradients adds the
// gradients of both outputs.

// The node of both operators in the autograd graph.
struct Node : torch::autograd::Function<Node> {
  static constexpr size_t kInputs = 20;  // arguments of forward, besides the context

  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context, const at::Tensor& input, Optional addend, Optional weight,
                                                Optional bias, Optional running_mean, Optional running_var, Optional weight2, Optional bias2,
                                                Optional running_mean2, Optional running_var2, bool two, bool training, double momentum, double eps,
                                                double momentum2, double eps2, const std::string& activation, int64_t choose, bool records, int64_t group) {
    static const auto call = operator_of<decltype(ct::forward)>("streamtorch::batch_norm_act_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, saved, saved2, mask] = call.call(input, addend, weight, bias, running_mean, running_var, weight2, bias2, running_mean2,
                                                   running_var2, two, training, momentum, eps, momentum2, eps2, activation, choose, records, group);
    const bool added = is_defined(addend);
    const bool keeps = two || is_again(added, activation_of(activation));
    context->save_for_backward({input, keeps ? *addend : at::Tensor(), saved, saved2, mask});
    context->saved_data["added"] = added;
    context->saved_data["two"] = two;
    context->saved_data["training"] = training;
    context->saved_data["activation"] = activation;
    context->saved_data["choose"] = choose;
    context->saved_data["group"] = group;
    given(context, "statistics", running_mean);
    given(context, "weight", weight);
    given(context, "bias", bias);
    given(context, "weight2", weight2);
    given(context, "bias2", bias2);
    context->set_materialize_grads(false);  // an output that nobody read has no gradient, instead of one of zeros
    return {output, output.variable_data()};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::batch_norm_act has no second derivative: use BatchNorm2d and the activation, each by itself");
    static const auto call = operator_of<decltype(ct::backward)>("streamtorch::batch_norm_act_backward");
    const torch::autograd::variable_list kept = context->get_saved_variables();
    const auto flag = [&](const char* name) { return context->saved_data[name].toBool(); };
    const bool added = flag("added"), two = flag("two");
    std::vector<at::Tensor> found;
    for (const at::Tensor& g : gradients) {
      if (g.defined()) found.push_back(images_like(g, kept[0]));
    }
    if (found.empty()) return torch::autograd::variable_list(kInputs);
    if (found.size() == 2 && !added) found.assign(1, at::add(found[0], found[1]));
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(t) : std::nullopt; };
    auto [of_input, of_addend, weight, bias, weight2, bias2] =
        call.call(found.at(0), found.size() == 2 ? std::optional(found[1]) : std::nullopt, kept[0], optional(kept[1]), kept[2], kept[3], kept[4], added,
                  two, flag("training"), context->saved_data["activation"].toStringRef(), context->saved_data["choose"].toInt(),
                  context->saved_data["group"].toInt());
    Edges edges{context};
    torch::autograd::variable_list result(kInputs);
    result[0] = edges.take(true, of_input);
    result[1] = edges.take(added, of_addend);
    result[2] = edges.take(flag("weight"), weight);
    result[3] = edges.take(flag("bias"), bias);
    edges.next += 2 * flag("statistics");
    result[6] = edges.take(flag("weight2"), weight2);
    result[7] = edges.take(flag("bias2"), bias2);
    return result;
  }

 private:
  static void given(torch::autograd::AutogradContext* context, const char* name, Optional t) { context->saved_data[name] = is_defined(t); }
};

// If `t` is the first output of a Node, returns the second output of that Node: see Note [Two
// gradients of one result]. Otherwise returns an undefined tensor.
at::Tensor second_output(const at::Tensor& t) {
  if (!t.defined() || !t.requires_grad() || t.is_leaf() || t.output_nr() != 0) return {};
  const auto& node = t.grad_fn();
  if (dynamic_cast<torch::autograd::CppNode<Node>*>(node.get()) == nullptr) return {};
  at::Tensor second = t.detach();
  torch::autograd::impl::set_gradient_edge(second, {node, 1});
  return second;
}

[[maybe_unused]] const bool registered = (autograd::gradient_has_another(second_output), true);

// Returns the tensor that an operator reads instead of the addend `t`. This is the second output
// if `t` is the first output of a Node. Otherwise it is `t` itself.
at::Tensor skip_of(const at::Tensor& t) {
  const at::Tensor second = c10::GradMode::is_enabled() ? second_output(t) : at::Tensor();
  return second.defined() ? second : t;
}

// Computes the activation of `t`. Some activations overwrite `t`. That is allowed, because `t` is
// a result of batch_norm or add, and the backward of these two does not need their result.
at::Tensor activate(at::Tensor t, Activation activation) {
  switch (activation) {
    case kRelu: return at::relu_(t);
    case kRelu6: return at::relu6_(t);
    case kSilu: return at::silu(t);
    case kHardswish: return at::hardswish(t);
    case kGelu: return at::gelu(t);
    default: return t;
  }
}

// group: the number of the group of ranks whose batches have one statistics in training, or 0.
// Without the kernels there is nothing over ranks, so the caller asks batch_norm_way before.
at::Tensor run(const at::Tensor& input, Optional addend, const Parameters& p, const Parameters* second, c10::string_view name, c10::string_view kernels,
               int64_t group) {
  const Activation activation = activation_of(name);
  const Choose choose = choose_of(kernels);
  const bool over = group != 0 && p.training;
  if (choose != kNoKernels && !why_not(input, addend, over) && p.fit(input) && (second == nullptr || second->fit(*addend))) {
    const std::optional<at::Tensor> none, other = is_defined(addend) && second == nullptr ? std::optional(skip_of(*addend)) : addend;
    const Parameters& q = second == nullptr ? Parameters{none, none, none, none, false, 0, 0} : *second;
    bool records = false;
    for (const std::optional<at::Tensor>& t : {std::optional(input), addend, p.weight, p.bias, p.running_mean, p.running_var, q.weight, q.bias, q.running_mean, q.running_var}) {
      records |= is_defined(t) && t->requires_grad();
    }
    return Node::apply(input, other, p.weight, p.bias, p.running_mean, p.running_var, q.weight, q.bias, q.running_mean, q.running_var,
                       second != nullptr, p.training, p.momentum, p.eps, q.momentum, q.eps, std::string(name), int64_t{choose},
                       records && c10::GradMode::is_enabled(), over ? group : 0)[0];
  }
  TORCH_CHECK(!over, "a norm over ranks of ", input.toString(), input.sizes(), ", for which there are no kernels");
  at::Tensor out = p.apply(input);
  if (is_defined(addend)) {
    const at::Tensor sum = second == nullptr ? *addend : second->apply(*addend);
    const bool in_place = out.scalar_type() == sum.scalar_type() && out.sizes() == sum.sizes();
    out = in_place ? out.add_(sum) : at::add(out, sum);
  }
  return activate(std::move(out), activation);
}

// Returns the way that batch_norm_act takes for the same arguments, as a number of Way.
int64_t batch_norm_way(const at::Tensor& input, Optional addend, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                       bool training, c10::string_view kernels, bool over_ranks) {
  const Choose choose = choose_of(kernels);
  if (choose == kNoKernels) return kAsked;
  if (const auto why = why_not(input, addend, over_ranks)) return *why;
  if (!Parameters{weight, bias, running_mean, running_var, training, 0, 0}.fit(input)) return kParameters;
  return training && !over_ranks && Work(input, kNone, 0).whole(choose) ? kOneKernel : kTwoKernels;
}

at::Tensor batch_norm_act(const at::Tensor& input, Optional addend, Optional weight, Optional bias, Optional running_mean, Optional running_var,
                          bool training, double momentum, double eps, c10::string_view activation, c10::string_view kernels, int64_t group) {
  return run(input, addend, {weight, bias, running_mean, running_var, training, momentum, eps}, nullptr, activation, kernels, group);
}

at::Tensor batch_norms_act(const at::Tensor& input, const at::Tensor& addend, Optional weight, Optional bias, Optional running_mean,
                           Optional running_var, Optional weight2, Optional bias2, Optional running_mean2, Optional running_var2, bool training,
                           double momentum, double eps, double momentum2, double eps2, c10::string_view activation, c10::string_view kernels,
                           int64_t group) {
  const Parameters second{weight2, bias2, running_mean2, running_var2, training, momentum2, eps2};
  return run(input, addend, {weight, bias, running_mean, running_var, training, momentum, eps}, &second, activation, kernels, group);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("branch(Tensor(a) input) -> Tensor(a)", TORCH_FN(skip_of));
  library.def("batch_norm_way(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
              "bool training, str kernels=\"faster\", bool over_ranks=False) -> int",
              TORCH_FN(batch_norm_way));
  library.def("batch_norm_act_forward(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "Tensor? weight2, Tensor? bias2, Tensor(c!)? running_mean2, Tensor(d!)? running_var2, bool two, bool training, float momentum, "
              "float eps, float momentum2, float eps2, str activation, int choose, bool records, int group) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def("batch_norm_act_backward(Tensor gradient, Tensor? gradient2, Tensor input, Tensor? addend, Tensor saved, Tensor saved2, Tensor mask, "
              "bool added, bool two, bool training, str activation, int choose, int group) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  // Registered for every backend, because the functions choose between the node of this file and
  // LibTorch's operators.
  library.def("batch_norm_act(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "bool training, float momentum, float eps, str activation, str kernels=\"faster\", int group=0) -> Tensor",
              TORCH_FN(batch_norm_act));
  library.def("batch_norms_act(Tensor input, Tensor addend, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
              "Tensor? weight2, Tensor? bias2, Tensor(c!)? running_mean2, Tensor(d!)? running_var2, bool training, float momentum, float eps, "
              "float momentum2, float eps2, str activation, str kernels=\"faster\", int group=0) -> Tensor",
              TORCH_FN(batch_norms_act));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("batch_norm_act_forward", TORCH_FN(forward));
  library.impl("batch_norm_act_backward", TORCH_FN(backward));
}

}  // namespace
}  // namespace ct
