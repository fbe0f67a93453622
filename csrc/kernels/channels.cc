// Operators on the channels of images, for evaluation.
//
//   channel_affine   activation((input + shift) * scale + bias + addend)
//   channel_means    the mean of each channel of each image, [N, C, 1, 1]
//   squeeze_excite   images * sigmoid(w2 activation(w1 means + b1) + b2)
//
// A shift, a scale and a bias have a number for each channel. A batch norm of evaluation, the bias
// of a convolution or a linear layer, and a layer scale have this form. The channels are the second
// dimension, or with `last` the last one, as behind a linear layer. With `reuse` the result may
// take the memory of the input, which the caller gives up. The schema names no write for it, since
// nobody reads the input again. On CUDA channel_affine reads each tensor once, computes in float32
// and rounds once.
//
// The weights of squeeze_excite are those of two convolutions of one pixel. LibTorch runs seven
// kernels or more for it, and this file three, which round where LibTorch's round.
//
// The kernels take images in channels last, and with `last` tensors without gaps, of float32,
// float16 or bfloat16, with a multiple of 8 channels. In all other cases, and where a gradient is
// needed, LibTorch's operators do the work.
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/add.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/relu6.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/channels_cuda.h"
#include "kernels/images.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

constexpr int kThreads = 256, kAffineThreads = 128;

struct Activation {
  const char* macro;
  at::Tensor (*apply)(const at::Tensor&);
};
const std::map<std::string, Activation, std::less<>> kActivations{
    {"none", {"NONE", [](const at::Tensor& t) { return t; }}},
    {"relu", {"RELU", [](const at::Tensor& t) { return at::relu(t); }}},
    {"relu6", {"RELU6", [](const at::Tensor& t) { return at::relu6(t); }}},
    {"silu", {"SILU", [](const at::Tensor& t) { return at::silu(t); }}},
    {"hardswish", {"HARDSWISH", [](const at::Tensor& t) { return at::hardswish(t); }}},
    {"gelu", {"GELU", [](const at::Tensor& t) { return at::gelu(t); }}},
};

const CudaProgram& program_of(at::ScalarType dtype, std::optional<at::ScalarType> parameter, const std::string& chosen) {
  return variant_of(std::tuple(dtype, parameter, chosen), [&] {
    Variant variant{"channels of " + float_name(dtype) + ", " + chosen, "\n#define DTYPE " + float_name(dtype) + "\n", kChannelsText,
                    /*fused_multiply_add=*/true};
    if (parameter) variant.head += "#define PARAMETER " + float_name(*parameter) + "\n";
    for (const auto& [name, a] : kActivations) variant.head += std::string("#define ") + a.macro + (name == chosen ? " 1\n" : " 0\n");
    return variant;
  });
}

// Returns whether the kernels can read t, whose channels are dimension `dim`.
bool is_readable(const at::Tensor& t, at::MemoryFormat format, int64_t dim) {
  return t.is_cuda() && t.numel() > 0 && is_floating(t.scalar_type()) && t.is_contiguous(format) && is_aligned(t) && t.size(dim) % 8 == 0 &&
         t.numel() / 8 <= INT32_MAX && cuda().chip(t.device().index()).capability >= 80;
}

bool is_images(const at::Tensor& t) { return t.dim() == 4 && is_readable(t, at::MemoryFormat::ChannelsLast, 1); }

bool is_rows(const at::Tensor& t) { return t.dim() >= 2 && is_readable(t, at::MemoryFormat::Contiguous, -1); }

// Returns the dtype of the shift, the scale and the bias, if the kernel can read them.
std::optional<at::ScalarType> parameter_of(const at::Tensor& input, int64_t channels, std::initializer_list<std::optional<at::Tensor>> parameters) {
  std::optional<at::ScalarType> dtype;
  for (Optional t : parameters) {
    if (!is_defined(t)) continue;
    if (!is_floating(t->scalar_type()) || !t->is_contiguous() || t->numel() != channels || t->device() != input.device() || !is_aligned(*t)) return {};
    if (dtype && *dtype != t->scalar_type()) return {};
    dtype = t->scalar_type();
  }
  return dtype.value_or(at::kFloat);
}

bool is_fused(const at::Tensor& input, Optional shift, Optional scale, Optional bias, Optional addend, bool last) {
  const auto is_taken = last ? is_rows : is_images;
  if (!is_taken(input) || !parameter_of(input, input.size(last ? -1 : 1), {shift, scale, bias})) return false;
  if (is_defined(addend) && (!is_taken(*addend) || addend->scalar_type() != input.scalar_type() || addend->sizes() != input.sizes() ||
                             addend->device() != input.device())) {
    return false;
  }
  return !needs_gradient({input, shift, scale, bias, addend});
}

