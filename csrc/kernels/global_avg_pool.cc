// The operator streamtorch::global_avg_pool2d. It returns the mean of each channel of images, as
// aten::adaptive_avg_pool2d does for a result of 1x1, with the same bits.
//
// The gradient of such a mean is the same for all pixels of an image. LibTorch returns a view that
// repeats it, and the next operator copies the view to images. For images in channels last that
// copy takes ten times as long as to write the images. So on CUDA this file's backward writes them.
#include <ATen/core/Tensor.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cstdint>

#include "core/device.h"
#include "kernels/inputs.h"

namespace ct {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr unsigned kThreads = 256;
constexpr int64_t kVector = 16;  // bytes that a thread copies at a time

// Copies each image's `vectors` vectors of channels to all of its pixels.
constexpr CudaProgram kProgram{"repeat pixels", "", R"cuda(
extern "C" __global__ void repeat_pixels(const uint4* __restrict__ from, uint4* __restrict__ to, int vectors, int pixels, unsigned count) {
  for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const unsigned image = i / vectors / pixels;
    to[i] = from[image * vectors + i % vectors];
  }
}
)cuda"};

// Returns images in channels last of `height` x `width` pixels. All pixels of an image are equal to
// its `pixel`, [N, C, 1, 1]. A pixel takes a multiple of kVector bytes.
at::Tensor repeat_pixels(const at::Tensor& pixel, int64_t height, int64_t width) {
  const at::Tensor from = pixel.reshape({pixel.size(0), pixel.size(1)}).contiguous();
  at::Tensor to = at::empty({pixel.size(0), pixel.size(1), height, width}, pixel.options().memory_format(at::MemoryFormat::ChannelsLast));
  const void* source = from.const_data_ptr();
  void* target = to.mutable_data_ptr();
  int vectors = static_cast<int>(pixel.size(1) * pixel.element_size() / kVector), pixels = static_cast<int>(height * width);
  auto count = static_cast<unsigned>(pixel.size(0) * vectors * pixels);
  void* arguments[] = {&source, &target, &vectors, &pixels, &count};
  cuda().launch(kProgram, "repeat_pixels", c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(pixel.device()), (count + kThreads - 1) / kThreads,
                kThreads, arguments);
  return to;
}

struct Mean : torch::autograd::Function<Mean> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& images) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["sizes"] = images.sizes().vec();
    return at::adaptive_avg_pool2d(images, {1, 1});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static const auto call = operator_of<decltype(repeat_pixels)>("streamtorch::repeat_pixels");
    const std::vector<int64_t> sizes = context->saved_data["sizes"].toIntVector();
    const auto pixels = static_cast<double>(sizes[2] * sizes[3]);
    // The gradient is differentiated again. LibTorch's order of the two operators gives the second
    // derivative the same bits.
    if (c10::GradMode::is_enabled()) return {at::div(gradients[0].expand(sizes), pixels)};
    return {call.call(at::div(gradients[0], pixels), sizes[2], sizes[3])};
  }
};

at::Tensor global_avg_pool2d(const at::Tensor& images) {
  const bool fits = images.is_cuda() && images.dim() == 4 && images.requires_grad() && c10::GradMode::is_enabled() && images.numel() > 0 &&
                    images.is_contiguous(at::MemoryFormat::ChannelsLast) && images.size(1) * images.element_size() % kVector == 0 &&
                    images.nbytes() / kVector <= INT32_MAX;
  return fits ? Mean::apply(images) : at::adaptive_avg_pool2d(images, {1, 1});
}

TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("repeat_pixels(Tensor pixel, int height, int width) -> Tensor");
  // Registered for every backend, because the function chooses between the node of this file and
  // LibTorch's operator.
  library.def("global_avg_pool2d(Tensor images) -> Tensor", TORCH_FN(global_avg_pool2d));
}

TORCH_LIBRARY_IMPL(streamtorch, CUDA, library) { library.impl("repeat_pixels", TORCH_FN(repeat_pixels)); }

}  // namespace
}  // namespace ct
