// The operators streamtorch::max_pool2d and streamtorch::avg_pool2d. They have the arguments and
// the results of aten's operators, except for the bits of a NaN. They have a kernel of their own
// for images on a CUDA device in channels last, of float32, float16 or bfloat16 and without a
// gradient. For all other images they call aten's operators.
//
// For the images with a kernel here, LibTorch's kernels read and write several times the
// necessary bytes. max_pool2d also writes an index of eight bytes for each value. In small
// batches LibTorch's kernels leave most of the device empty. They take 20 to 30 us for a pooling
// that needs 3 us.

#include <ATen/core/Tensor.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/max_pool2d.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "core/device.h"
#include "kernels/both_devices.h"

namespace ct {
namespace {

// Pooling describes a pooling of [N, H, W, C]. `divisor` is the divisor of a mean. If it is 0,
// the divisor is the size of the window, and `count_padding` says whether that size includes
// padding. Each of `threads` threads makes one vector of channels of one result pixel.
CT_ON_BOTH_DEVICES(kText,

struct Pooling {
  int height, width, channels, out_height, out_width;
  int kernel_height, kernel_width, stride_height, stride_width, padding_height, padding_width, dilation_height, dilation_width;
  int divisor;
  int count_padding;
  unsigned threads;
};

)  // CT_ON_BOTH_DEVICES

constexpr CudaProgram kProgram{"pool", kText, R"cuda(
// Takes one more value of the window, in the order of rows.
template <typename N, bool kMax>
__device__ void take(typename N::Wide& sum, typename N::Wide v) {
  if (kMax) {
    if (v > sum || v != v) sum = v;
  } else {
    sum += v;
  }
}

// kKernel: size of a square window without dilation, 0 for any other. All loads of such a window
// are under way before the first is used.
template <typename N, bool kMax, int kVector, int kKernel>
__device__ void pool(const typename N::Raw* in, typename N::Raw* out, const Pooling& p) {
  using Values = Vector<N, kVector>;
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  if (thread >= p.threads) return;
  const unsigned vectors = p.channels / kVector;
  const unsigned pixel = thread / vectors, row = pixel / p.out_width;
  const int top = static_cast<int>(row % p.out_height) * p.stride_height - p.padding_height;
  const int left = static_cast<int>(pixel % p.out_width) * p.stride_width - p.padding_width;
  const long long image = static_cast<long long>(row / p.out_height) * p.height * p.width;
  const Values* from = reinterpret_cast<const Values*>(in) + image * vectors + thread % vectors;
  typename N::Wide sums[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) sums[i] = kMax ? -__int_as_float(0x7F800000) : 0;
  if (kKernel > 0) {
    Values values[kKernel > 0 ? kKernel * kKernel : 1];
    bool inside[kKernel > 0 ? kKernel * kKernel : 1];
#pragma unroll
    for (int i = 0; i < kKernel * kKernel; ++i) {
      const int h = top + i / (kKernel > 0 ? kKernel : 1), w = left + i % (kKernel > 0 ? kKernel : 1);
      inside[i] = h >= 0 && h < p.height && w >= 0 && w < p.width;
      if (inside[i]) values[i] = from[(h * p.width + w) * vectors];
    }
#pragma unroll
    for (int i = 0; i < kKernel * kKernel; ++i) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (inside[i]) take<N, kMax>(sums[j], N::widen(values[i].at[j]));
      }
    }
  } else {
    for (int i = 0; i < p.kernel_height; ++i) {
      const int h = top + i * p.dilation_height;
      if (h < 0 || h >= p.height) continue;
      for (int k = 0; k < p.kernel_width; ++k) {
        const int w = left + k * p.dilation_width;
        if (w < 0 || w >= p.width) continue;
        const Values values = from[(h * p.width + w) * vectors];
#pragma unroll
        for (int j = 0; j < kVector; ++j) take<N, kMax>(sums[j], N::widen(values.at[j]));
      }
    }
  }
  if (!kMax) {
    const int bottom = min(top + p.kernel_height, p.height + p.padding_height), right = min(left + p.kernel_width, p.width + p.padding_width);
    const int all = (bottom - top) * (right - left);
    const int seen = (min(bottom, p.height) - max(top, 0)) * (min(right, p.width) - max(left, 0));
    const int divisor = p.divisor != 0 ? p.divisor : p.count_padding ? all : seen;
#pragma unroll
    for (int j = 0; j < kVector; ++j) sums[j] /= divisor;
  }
  Values result;
#pragma unroll
  for (int j = 0; j < kVector; ++j) result.at[j] = N::narrow(sums[j]);
  reinterpret_cast<Values*>(out)[thread] = result;
}

#define KERNEL(name, N, kMax, kVector, kKernel) \
  extern "C" __global__ void name(const N::Raw* in, N::Raw* out, Pooling p) { pool<N, kMax, kVector, kKernel>(in, out, p); }
#define KERNELS(dtype, N, kVector)                     \
  KERNEL(max_##dtype##_1_0, N, true, 1, 0)             \
  KERNEL(max_##dtype##_##kVector##_0, N, true, kVector, 0) \
  KERNEL(max_##dtype##_##kVector##_3, N, true, kVector, 3) \
  KERNEL(avg_##dtype##_1_0, N, false, 1, 0)            \
  KERNEL(avg_##dtype##_##kVector##_0, N, false, kVector, 0) \
  KERNEL(avg_##dtype##_##kVector##_3, N, false, kVector, 3)
KERNELS(bfloat16, BFloat16, 8)
KERNELS(half, Half, 8)
KERNELS(float, Float, 4)
)cuda"};

// Reads a pair of numbers as LibTorch's operators do. One number stands for two equal numbers. An
// empty list stands for `other`.
std::optional<std::array<int64_t, 2>> pair_of(at::IntArrayRef list, std::optional<std::array<int64_t, 2>> other = {}) {
  switch (list.size()) {
    case 0: return other;
    case 1: return std::array{list[0], list[0]};
    case 2: return std::array{list[0], list[1]};
    default: return {};
  }
}

// Returns the number of windows along one dimension.
int64_t windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
  const int64_t room = size + 2 * padding - dilation * (kernel - 1) - 1;
  if (room < 0) return 0;
  const int64_t count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // The last window must begin before the padding at the end.
  return ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
}

constexpr int64_t kThreads = 256;

// Returns the name of the kernel for an operator and a dtype. If `vector` is set, a thread
// handles 16 bytes of channels at once. If `three` is set, the window is 3x3 without dilation.
// Returns NULL for a dtype without a kernel.
const char* kernel_name(bool max, at::ScalarType dtype, bool vector, bool three) {
  static constexpr const char* kNames[2][3][3] = {
      {{"avg_bfloat16_1_0", "avg_bfloat16_8_0", "avg_bfloat16_8_3"},
       {"avg_half_1_0", "avg_half_8_0", "avg_half_8_3"},
       {"avg_float_1_0", "avg_float_4_0", "avg_float_4_3"}},
      {{"max_bfloat16_1_0", "max_bfloat16_8_0", "max_bfloat16_8_3"},
       {"max_half_1_0", "max_half_8_0", "max_half_8_3"},
       {"max_float_1_0", "max_float_4_0", "max_float_4_3"}}};
  const int of = dtype == at::kBFloat16 ? 0 : dtype == at::kHalf ? 1 : dtype == at::kFloat ? 2 : -1;
  return of < 0 ? nullptr : kNames[max][of][!vector ? 0 : three ? 2 : 1];
}

// Returns the result, or nothing if there is no kernel for this call. The caller then calls
// LibTorch's operator, which gives the result or the error.
std::optional<at::Tensor> pool(const at::Tensor& in, bool max, at::IntArrayRef kernel_size, at::IntArrayRef strides, at::IntArrayRef paddings,
                               at::IntArrayRef dilations, bool ceil_mode, bool count_padding, int64_t divisor) {
  if (!in.is_cuda() || in.dim() != 4 || in.numel() == 0 || (in.requires_grad() && c10::GradMode::is_enabled())) return {};
  if (in.suggest_memory_format() != at::MemoryFormat::ChannelsLast || !in.is_contiguous(at::MemoryFormat::ChannelsLast)) return {};
  const auto kernel = pair_of(kernel_size), stride = pair_of(strides, kernel), padding = pair_of(paddings), dilation = pair_of(dilations);
  if (!kernel || !stride || !padding || !dilation) return {};
  constexpr int64_t kMost = 1 << 15;  // no number may be larger, so that nothing overflows below
  std::array<int64_t, 2> out{};
  for (const int i : {0, 1}) {
    const int64_t k = (*kernel)[i], s = (*stride)[i], p = (*padding)[i], d = (*dilation)[i];
    if (k < 1 || s < 1 || p < 0 || d < 1 || std::max({k, s, p, d}) > kMost || 2 * p > k) return {};
    out[i] = windows(in.size(2 + i), k, s, p, d, ceil_mode);
    if (out[i] < 1) return {};
  }
  const int64_t channels = in.size(1), bytes = in.element_size();
  const int64_t width = 16 / bytes;  // number of elements of a vector
  const bool vector = channels % width == 0 && reinterpret_cast<uintptr_t>(in.const_data_ptr()) % 16 == 0;
  const bool three = *kernel == std::array<int64_t, 2>{3, 3} && *dilation == std::array<int64_t, 2>{1, 1};
  const char* name = kernel_name(max, in.scalar_type(), vector, three);
  const int64_t results = in.size(0) * channels * out[0] * out[1];
  if (name == nullptr || std::max(in.numel(), results) > INT32_MAX || divisor < -INT32_MAX || divisor > INT32_MAX) return {};
  const auto number = [](int64_t v) { return static_cast<int>(v); };
  Pooling p{number(in.size(2)), number(in.size(3)), number(channels), number(out[0]), number(out[1]), number((*kernel)[0]), number((*kernel)[1]),
            number((*stride)[0]), number((*stride)[1]), number((*padding)[0]), number((*padding)[1]), number((*dilation)[0]),
            number((*dilation)[1]), number(divisor), count_padding, static_cast<unsigned>(results / (vector ? width : 1))};
  at::Tensor result = at::empty({in.size(0), channels, out[0], out[1]}, in.options().memory_format(at::MemoryFormat::ChannelsLast));
  const void* from = in.const_data_ptr();
  void* to = result.mutable_data_ptr();
  void* arguments[] = {&from, &to, &p};
  cuda().launch(kProgram, name, c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(in.device()),
                static_cast<unsigned>((p.threads + kThreads - 1) / kThreads), static_cast<unsigned>(kThreads), arguments);
  return result;
}

at::Tensor max_pool2d(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                      bool ceil_mode) {
  if (auto result = pool(self, /*max=*/true, kernel_size, stride, padding, dilation, ceil_mode, /*count_padding=*/false, 0)) return *std::move(result);
  return at::max_pool2d(self, kernel_size, stride, padding, dilation, ceil_mode);
}

at::Tensor avg_pool2d(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride, at::IntArrayRef padding, bool ceil_mode,
                      bool count_include_pad, std::optional<int64_t> divisor_override) {
  const int64_t divisor = divisor_override.value_or(0);
  if (divisor != 0 || !divisor_override) {  // LibTorch refuses a divisor of 0
    if (auto result = pool(self, /*max=*/false, kernel_size, stride, padding, {1}, ceil_mode, count_include_pad, divisor)) return *std::move(result);
  }
  return at::avg_pool2d(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override);
}

// These two operators are registered for every backend. They need no gradients of their own,
// because the operators that they call have gradients.
TORCH_LIBRARY_FRAGMENT(streamtorch, library) {
  library.def("max_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False) -> Tensor",
              TORCH_FN(max_pool2d));
  library.def("avg_pool2d(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, "
              "bool count_include_pad=True, int? divisor_override=None) -> Tensor",
              TORCH_FN(avg_pool2d));
}

}  // namespace
}  // namespace ct
