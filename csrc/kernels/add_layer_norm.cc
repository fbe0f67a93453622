// The operator streamtorch::add_layer_norm. It adds a tensor to another one and returns the sum
// and the layer norm of the sum, over the last dimension.
//
// A transformer does this at each residual connection. Under autocast LibTorch runs five kernels
// for it in the forward: the sum, the norm, and casts. The backward has six: casts, the gradients
// of the norm's input, weight and bias, and the sum with the gradient of the residual connection.
// The kernels of this file read and write each tensor once. They also write the norm's result in
// the dtype that the next layer reads, and the addend's gradient in the addend's dtype.
//
// The kernels run on CUDA, in float32, float16 or bfloat16, for contiguous tensors with a multiple
// of 4 channels, at most 8192. Weight and bias have one dtype. Without a backward the first two
// dimensions of the addend may lie in another order, and the addend may be one row for all rows. In
// all other cases LibTorch's operators do the work, with their own gradients.
//
// streamtorch::bias_layer_norm, for evaluation, adds one row to all rows and returns the norm
// alone.
//
// The result of the norm is rounded once from float32, as in LibTorch. The norm reads the rounded
// sum. The gradient of the sum is rounded once for each of its readers, where LibTorch rounds the
// parts of this gradient too.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "core/device.h"
#include "kernels/add_layer_norm_cuda.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kMostChannels = 8192;

// How the kernels divide a matrix: see add_layer_norm_cuda.h.
struct Division {
  int channels, row_threads, threads, blocks;
  explicit Division(int channels) : channels(channels), row_threads(1), threads(128) {
    const int columns = channels / 4;
    while (row_threads < columns && row_threads < 32) row_threads *= 2;
    if (columns > 32 * 8) row_threads = 128;
    if (columns > 128 * 8) row_threads = threads = 256;
    const int quads = (columns + row_threads - 1) / row_threads;
    blocks = threads == 256 ? 1 : quads <= 3 ? 4 : quads <= 6 ? 3 : 2;  // so that the sums fit into the registers
  }
  int rows() const { return threads / row_threads; }
};

// What is added: nothing, rows, or one row to all rows, whose sum nobody wants.
enum Added { kNothing, kRows, kOneRow };

struct Types {
  at::ScalarType input, addend, sum, normed, parameter;
  Added added;
  bool apart;
  auto key() const { return std::tuple(input, addend, sum, normed, parameter, added, apart); }
};

at::ScalarType parameter_of(Optional weight, Optional bias) {
  return is_defined(weight) ? weight->scalar_type() : is_defined(bias) ? bias->scalar_type() : at::kFloat;
}

// Where the rows of the addend lie: see add_layer_norm_cuda.h.
struct Rows {
  int count = 1;
  long long step = 0, jump = 0;
};

// Returns where the rows of t lie, if its last dimension has no gaps, and if rows with one distance
// follow each other in each of its first dimension.
std::optional<Rows> rows_of(const at::Tensor& t) {
  if (t.stride(-1) != 1) return {};
  const bool one = t.dim() < 3;  // all rows have one distance
  Rows rows{static_cast<int>(t.dim() < 2 ? 1 : one ? t.size(0) : t.size(1)), t.dim() < 2 ? 0 : t.stride(one ? 0 : 1), one ? 0 : t.stride(0)};
  for (int64_t i = 2; i + 1 < t.dim(); ++i) {  // the later dimensions follow each other
    if (t.stride(i - 1) != t.stride(i) * t.size(i)) return {};
    rows.count *= static_cast<int>(t.size(i));
    rows.step = t.stride(i);
  }
  if (rows.step % 4 != 0 || rows.jump % 4 != 0) return {};
  rows.step /= 4;
  rows.jump /= 4;
  return rows;
}

const CudaProgram& program_of(const Types& types, const Division& d, bool sums) {
  return variant_of(std::tuple(types.key(), d.channels, sums), [&] {
    const std::string input = float_name(types.input), normed = float_name(types.normed);
    Variant variant{"layer norm of " + std::to_string(d.channels) + " channels from " + input + " to " + normed, "", kAddLayerNormText,
                    /*fused_multiply_add=*/true};
    const auto define = [&](const char* macro, const std::string& value) { variant.head += std::string("#define ") + macro + " " + value + "\n"; };
    define("INPUT", input);
    define("ADDEND", float_name(types.addend));
    define("SUM", float_name(types.sum));
    define("NORMED", normed);
    define("PARAMETER", float_name(types.parameter));
    define("ADDED", std::to_string(types.added));
    define("APART", std::to_string(types.apart));
    define("CHANNELS", std::to_string(d.channels));
    define("ROW_THREADS", std::to_string(d.row_threads));
    define("THREADS", std::to_string(d.threads));
    define("BLOCKS", std::to_string(d.blocks));
    define("SUMS", std::to_string(sums));
    return variant;
  });
}