at::Tensor affine(const at::Tensor& input, Optional shift, Optional scale, Optional bias, Optional addend, c10::string_view activation, bool last,
                  bool reuse) {
  const int64_t channels = input.size(last ? -1 : 1);
  const at::ScalarType parameter = parameter_of(input, channels, {shift, scale, bias}).value();
  const CudaProgram& program = program_of(input.scalar_type(), parameter, std::string(activation));
  at::Tensor out = reuse ? input : at::empty_like(input);
  const void *x = input.const_data_ptr(), *f = read(shift), *s = read(scale), *b = read(bias), *y = read(addend);
  void* to = out.mutable_data_ptr();
  auto columns = static_cast<unsigned>(channels / 8), groups = static_cast<unsigned>(input.numel() / 8);
  const int64_t most = int64_t{64} * cuda().chip(input.device().index()).multiprocessors;
  void* arguments[] = {&x, &f, &s, &b, &y, &to, &columns, &groups};
  cuda().launch(program, "channel_affine", images::stream_of(input), static_cast<unsigned>(std::min<int64_t>((int64_t{groups} + kAffineThreads - 1) / kAffineThreads, most)),
                kAffineThreads, arguments);
  return out;
}

at::Tensor channel_affine(const at::Tensor& input, Optional shift, Optional scale, Optional bias, Optional addend, c10::string_view activation, bool last,
                          bool reuse) {
  const auto found = kActivations.find(std::string(activation));
  TORCH_CHECK(found != kActivations.end(), "streamtorch::channel_affine: the activation is \"", activation,
              "\", want none, relu, relu6, silu, hardswish or gelu");
  TORCH_CHECK(input.dim() >= 2, "streamtorch::channel_affine: the input ", input.sizes(), " has no channels");
  static const auto call = operator_of<decltype(affine)>("streamtorch::channel_affine_cuda");
  if (is_fused(input, shift, scale, bias, addend, last)) return call.call(input, shift, scale, bias, addend, activation, last, reuse);
  const auto of_channels = [&](const at::Tensor& t) {
    std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
    (last ? sizes.back() : sizes[1]) = input.size(last ? -1 : 1);
    return t.reshape(sizes);
  };
  at::Tensor out = input;
  if (is_defined(shift)) out = at::add(out, of_channels(*shift));
  if (is_defined(scale)) out = at::mul(out, of_channels(*scale));
  if (is_defined(bias)) out = at::add(out, of_channels(*bias));
  if (is_defined(addend)) out = at::add(out, *addend);
  return found->second.apply(out).to(is_defined(addend) ? at::result_type(input, *addend) : input.scalar_type());
}

// How the sums over the pixels of images are divided.
struct Sums {
  int count, channels, pixels, columns, lanes, tiles, chunks;
  explicit Sums(const at::Tensor& images)
      : count(static_cast<int>(images.size(0))), channels(static_cast<int>(images.size(1))), pixels(static_cast<int>(images.size(2) * images.size(3))),
        columns(channels / 8), lanes(std::min(columns, 32)), tiles((columns + lanes - 1) / lanes) {
    // Two blocks for each multiprocessor, unless a thread then had less than four pixels.
    const int rows = kThreads / lanes, multiprocessors = cuda().chip(images.device().index()).multiprocessors;
    chunks = std::clamp(2 * multiprocessors / std::max(count * tiles, 1), 1, (pixels + 4 * rows - 1) / (4 * rows));
  }
  // Enqueues the sums, or with `to` the means.
  void launch(const CudaProgram& program, const at::Tensor& images, void* to, void* partial) {
    const void* from = images.const_data_ptr();
    void* arguments[] = {&from, &to, &partial, &pixels, &columns, &lanes, &tiles, &chunks};
    cuda().launch(program, "channel_sums", images::stream_of(images), static_cast<unsigned>(int64_t{count} * tiles * chunks), kThreads, arguments);
  }
};

at::Tensor means(const at::Tensor& images) {
  const CudaProgram& program = program_of(images.scalar_type(), std::nullopt, "none");
  Sums sums(images);
  at::Tensor out = at::empty({sums.count, sums.channels, 1, 1}, images.options().memory_format(std::nullopt));
  void* to = out.mutable_data_ptr();
  if (sums.chunks == 1) {
    sums.launch(program, images, to, nullptr);
    return out;
  }
  const at::Tensor partial = at::empty({sums.count, sums.chunks, sums.channels}, images.options().dtype(at::kFloat).memory_format(std::nullopt));
  void* from = partial.mutable_data_ptr();
  sums.launch(program, images, nullptr, from);
  int all = sums.count * sums.channels;
  void* last[] = {&from, &to, &sums.channels, &sums.chunks, &sums.pixels, &all};
  cuda().launch(program, "channel_means", images::stream_of(images), (all + kThreads - 1) / kThreads, kThreads, last);
  return out;
}

at::Tensor channel_means(const at::Tensor& images) {
  static const auto call = operator_of<decltype(means)>("streamtorch::channel_means_cuda");
  return is_images(images) && !needs_gradient({images}) ? call.call(images) : at::adaptive_avg_pool2d(images, {1, 1});
}

