// The operator streamtorch::scale_channels(images, scale, sigmoid=False). It returns images *
// scale, with LibTorch's bits. `scale`, [N, C, 1, 1], has a number for each channel of each image,
// as a squeeze and excitation computes it. With `sigmoid` the factor is sigmoid(scale), rounded
// once.
//
// LibTorch writes the products for the gradient of `scale` to memory, and adds them up in a second
// kernel. On CUDA this file's backward reads the gradient and the images once, and makes both
// gradients. The gradient of `scale` is rounded once.
//
// Note [Sums of chunks]: the pixels of an image are divided into chunks. A block adds up one chunk,
// always in the same order. A second kernel adds the chunks of each image, also in order. So equal
// inputs give equal bits.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <tuple>

#include "core/device.h"
#include "kernels/inputs.h"
#include "kernels/variants.h"

namespace ct {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int kThreads = 256;
constexpr int64_t kMostChannels = 8 * kThreads;  // a thread of the backward keeps to its eight channels

// A group is eight adjacent channels of one pixel. A pixel has `columns` groups.
constexpr char kSource[] = R"cuda(
using Eight = Vector<DTYPE, 8>;

extern "C" __global__ void scale(const Eight* __restrict__ images, const Eight* __restrict__ by, Eight* __restrict__ to, unsigned pixels,
                                 unsigned columns, unsigned groups, bool sigmoid) {
  for (unsigned k = blockIdx.x * blockDim.x + threadIdx.x; k < groups; k += gridDim.x * blockDim.x) {
    float v[8], s[8];
    widen(images[k], v);
    widen(by[k / columns / pixels * columns + k % columns], s);
    if (sigmoid) {
#pragma unroll
      for (int i = 0; i < 8; ++i) s[i] = 1 / (1 + __expf(-s[i]));
      widen(narrow<DTYPE>(s), s);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] *= s[i];
    to[k] = narrow<DTYPE>(v);
  }
}

// Writes the gradient of the images. Writes the sums of a chunk to partial, [image, chunk, channel].
extern "C" __global__ void __launch_bounds__(256) scale_gradients(const Eight* __restrict__ gradient, const Eight* __restrict__ images,
                                                                 const Eight* __restrict__ by, Eight* __restrict__ to, float* __restrict__ partial,
                                                                 int pixels, int columns, int chunks) {
  constexpr int kAhead = 4;
  __shared__ float shared[256 * 8];
  const int thread = threadIdx.x, rows = blockDim.x / columns, column = thread % columns, image = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
  const int each = (pixels + chunks - 1) / chunks, last = min((chunk + 1) * each, pixels);
  const int base = image * pixels * columns + column;
  float s[8], sums[8];
  widen(by[image * columns + column], s);
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = 0;
  for (int from = chunk * each + thread / columns; from < last; from += rows * kAhead) {
    Eight a[kAhead], b[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * rows;
      if (k >= last) continue;
      a[u] = gradient[base + k * columns];
      b[u] = images[base + k * columns];
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int k = from + u * rows;
      if (k >= last) continue;
      float g[8], v[8];
      widen(a[u], g);
      widen(b[u], v);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sums[i] = fmaf(g[i], v[i], sums[i]);
        g[i] *= s[i];
      }
      to[base + k * columns] = narrow<DTYPE>(g);
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) shared[thread * 8 + i] = sums[i];
  __syncthreads();
  for (int c = thread; c < columns * 8; c += blockDim.x) {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += shared[r * columns * 8 + c];
    partial[blockIdx.x * columns * 8 + c] = sum;
  }
}

// Writes the gradient of the scale, [image, channel], of count numbers.
extern "C" __global__ void scale_sums(const float* __restrict__ partial, DTYPE::Raw* __restrict__ to, int channels, int chunks, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int image = i / channels, channel = i % channels;
  float sum = 0;
  for (int k = 0; k < chunks; ++k) sum += partial[(image * chunks + k) * channels + channel];
  to[i] = DTYPE::narrow(sum);
}
)cuda";

const CudaProgram& program_of(at::ScalarType dtype) {
  return variant_of(dtype, [=] {
    return Variant{"scale channels of " + float_name(dtype), "\n#define DTYPE " + float_name(dtype) + "\n", kSource};
  });
}

bool fits(const at::Tensor& images, const at::Tensor& scale) {
  return images.is_cuda() && images.dim() == 4 && images.numel() > 0 && is_floating(images.scalar_type()) &&
         images.is_contiguous(at::MemoryFormat::ChannelsLast) && is_aligned(images) && images.size(1) % 8 == 0 && images.size(1) <= kMostChannels &&
         images.numel() <= INT32_MAX && scale.dim() == 4 && scale.device() == images.device() && scale.scalar_type() == images.scalar_type() &&
         scale.size(0) == images.size(0) && scale.size(1) == images.size(1) && scale.size(2) == 1 && scale.size(3) == 1 &&
         cuda().chip(images.device().index()).capability >= 80;
}