// The rows of a tensor are those of its last dimension.
struct Matrix {
  int rows, channels;
  explicit Matrix(const at::Tensor& t) : rows(static_cast<int>(t.numel() / t.size(-1))), channels(static_cast<int>(t.size(-1))) {}
};

// Returns the sum, the result of the norm, and the mean and 1 / deviation of each row as [2, rows].
// Without an addend the sum is empty. If `records` is false, there is no backward, and the last
// tensor is empty.
std::tuple<at::Tensor, at::Tensor, at::Tensor> forward(const at::Tensor& input, Optional addend, Optional weight, Optional bias, double eps,
                                                       at::ScalarType dtype, bool records) {
  const Added added = !is_defined(addend) ? kNothing : addend->sizes() == input.sizes() ? kRows : kOneRow;
  const Matrix matrix(input);
  const Division d(matrix.channels);
  const at::ScalarType in = input.scalar_type(), other = added ? addend->scalar_type() : in, of_sum = at::promote_types(in, other);
  const bool apart = added == kRows && !addend->is_contiguous();
  Rows of_addend = apart ? rows_of(*addend).value() : Rows{};
  at::Tensor sum = added == kRows ? at::empty_like(input, input.options().dtype(of_sum)) : at::empty({0}, input.options());
  at::Tensor normed = at::empty_like(input, input.options().dtype(dtype));
  at::Tensor saved = at::empty({2, records ? matrix.rows : 0}, input.options().dtype(at::kFloat));
  const void *x = input.const_data_ptr(), *y = read(addend), *w = read(weight), *b = read(bias);
  void *s = added == kRows ? sum.mutable_data_ptr() : nullptr, *n = normed.mutable_data_ptr(), *numbers = records ? saved.mutable_data_ptr() : nullptr;
  int rows = matrix.rows;
  float epsilon = static_cast<float>(eps);
  void* arguments[] = {&x, &y, &w, &b, &s, &n, &numbers, &rows, &epsilon, &of_addend};
  cuda().launch(program_of({in, other, of_sum, dtype, parameter_of(weight, bias), added, apart}, d, true), "add_layer_norm", images::stream_of(input),
                (rows + d.rows() - 1) / d.rows(), d.threads, arguments);
  return {std::move(sum), std::move(normed), std::move(saved)};
}

// Returns the gradients of the input, the addend, weight and bias. A gradient that nobody wants is
// empty. The gradient of the sum may be absent. If the input and the addend have one dtype, the
// first tensor is the gradient of both. `addend` is the dtype of the addend, and that of the input
// if there is none.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& of_normed, Optional of_sum, const at::Tensor& sum,
                                                                    const at::Tensor& saved, Optional weight, at::ScalarType input,
                                                                    at::ScalarType addend, bool added, bool wants_input, bool wants_addend,
                                                                    bool wants_parameters) {
  const Matrix matrix(sum);
  const Division d(matrix.channels);
  const at::TensorOptions floats = sum.options().dtype(at::kFloat);
  const auto like = [&](bool wanted, at::ScalarType dtype) {
    return wanted ? at::empty_like(sum, sum.options().dtype(dtype)) : at::empty({0}, sum.options().dtype(dtype));
  };
  if (input == addend) wants_input |= std::exchange(wants_addend, false);
  at::Tensor of_input = like(wants_input, input), of_addend = like(wants_addend, addend);
  at::Tensor of_weight = at::empty({wants_parameters ? matrix.channels : 0}, floats), of_bias = at::empty_like(of_weight);
  int rows = matrix.rows, blocks = std::min(cuda().chip(sum.device().index()).multiprocessors * d.blocks, (rows + d.rows() - 1) / d.rows());
  const at::Tensor partial = at::empty({wants_parameters ? blocks : 0, 2, matrix.channels}, floats);
  const void *dy = of_normed.const_data_ptr(), *ds = read(of_sum), *x = sum.const_data_ptr(), *numbers = saved.const_data_ptr(), *w = read(weight);
  void *dx = wants_input ? of_input.mutable_data_ptr() : nullptr, *da = wants_addend ? of_addend.mutable_data_ptr() : nullptr;
  void *all = wants_parameters ? partial.mutable_data_ptr() : nullptr;
  const CudaProgram& program = program_of({input, addend, sum.scalar_type(), of_normed.scalar_type(), parameter_of(weight, {}), added ? kRows : kNothing, false}, d, wants_parameters);
  const c10::Stream stream = images::stream_of(sum);
  void* arguments[] = {&dy, &ds, &x, &numbers, &w, &dx, &da, &all, &rows};
  cuda().launch(program, "add_layer_norm_gradient", stream, blocks, d.threads, arguments);
  if (wants_parameters) {
    void *dw = of_weight.mutable_data_ptr(), *db = of_bias.mutable_data_ptr();
    void* parameters[] = {&all, &dw, &db, &blocks};
    cuda().launch(program, "add_layer_norm_parameters", stream, (2 * matrix.channels + 31) / 32, 256, parameters);
  }
  return {std::move(of_input), std::move(of_addend), std::move(of_weight), std::move(of_bias)};
}

