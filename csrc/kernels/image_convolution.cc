// The operator streamtorch::image_convolution. It is aten::conv2d with stride 2 and a square
// kernel, without bias, groups and dilation.
//
// Such an operator is often the first layer of a net: its images have one to four channels. In
// float16 and bfloat16, cuDNN is slow with so few channels. The kernels of this file make cells of
// 2 x 2 pixels, which have 8 or 16 channels: see Note [Convolution of cells]. A convolution of the
// cells gives the same result. For the first layer of ResNet, cuDNN's two kernels of a step then
// take 1.1 ms instead of 2.9 ms (256 images, H200). The kernels of this file also convert the
// images and the weight to the dtype of the result, which autocast would do in further kernels.
//
// The kernels run on CUDA, in float16 or bfloat16, for images without a gradient. In all other
// cases LibTorch's operator does the work, with its own gradients. The results differ like those
// of two algorithms of cuDNN. They differ more if a pixel is infinite or NaN. A cell may have
// pixels outside a result's window. There the kernel is 0, and 0 * infinity is NaN. So the pixel
// may also reach results whose window ends beside it. The kernels' result is in channels last.
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/device.h"
#include "kernels/image_convolution_cells.h"
#include "kernels/image_convolution_cuda.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

using image_convolution::Images;
using image_convolution::Weight;

constexpr int64_t kMostChannels = 4, kLargestKernel = 11, kThreads = 256;

bool is_half(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

// Returns the program that converts between `dtype` and cells of the dtype `cell`.
const CudaProgram& program_of(at::ScalarType dtype, at::ScalarType cell, int64_t channels) {
  return variant_of(std::tuple(dtype, cell, channels), [=] {
    return Variant{"image convolution of " + float_name(dtype) + " in " + float_name(cell) + ", channels " + std::to_string(channels),
                   std::string(image_convolution::kCellsText) + "\n#define DTYPE " + float_name(dtype) + "\n#define CELL " + float_name(cell) +
                       "\n#define CHANNELS " + std::to_string(channels) + "\n",
                   kImageConvolutionText};
  });
}

// Launches a kernel with at least `threads` threads. `to` is the tensor that the kernel writes.
template <typename Numbers>
void launch(const CudaProgram& program, const char* kernel, int64_t threads, const at::Tensor& from, const at::Tensor& to, Numbers numbers) {
  const void* in = from.const_data_ptr();
  void* out = to.mutable_data_ptr();
  void* arguments[] = {&in, &out, &numbers};
  cuda().launch(program, kernel, images::stream_of(to), static_cast<unsigned>((threads + kThreads - 1) / kThreads), kThreads, arguments);
}

// Returns whether the kernel may read pairs of elements: see kPaired in image_convolution_cuda.h.
bool is_paired(const at::Tensor& input) {
  const int64_t channels = input.size(1);
  return (channels == 1 || input.stride(1) == 1) && input.stride(3) == channels && input.size(3) % 2 == 0 && input.stride(2) % 2 == 0 &&
         input.stride(0) % 2 == 0 && reinterpret_cast<uintptr_t>(input.const_data_ptr()) % (2 * input.element_size()) == 0;
}

// Returns whether the distances between the elements of the tensor are ints.
bool is_small(const at::Tensor& t) {
  int64_t largest = 0;
  for (int64_t i = 0; i < t.dim(); ++i) {
    if (t.stride(i) > INT32_MAX || t.size(i) > INT32_MAX) return false;
    largest += (t.size(i) - 1) * t.stride(i);
    if (largest > INT32_MAX) return false;
  }
  return true;
}

// Returns the dtype in which the kernels of this file compute the convolution. Returns nothing if
// they cannot compute it.
std::optional<at::ScalarType> cell_dtype(const at::Tensor& input, const at::Tensor& weight, int64_t padding) {
  if (!input.is_cuda() || input.dim() != 4 || weight.dim() != 4 || weight.device() != input.device()) return {};
  if (input.requires_grad() && c10::GradMode::is_enabled()) return {};
  const auto is_last = [](const at::Tensor& t) { return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast; };
  if (!is_last(input) && !is_last(weight)) return {};  // LibTorch's result would be contiguous
  const bool autocast = at::autocast::is_autocast_enabled(at::kCUDA);
  const at::ScalarType dtype = autocast ? at::autocast::get_autocast_dtype(at::kCUDA) : input.scalar_type();
  const auto fits = [&](const at::Tensor& t) {
    return t.scalar_type() == dtype || (autocast && (is_half(t.scalar_type()) || t.scalar_type() == at::kFloat));
  };
  if (!is_half(dtype) || !fits(input) || !fits(weight)) return {};
  const int64_t count = input.size(0), channels = input.size(1), outputs = weight.size(0), kernel = weight.size(2);
  if (input.numel() == 0 || weight.numel() == 0 || !is_small(input) || !is_small(weight)) return {};
  if (channels > kMostChannels || weight.size(1) != channels || weight.size(3) != kernel || kernel > kLargestKernel) return {};
  if (padding < 0 || padding >= kernel || input.size(2) + 2 * padding < kernel || input.size(3) + 2 * padding < kernel) return {};
  const int64_t height = (input.size(2) + 2 * padding - kernel) / 2 + 1, width = (input.size(3) + 2 * padding - kernel) / 2 + 1;
  // No number of elements may be larger than an int, and none of these products may overflow.
  constexpr int64_t kMost = INT32_MAX, kOther = kLargestKernel * 16;
  if (height > kMost / kOther || width > kMost / kOther || outputs > kMost / (kOther * kLargestKernel)) return {};
  const int64_t cells = (height + kernel) * (width + kernel);
  if (cells > kMost / (count * 16) || height * width > kMost / count / outputs) return {};
  if (cuda().chip(input.device().index()).capability < 80) return {};
  return dtype;
}

at::Tensor empty_cells(int64_t count, int64_t channels, int64_t height, int64_t width, at::TensorOptions options) {
  const int all = image_convolution::cell_channels(static_cast<int>(channels));
  return at::empty({count, all, height, width}, options.memory_format(at::MemoryFormat::ChannelsLast));
}

constexpr std::array<int64_t, 2> kOne{1, 1}, kNone{0, 0};

// Returns the result, and the cells of the images.
std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& input, const at::Tensor& weight, int64_t padding, at::ScalarType dtype) {
  const Weight w = image_convolution::weight_of(weight, padding);
  const Images g = image_convolution::images_of(input, w, padding);
  const at::TensorOptions options = at::TensorOptions(input.device()).dtype(dtype);
  const int64_t channels = input.size(1);
  at::Tensor cells = empty_cells(g.count, channels, g.rows, g.columns, options);
  const at::Tensor weights = empty_cells(w.outputs, channels, w.window, w.window, options);
  launch(program_of(input.scalar_type(), dtype, channels), is_paired(input) ? "image_cells_paired" : "image_cells", cells.numel() / cells.size(1),
         input, cells, g);
  launch(program_of(weight.scalar_type(), dtype, channels), "weight_cells", weights.numel(), weight, weights, w);
  at::Tensor output = at::convolution(cells, weights, {}, kOne, kNone, kOne, /*transposed=*/false, kNone, /*groups=*/1);
  return {std::move(output), std::move(cells)};
}

