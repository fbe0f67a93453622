// Pixels to the images that a model reads: flip, normalise, cast and layout in one pass over the memory.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "device.h"
#include "exec.h"
#include "tensor.h"

namespace ct {
namespace {

constexpr int64_t kMaxChannels = 4;
constexpr int64_t kLevels = 256;  // of a pixel

// What both devices need to know. Distances in elements of the images' dtype.
struct Geometry {
  int32_t height, width, channels;
  int64_t image, channel, row, column;
};

// The numbers are not looked at, so that what matters of the dtype is its size.
template <typename T>
void normalize_on_cpu(const uint8_t* pixels, const uint8_t* flips, const T* table, T* out, int64_t count, const Geometry& g) {
  const int64_t row_pixels = int64_t{g.width} * g.channels;
  for (int64_t n = 0; n < count; ++n) {
    const bool flip = flips != nullptr && flips[n] != 0;
    for (int64_t h = 0; h < g.height; ++h, pixels += row_pixels) {
      T* row = out + n * g.image + h * g.row;
      const uint8_t* pixel = flip ? pixels + row_pixels - g.channels : pixels;
      const int64_t step = flip ? -g.channels : g.channels;
      for (int64_t w = 0; w < g.width; ++w, pixel += step) {
        for (int64_t c = 0; c < g.channels; ++c) row[w * g.column + c * g.channel] = table[c * kLevels + pixel[c]];
      }
    }
  }
}

// A block makes kRows rows of one image. Neighbouring threads make neighbouring elements of a row, and blockDim.x is a multiple
// of the channels, so that a thread stays in one channel and divides once.
constexpr int kRows = 8;
constexpr int kThreads = 256;
constexpr CudaProgram kProgram{"normalize", R"cuda(
constexpr int kRows = 8;
constexpr int kMaxChannels = 4;
constexpr int kLevels = 256;

struct Geometry {
  int height, width, channels;
  long long image, channel, row, column;
};

template <typename T>
__device__ void normalize(const unsigned char* pixels, const unsigned char* flips, const T* table, T* out, Geometry g) {
  __shared__ T values[kMaxChannels * kLevels];
  for (int i = threadIdx.x; i < g.channels * kLevels; i += blockDim.x) values[i] = table[i];
  __syncthreads();
  const int strips = (g.height + kRows - 1) / kRows;
  const int n = blockIdx.x / strips;
  const int top = blockIdx.x % strips * kRows;
  const int rows = min(kRows, g.height - top);
  const int channel = threadIdx.x % g.channels;
  const int row_pixels = g.width * g.channels;
  const bool flip = flips != nullptr && flips[n] != 0;
  pixels += (static_cast<long long>(n) * g.height + top) * row_pixels + channel;
  out += n * g.image + top * g.row + channel * g.channel;
  const T* value = values + channel * kLevels;
  for (int w = threadIdx.x / g.channels; w < g.width; w += blockDim.x / g.channels) {
    const unsigned char* from = pixels + (flip ? g.width - 1 - w : w) * g.channels;
    T* to = out + w * g.column;
    unsigned char pixel[kRows];  // all loads are on their way before the first store
#pragma unroll
    for (int r = 0; r < kRows; ++r) pixel[r] = r < rows ? from[r * row_pixels] : 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (r < rows) to[r * g.row] = value[pixel[r]];
    }
  }
}

#define KERNEL(name, T)                                                                                                \
  extern "C" __global__ void name(const unsigned char* pixels, const unsigned char* flips, const T* table, T* out, Geometry g) { \
    normalize(pixels, flips, table, out, g);                                                                          \
  }
KERNEL(normalize_2, unsigned short)
KERNEL(normalize_4, unsigned int)
KERNEL(normalize_8, unsigned long long)
)cuda"};

void normalize_on_cuda(const void* pixels, const void* flips, const void* table, void* out, int64_t element, int64_t count,
                       Geometry g, c10::Stream stream) {
  const char* kernel = element == 2 ? "normalize_2" : element == 4 ? "normalize_4" : "normalize_8";
  void* arguments[] = {&pixels, &flips, &table, &out, &g};
  const int64_t blocks = count * ((g.height + kRows - 1) / kRows);
  cuda().launch(kProgram, kernel, stream, static_cast<unsigned>(blocks), kThreads / g.channels * g.channels, arguments);
}

void check(const at::Tensor& pixels, const at::Tensor* flips, const at::Tensor& table, const at::Tensor& out) {
  TORCH_CHECK(pixels.scalar_type() == at::kByte && pixels.dim() == 4 && pixels.is_contiguous(),
              "pixels must be contiguous uint8 [N, H, W, C]; got ", pixels.scalar_type(), " ", pixels.sizes());
  const int64_t n = pixels.size(0), h = pixels.size(1), w = pixels.size(2), c = pixels.size(3);
  TORCH_CHECK(c >= 1 && c <= kMaxChannels, "pixels must have 1 to ", kMaxChannels, " channels; got ", pixels.sizes());
  TORCH_CHECK(pixels.numel() <= INT32_MAX, "pixels may have 2^31 - 1 elements; got ", pixels.sizes());
  TORCH_CHECK(flips == nullptr || (flips->scalar_type() == at::kBool && flips->numel() == n && flips->is_contiguous()),
              "flips must be contiguous bool [", n, "]; got ", flips->scalar_type(), " ", flips->sizes());
  TORCH_CHECK(at::isFloatingType(out.scalar_type()) && out.element_size() >= 2 && out.sizes() == at::IntArrayRef({n, c, h, w}),
              "out must be of a floating-point dtype of 16 bits or more and [", n, ", ", c, ", ", h, ", ", w, "]; got ",
              out.scalar_type(), " ", out.sizes());
  TORCH_CHECK(out.is_non_overlapping_and_dense() || out.numel() == 0, "out must be dense; got strides ", out.strides());
  TORCH_CHECK(!out.requires_grad(), "out must not require a gradient");
  TORCH_CHECK(table.scalar_type() == out.scalar_type() && table.is_contiguous() && table.sizes() == at::IntArrayRef({c, kLevels}),
              "table must be contiguous ", out.scalar_type(), " [", c, ", ", kLevels, "]; got ", table.scalar_type(), " ",
              table.sizes());
}

template <typename T>
void normalize_on_cpu(const at::Tensor& pixels, const uint8_t* flips, const at::Tensor& table, const at::Tensor& out, const Geometry& g) {
  normalize_on_cpu(static_cast<const uint8_t*>(pixels.const_data_ptr()), flips, static_cast<const T*>(table.const_data_ptr()),
                   static_cast<T*>(out.mutable_data_ptr()), pixels.size(0), g);
}

void normalize(const at::Tensor& pixels, const at::Tensor* flips, const at::Tensor& table, const at::Tensor& out, c10::Stream stream) {
  const Geometry g{static_cast<int32_t>(pixels.size(1)), static_cast<int32_t>(pixels.size(2)), static_cast<int32_t>(pixels.size(3)),
                   out.stride(0), out.stride(1), out.stride(2), out.stride(3)};
  const auto* flip_data = flips == nullptr ? nullptr : static_cast<const uint8_t*>(flips->const_data_ptr());
  const int64_t element = out.element_size();
  if (out.is_cuda()) {
    normalize_on_cuda(pixels.const_data_ptr(), flip_data, table.const_data_ptr(), out.mutable_data_ptr(), element, pixels.size(0), g, stream);
  } else if (element == 2) {
    normalize_on_cpu<uint16_t>(pixels, flip_data, table, out, g);
  } else if (element == 4) {
    normalize_on_cpu<uint32_t>(pixels, flip_data, table, out, g);
  } else {
    normalize_on_cpu<uint64_t>(pixels, flip_data, table, out, g);
  }
}

}  // namespace
}  // namespace ct