// The node of the autograd graph.
struct Node : torch::autograd::Function<Node> {
  static variable_list forward(AutogradContext* context, const at::Tensor& input, Optional addend, Optional weight, Optional bias, double eps,
                               at::ScalarType dtype, bool records) {
    static const auto call = operator_of<decltype(ct::forward)>("streamtorch::add_layer_norm_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const bool added = is_defined(addend);
    auto [sum, normed, saved] = call.call(input, addend, weight, bias, eps, dtype, records);
    if (!added) sum = input;
    context->save_for_backward({sum, saved, is_defined(weight) ? *weight : at::Tensor()});
    auto& data = context->saved_data;
    data["input"] = static_cast<int64_t>(input.scalar_type());
    data["addend"] = static_cast<int64_t>(added ? addend->scalar_type() : input.scalar_type());
    data["added"] = added;
    data["weight"] = is_defined(weight);
    data["bias"] = is_defined(bias);
    context->set_materialize_grads(false);  // a result that nobody read has no gradient, instead of one of zeros
    return {sum, normed};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::add_layer_norm has no second derivative: add and normalise by two operators");
    static const auto call = operator_of<decltype(ct::backward)>("streamtorch::add_layer_norm_backward");
    const auto& data = context->saved_data;
    const auto flag = [&](const char* name) { return data.at(name).toBool(); };
    const auto dtype = [&](const char* name) { return static_cast<at::ScalarType>(data.at(name).toInt()); };
    const bool added = flag("added");
    // The edges of the node are those of the tensors that were given, in their order.
    size_t edge = 0;
    const auto wanted = [&](bool is_given) { return is_given && context->needs_input_grad(edge++); };
    const bool input = wanted(true), addend = wanted(added), weight = wanted(flag("weight")), bias = wanted(flag("bias"));
    variable_list result(7);
    if (!gradients[1].defined()) {  // nobody read the result of the norm
      if (!gradients[0].defined()) return result;
      if (input) result[0] = gradients[0].to(dtype("input"));
      if (addend) result[1] = gradients[0].to(dtype("addend"));
      return result;
    }
    const variable_list kept = context->get_saved_variables();
    const auto optional = [](const at::Tensor& t) { return t.defined() ? std::optional(readable(t)) : std::nullopt; };
    auto [of_input, of_addend, of_weight, of_bias] =
        call.call(readable(gradients[1]), optional(gradients[0]), kept[0], kept[1], optional(kept[2]), dtype("input"), dtype("addend"), added, input,
                  addend, weight || bias);
    if (addend) result[1] = dtype("input") == dtype("addend") ? of_input : std::move(of_addend);
    if (input) result[0] = std::move(of_input);
    if (weight) result[2] = std::move(of_weight);
    if (bias) result[3] = std::move(of_bias);
    return result;
  }
};

// Returns whether the kernels can read weight or bias.
bool is_parameter(Optional t, const at::Tensor& input) {
  return !is_defined(t) || (is_floating(t->scalar_type()) && t->is_contiguous() && t->dim() == 1 && t->numel() == input.size(-1) &&
                            t->device() == input.device() && is_aligned(*t));
}

// Returns whether the kernels can read the tensor.
bool is_matrix(const at::Tensor& t) { return t.is_cuda() && t.dim() > 0 && is_floating(t.scalar_type()) && t.is_contiguous() && is_aligned(t); }

// Returns whether the forward can read the addend, and the backward, if there is one.
bool is_addend(const at::Tensor& t, const at::Tensor& input, bool records) {
  if (t.sizes() != input.sizes() || t.device() != input.device()) return false;
  if (is_matrix(t)) return true;
  return !records && is_floating(t.scalar_type()) && is_aligned(t) && rows_of(t).has_value();
}

// Returns whether the kernels of this file can do the work.
bool is_fused(const at::Tensor& input, Optional addend, Optional weight, Optional bias, at::ScalarType dtype, bool records) {
  if (!is_matrix(input) || !is_floating(dtype) || input.numel() == 0) return false;
  const int64_t channels = input.size(-1);
  if (channels % 4 != 0 || channels > kMostChannels || input.numel() / channels > INT32_MAX / 2) return false;
  if (is_defined(addend) && !is_addend(*addend, input, records)) return false;
  if (is_defined(weight) && is_defined(bias) && weight->scalar_type() != bias->scalar_type()) return false;
  return is_parameter(weight, input) && is_parameter(bias, input) && cuda().chip(input.device().index()).capability >= 80;
}

// Without an addend the sum is the input itself. `dtype` is that of the result of the norm. If it
// is absent, the result has the dtype that LibTorch's norm has.
std::tuple<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& input, Optional addend, Optional weight, Optional bias, double eps,
                                                  std::optional<at::ScalarType> dtype, bool fused) {
  TORCH_CHECK(input.dim() > 0, "streamtorch::add_layer_norm: the input has no dimension");
  const at::ScalarType of_sum = is_defined(addend) ? at::promote_types(input.scalar_type(), addend->scalar_type()) : input.scalar_type();
  const at::ScalarType of_normed = dtype.value_or(at::autocast::is_autocast_enabled(at::kCUDA) ? at::kFloat : of_sum);
  const bool records = needs_gradient({input, addend, weight, bias});
  if (fused && is_fused(input, addend, weight, bias, of_normed, records)) {
    variable_list results = Node::apply(input, addend, weight, bias, eps, of_normed, records);
    return {std::move(results[0]), std::move(results[1])};
  }
  at::Tensor sum = is_defined(addend) ? at::add(input, *addend) : input;
  at::Tensor normed = at::layer_norm(sum, {sum.size(-1)}, weight, bias, eps);
  if (dtype) normed = normed.to(*dtype);
  return {std::move(sum), std::move(normed)};
}