// The threads of a block of `excite`. It has 48 KB of shared memory, for its threads' sums and for
// the means of an image.
constexpr int kExciting = 1024;
constexpr int64_t kMostExcited = 48 * 1024 / 4 - kExciting;

// Returns whether the kernels can read a weight of a convolution of one pixel.
bool is_weight(const at::Tensor& w, int64_t from, const at::Tensor& images) {
  return w.dim() == 4 && w.size(1) == from && w.size(2) == 1 && w.size(3) == 1 && w.scalar_type() == images.scalar_type() &&
         w.device() == images.device() && (w.is_contiguous() || w.is_contiguous(at::MemoryFormat::ChannelsLast)) && is_aligned(w);
}

// Returns whether the kernel can read a bias of so many numbers.
bool is_bias(Optional b, int64_t size, const at::Tensor& images) {
  return !is_defined(b) || (b->dim() == 1 && b->numel() == size && b->scalar_type() == images.scalar_type() && b->device() == images.device() && b->is_contiguous());
}

// Returns the factors of images for squeeze_excite, [N, C, 1, 1].
at::Tensor factors(const at::Tensor& images, const at::Tensor& first, Optional first_bias, const at::Tensor& second, Optional second_bias,
                   c10::string_view activation) {
  const CudaProgram& program = program_of(images.scalar_type(), std::nullopt, std::string(activation));
  Sums sums(images);
  const at::Tensor partial = at::empty({sums.count, sums.chunks, sums.channels}, images.options().dtype(at::kFloat).memory_format(std::nullopt));
  at::Tensor out = at::empty({sums.count, sums.channels, 1, 1}, images.options().memory_format(std::nullopt));
  void *from = partial.mutable_data_ptr(), *to = out.mutable_data_ptr();
  sums.launch(program, images, nullptr, from);
  const void *w1 = first.const_data_ptr(), *w2 = second.const_data_ptr(), *b1 = read(first_bias), *b2 = read(second_bias);
  int squeezed = static_cast<int>(first.size(0));
  void* arguments[] = {&from, &w1, &b1, &w2, &b2, &to, &sums.channels, &squeezed, &sums.chunks, &sums.pixels};
  cuda().launch(program, "excite", images::stream_of(images), static_cast<unsigned>(sums.count), kExciting, arguments,
                static_cast<int>((sums.channels + squeezed + kExciting) * sizeof(float)));
  return out;
}

at::Tensor squeeze_excite(const at::Tensor& images, const at::Tensor& first, Optional first_bias, const at::Tensor& second, Optional second_bias,
                          c10::string_view activation) {
  const auto found = kActivations.find(std::string(activation));
  TORCH_CHECK(found != kActivations.end(), "streamtorch::squeeze_excite: the activation is \"", activation,
              "\", want none, relu, relu6, silu, hardswish or gelu");
  if (!needs_gradient({images, first, first_bias, second, second_bias}) && is_images(images) && is_weight(first, images.size(1), images) && is_weight(second, first.size(0), images) &&
      second.size(0) == images.size(1) && first.size(0) > 0 && images.size(1) + first.size(0) <= kMostExcited &&
      is_bias(first_bias, first.size(0), images) && is_bias(second_bias, second.size(0), images)) {
    static const auto call = operator_of<decltype(factors)>("streamtorch::squeeze_excite_factors");
    static const auto scale = operator_of<at::Tensor(const at::Tensor&, const at::Tensor&, bool)>("streamtorch::scale_channels");
    return scale.call(images, call.call(images, first, first_bias, second, second_bias, activation), false);
  }
  const at::Tensor hidden = found->second.apply(at::conv2d(at::adaptive_avg_pool2d(images, {1, 1}), first, first_bias));
  return at::mul(images, at::sigmoid(at::conv2d(hidden, second, second_bias)));
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("squeeze_excite_factors(Tensor images, Tensor first, Tensor? first_bias, Tensor second, Tensor? second_bias, str activation) -> Tensor");
  library.def("squeeze_excite(Tensor images, Tensor first, Tensor? first_bias, Tensor second, Tensor? second_bias, str activation) -> Tensor",
              TORCH_FN(squeeze_excite));
  library.def("channel_affine_cuda(Tensor input, Tensor? shift, Tensor? scale, Tensor? bias, Tensor? addend, str activation, bool last, bool reuse) -> Tensor");
  library.def("channel_means_cuda(Tensor images) -> Tensor");
  // Registered for every backend, because the functions choose between the kernels of this file and
  // LibTorch's operators.
  library.def("channel_affine(Tensor input, Tensor? shift, Tensor? scale, Tensor? bias, Tensor? addend, str activation, bool last=False, "
              "bool reuse=False) -> Tensor",
              TORCH_FN(channel_affine));
  library.def("channel_means(Tensor images) -> Tensor", TORCH_FN(channel_means));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("channel_affine_cuda", TORCH_FN(affine));
  library.impl("channel_means_cuda", TORCH_FN(means));
  library.impl("squeeze_excite_factors", TORCH_FN(factors));
}

}  // namespace
}  // namespace ct