extern "C" ct_status* ct_normalize_images(ct_exec x, const ct_tensor* pixels, const ct_tensor* flips, const ct_tensor* table,
                                          const ct_tensor* out) noexcept {
  return ct::executed(x, [&] {
    const at::Tensor& from = ct::deref(pixels, "pixels").tensor;
    const at::Tensor& to = ct::deref(out, "out").tensor;
    const at::Tensor& values = ct::deref(table, "table").tensor;
    for (const ct_tensor* tensor : {pixels, flips, table, out}) {
      if (tensor == nullptr) continue;
      TORCH_CHECK(tensor->tensor.device() == x.stream->device, "a tensor lies on ", tensor->tensor.device(), ", the exec on ",
                  x.stream->device);
      ct::use(*tensor, *x.stream);
    }
    ct::check(from, flips == nullptr ? nullptr : &flips->tensor, values, to);
    if (from.numel() == 0) return;
    constexpr const char* op = "NormalizeImages";
    for (const ct_tensor* tensor : {pixels, flips, table}) {
      if (tensor != nullptr) ct::checker::reads(op, tensor->tensor);
    }
    ct::checker::writes(op, to);
    ct::normalize(from, flips == nullptr ? nullptr : &flips->tensor, values, to, x.stream->stream);
    to.unsafeGetTensorImpl()->bump_version();
  });
}