// Returns the layer norm of input + row, for evaluation. The sum has the dtype of both, and so has
// the result.
at::Tensor bias_layer_norm(const at::Tensor& input, const at::Tensor& row, Optional weight, Optional bias, double eps) {
  if (!needs_gradient({input, row, weight, bias}) && row.scalar_type() == input.scalar_type() && !at::autocast::is_autocast_enabled(at::kCUDA) &&
      is_fused(input, std::nullopt, weight, bias, input.scalar_type(), false) && is_parameter(row, input)) {
    static const auto call = operator_of<decltype(ct::forward)>("streamtorch::add_layer_norm_forward");
    return std::get<1>(call.call(input, row, weight, bias, eps, input.scalar_type(), false));
  }
  return at::layer_norm(at::add(input, row), {input.size(-1)}, weight, bias, eps);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("bias_layer_norm(Tensor input, Tensor row, Tensor? weight, Tensor? bias, float eps) -> Tensor", TORCH_FN(bias_layer_norm));
  library.def("add_layer_norm_forward(Tensor input, Tensor? addend, Tensor? weight, Tensor? bias, float eps, ScalarType dtype, bool records) "
              "-> (Tensor, Tensor, Tensor)");
  library.def("add_layer_norm_backward(Tensor of_normed, Tensor? of_sum, Tensor sum, Tensor saved, Tensor? weight, ScalarType input, "
              "ScalarType addend, bool added, bool wants_input, bool wants_addend, bool wants_parameters) -> (Tensor, Tensor, Tensor, Tensor)");
  // Registered for every backend, because the function chooses between the node of this file and
  // LibTorch's operators.
  library.def("add_layer_norm(Tensor(a) input, Tensor? addend, Tensor? weight, Tensor? bias, float eps, ScalarType? dtype=None, bool fused=True) "
              "-> (Tensor(a), Tensor)",
              TORCH_FN(add_layer_norm));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("add_layer_norm_forward", TORCH_FN(forward));
  library.impl("add_layer_norm_backward", TORCH_FN(backward));
}

}  // namespace
}  // namespace ct