// Where the kernels of one call run, and how they divide the images.
struct Work {
  explicit Work(const at::Tensor& images)
      : program(program_of(images.scalar_type())), stream(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(images.device())),
        multiprocessors(cuda().chip(images.device().index()).multiprocessors), count(static_cast<int>(images.size(0))),
        channels(static_cast<int>(images.size(1))), pixels(static_cast<int>(images.size(2) * images.size(3))), columns(channels / 8) {}

  template <typename... Arguments>
  void launch(const char* kernel, int64_t blocks, int threads, Arguments... arguments) const {
    void* all[] = {&arguments...};
    cuda().launch(program, kernel, stream, static_cast<unsigned>(blocks), static_cast<unsigned>(threads), all);
  }

  const CudaProgram& program;
  const c10::Stream stream;
  const int multiprocessors, count, channels, pixels, columns;
};

at::Tensor forward(const at::Tensor& images, const at::Tensor& scale, bool sigmoid) {
  const Work work(images);
  const at::Tensor by = readable(scale.reshape({work.count, work.channels}));
  at::Tensor to = at::empty_like(images);
  const auto groups = static_cast<unsigned>(images.numel() / 8);
  const int64_t blocks = std::min<int64_t>((int64_t{groups} + kThreads - 1) / kThreads, int64_t{16} * work.multiprocessors);
  work.launch("scale", blocks, kThreads, images.const_data_ptr(), by.const_data_ptr(), to.mutable_data_ptr(), static_cast<unsigned>(work.pixels),
              static_cast<unsigned>(work.columns), groups, sigmoid);
  return to;
}

std::tuple<at::Tensor, at::Tensor> backward(const at::Tensor& gradient, const at::Tensor& images, const at::Tensor& scale) {
  const Work work(images);
  at::Tensor from = gradient.contiguous(at::MemoryFormat::ChannelsLast);
  if (!is_aligned(from)) from = from.clone();
  const at::Tensor by = readable(scale.reshape({work.count, work.channels}));
  const int rows = std::max(kThreads / work.columns, 1);
  // Eight blocks for each multiprocessor, unless a thread then had less than four groups.
  const int chunks = std::clamp(8 * work.multiprocessors / work.count, 1, (work.pixels + 4 * rows - 1) / (4 * rows));
  at::Tensor of_images = at::empty_like(images), of_scale = at::empty_like(scale, scale.options(), at::MemoryFormat::Contiguous);
  const at::Tensor partial = at::empty({work.count, chunks, work.channels}, images.options().dtype(at::kFloat).memory_format(std::nullopt));
  float* const sums = partial.mutable_data_ptr<float>();
  work.launch("scale_gradients", int64_t{work.count} * chunks, rows * work.columns, from.const_data_ptr(), images.const_data_ptr(),
              by.const_data_ptr(), of_images.mutable_data_ptr(), sums, work.pixels, work.columns, chunks);
  const int numbers = work.count * work.channels;
  work.launch("scale_sums", (numbers + kThreads - 1) / kThreads, kThreads, static_cast<const float*>(sums), of_scale.mutable_data_ptr(), work.channels,
              chunks, numbers);
  return {of_images, of_scale};
}

struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& images, const at::Tensor& scale) {
    static const auto call = operator_of<decltype(ct::forward)>("streamtorch::scale_channels_forward");
    const at::AutoDispatchBelowADInplaceOrView below;
    context->save_for_backward({images, scale});
    return call.call(images, scale, false);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static const auto call = operator_of<decltype(ct::backward)>("streamtorch::scale_channels_backward");
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &images = saved[0], &scale = saved[1], &gradient = gradients[0];
    if (c10::GradMode::is_enabled()) {  // the gradient is differentiated again
      return {at::mul(gradient, scale), at::mul(gradient, images).sum({2, 3}, /*keepdim=*/true)};
    }
    const auto [of_images, of_scale] = call.call(gradient, images, scale);
    return {of_images, of_scale};
  }
};

at::Tensor scale_channels(const at::Tensor& images, const at::Tensor& scale, bool sigmoid) {
  const bool records = c10::GradMode::is_enabled() && (images.requires_grad() || scale.requires_grad());
  if (sigmoid && (records || !fits(images, scale))) return scale_channels(images, at::sigmoid(scale), false);
  if (!fits(images, scale)) return at::mul(images, scale);
  if (records) return Scale::apply(images, scale);
  static const auto call = operator_of<decltype(forward)>("streamtorch::scale_channels_forward");
  return call.call(images, scale, sigmoid);
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("scale_channels_forward(Tensor images, Tensor scale, bool sigmoid) -> Tensor");
  library.def("scale_channels_backward(Tensor gradient, Tensor images, Tensor scale) -> (Tensor, Tensor)");
  // Registered for every backend, because the function chooses between the kernels of this file and
  // LibTorch's operator.
  library.def("scale_channels(Tensor images, Tensor scale, bool sigmoid=False) -> Tensor", TORCH_FN(scale_channels));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) {
  library.impl("scale_channels_forward", TORCH_FN(forward));
  library.impl("scale_channels_backward", TORCH_FN(backward));
}

}  // namespace
}  // namespace ct