// Returns the gradient of the weight. It has the given sizes, strides and dtype.
at::Tensor backward(const at::Tensor& gradient, const at::Tensor& cells, at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                    int64_t padding) {
  at::Tensor result = at::empty_strided(sizes, strides, cells.options().dtype(dtype));
  const Weight w = image_convolution::weight_of(result, padding);
  // The gradient of the weight does not depend on the weight. So the weight that LibTorch gets has
  // the right shape, and nothing is written to it.
  const at::Tensor unset = empty_cells(w.outputs, sizes[1], w.window, w.window, cells.options());
  const at::Tensor weights = std::get<1>(at::convolution_backward(gradient, cells, unset, {}, kOne, kNone, kOne, /*transposed=*/false, kNone,
                                                                  /*groups=*/1, {false, true, false}))
                                 .contiguous(at::MemoryFormat::ChannelsLast);
  launch(program_of(dtype, cells.scalar_type(), sizes[1]), "weight_gradient", result.numel(), weights, result, w);
  return result;
}

// Returns the strides of the weight's gradient: those of the weight if it has no gaps.
std::vector<int64_t> gradient_strides(const at::Tensor& weight) {
  if (weight.is_non_overlapping_and_dense()) return weight.strides().vec();
  std::vector<int64_t> strides(weight.dim(), 1);
  for (int64_t i = weight.dim() - 1; i > 0; --i) strides[i - 1] = strides[i] * weight.size(i);
  return strides;
}

// The node of the autograd graph. It keeps the cells instead of the images. Of the weight it keeps
// only what its gradient needs, and that is not the weight's elements.
struct Node : torch::autograd::Function<Node> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& weight, int64_t padding,
                            at::ScalarType dtype) {
    static const auto call = operator_of<decltype(ct::forward)>("streamtorch::image_convolution_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    const c10::impl::ExcludeDispatchKeyGuard without_autocast(c10::DispatchKey::AutocastCUDA);
    auto [output, cells] = call.call(input, weight, padding, dtype);
    context->save_for_backward({cells});
    context->saved_data["sizes"] = weight.sizes().vec();
    context->saved_data["strides"] = gradient_strides(weight);
    context->saved_data["dtype"] = static_cast<int64_t>(weight.scalar_type());
    context->saved_data["padding"] = padding;
    context->set_materialize_grads(false);
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context, torch::autograd::variable_list gradients) {
    TORCH_CHECK(!at::GradMode::is_enabled(), "streamtorch::image_convolution has no second derivative: use Exec.Conv2d");
    static const auto call = operator_of<decltype(ct::backward)>("streamtorch::image_convolution_backward");
    torch::autograd::variable_list result(4);
    if (!gradients[0].defined() || !context->needs_input_grad(1)) return result;
    const auto& data = context->saved_data;
    result[1] = call.call(gradients[0], context->get_saved_variables()[0], data.at("sizes").toIntVector(), data.at("strides").toIntVector(),
                          static_cast<at::ScalarType>(data.at("dtype").toInt()), data.at("padding").toInt());
    return result;
  }
};

at::Tensor image_convolution(const at::Tensor& input, const at::Tensor& weight, int64_t padding) {
  if (const auto dtype = cell_dtype(input, weight, padding)) return Node::apply(input, weight, padding, *dtype);
  const std::array<int64_t, 2> stride{2, 2}, paddings{padding, padding};
  return at::conv2d(input, weight, {}, stride, at::IntArrayRef(paddings));
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("image_convolution_forward(Tensor input, Tensor weight, int padding, ScalarType dtype) -> (Tensor, Tensor)");
  library.def("image_convolution_backward(Tensor gradient, Tensor cells, int[] sizes, int[] strides, ScalarType dtype, int padding) -> Tensor");
  // Registered for every backend, because the function chooses between the node of this file and
  // LibTorch's operator.
  library.def("image_convolution(Tensor input, Tensor weight, int padding) -> Tensor", TORCH_FN(image_convolution));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("image_convolution_forward", TORCH_FN(forward));
  library.impl("image_convolution_backward", TORCH_FN(backward));
}

}  // namespace
}  // namespace ct
